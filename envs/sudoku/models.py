"""What is sent and what comes back. Written by `make spaces`."""

from .server.game import SudokuAction, SudokuObservation

__all__ = ["SudokuAction", "SudokuObservation"]
