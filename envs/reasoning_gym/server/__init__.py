"""The OpenEnv server of Reasoning Gym; runs without the rest of this project, as a Space does."""
