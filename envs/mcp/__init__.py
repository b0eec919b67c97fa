"""Any OpenEnv environment whose actions are MCP tools, on a server that somebody else runs."""
