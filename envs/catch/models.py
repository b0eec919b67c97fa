"""What is sent and what comes back. Written by `make spaces`."""

from .server.game import CatchAction, CatchObservation

__all__ = ["CatchAction", "CatchObservation"]
