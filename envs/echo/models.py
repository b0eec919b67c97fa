"""What is sent and what comes back. Written by `make spaces`."""

from .server.game import EchoAction, EchoObservation

__all__ = ["EchoAction", "EchoObservation"]
