"""Connections to environment servers: sessions that recover, session limits, outages."""
