"""Local servers: environments as child processes or containers, and the scripted teacher's endpoint."""
