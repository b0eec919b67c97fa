"""Recipes: the model of the YAML file that describes a run, and the code that reads it."""
