"""The OpenEnv server of BrowserGym's forms; runs without the rest of this project, as a Space does."""
