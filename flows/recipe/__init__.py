"""One YAML file is one run: the model of it, and how it is read."""
