"""`apprentice env`: list, play, serve, check, build."""
