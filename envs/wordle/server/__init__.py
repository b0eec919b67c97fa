"""The OpenEnv server of Wordle; runs without the rest of this project, as a Space does."""
