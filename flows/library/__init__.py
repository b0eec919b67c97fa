"""The functions of the package `apprentice` for notebooks and scripts: a whole run, or one stage of it. docs/api.md."""
