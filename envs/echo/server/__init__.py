"""The OpenEnv server of Echo; runs without the rest of this project, as a Space does."""
