"""The server of the faulty environment."""
