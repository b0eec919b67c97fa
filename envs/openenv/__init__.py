"""Any OpenEnv environment on a server that somebody else runs, with typed actions or with MCP tools."""
