"""How an environment's server is reached: sessions that recover, limits, outages."""
