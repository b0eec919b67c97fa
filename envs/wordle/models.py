"""What is sent and what comes back. Written by `make spaces`."""

from .server.game import WordleAction, WordleObservation

__all__ = ["WordleAction", "WordleObservation"]
