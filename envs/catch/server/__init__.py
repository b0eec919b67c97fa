"""The OpenEnv server of Catch; runs without the rest of this project, as a Space does."""
