"""What is sent and what comes back. Written by `make spaces`."""

from .server.game import BrowserGymAction, BrowserGymObservation

__all__ = ["BrowserGymAction", "BrowserGymObservation"]
