"""Environments to train on, one folder each, and the sessions that connect to their servers."""

from apprentice.envs.defaults import set_defaults
from apprentice.envs.wire.lean_openenv import import_page_when_needed

set_defaults()
import_page_when_needed()
