"""How it is put together: the recipe, the run from top to bottom, the command line."""
