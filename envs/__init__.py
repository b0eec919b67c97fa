"""Environments to train on, one folder each, and the sessions that connect to their servers."""

from apprentice.envs.defaults import set_defaults

set_defaults()
