"""What can be learned: one folder an environment, and the sessions that reach its server."""
