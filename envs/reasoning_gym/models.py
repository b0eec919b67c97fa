"""What is sent and what comes back. Written by `make spaces`."""

from .server.game import ReasoningGymAction, ReasoningGymObservation

__all__ = ["ReasoningGymAction", "ReasoningGymObservation"]
