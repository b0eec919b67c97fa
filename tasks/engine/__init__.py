"""Turns functions into stages: key, cache, scratch folder, several processes, and the README of each artifact."""
