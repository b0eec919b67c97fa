"""What can be learned: one folder an environment, and the sessions that reach its server."""

from apprentice.envs.defaults import set_defaults

set_defaults()
