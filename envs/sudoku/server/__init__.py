"""The OpenEnv server of Sudoku; runs without the rest of this project, as a Space does."""
