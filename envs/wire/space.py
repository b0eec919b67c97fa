"""What the Hub says about a Space that does not answer, and waking it where that is possible.

In: the Space's repository. Out: its runtime stage in words.
A sleeping Space is woken by a request or a restart; a paused one and one with a runtime error by a restart, which only
its owner's token may ask for. While it builds one waits.
https://huggingface.co/docs/huggingface_hub/guides/manage-spaces
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from huggingface_hub import HfApi

RESTARTED = ("SLEEPING", "PAUSED", "STOPPED", "RUNTIME_ERROR")
"""Stages that a restart ends."""


class Space:
    """One Space of the Hub. `str(space)` says what is known of it."""

    def __init__(self, repository: str, api: "HfApi | None" = None):
        self.repository = repository
        self._api = api
        self._known = "its stage is not known"
        self._restarted: str | None = None

    def __str__(self) -> str:
        return f"Space {self.repository}: {self._known}"

    def wake(self) -> None:
        """Reads the stage, and asks for a restart once each time the Space fell into one that a restart ends."""
        from huggingface_hub import HfApi

        api = self._api or HfApi()
        try:
            stage = str(api.get_space_runtime(self.repository).stage)
        except Exception as error:  # whatever it is, the server itself may be back: the probe decides
            self._known = f"the Hub does not tell its stage ({_brief(error)})"
            return
        if stage not in RESTARTED:
            self._known, self._restarted = f"stage {stage}", None
        elif self._restarted != stage:
            self._restarted = stage
            try:
                api.restart_space(self.repository)
                self._known = f"stage {stage}; a restart was asked for"
            except Exception as error:
                self._known = f"stage {stage}; a restart was refused ({_brief(error)}): its owner has to start it"


def _brief(error: Exception) -> str:
    """Never the message: it may quote a token."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return f"status {status}" if status else type(error).__name__
