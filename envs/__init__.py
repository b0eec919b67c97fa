"""Environments to train on, a file or a folder each, and the sessions that connect to their servers."""

from apprentice.envs.defaults import import_page_when_needed, set_defaults

set_defaults()
import_page_when_needed()
