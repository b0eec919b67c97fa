"""Turns functions into stages: key, cache, scratch folder, several processes, replay."""
