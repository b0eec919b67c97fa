"""Sudoku: fill the empty cells of a grid, one at a time."""
