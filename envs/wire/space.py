"""Reads the stage of a Space that does not answer, and restarts it if that helps.

In: the Space's repository. Out: its runtime stage as text.
A request or a restart wakes a sleeping Space. A paused one and one with a runtime error need a restart by their owner's
token. https://huggingface.co/docs/huggingface_hub/guides/manage-spaces
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from huggingface_hub import HfApi

RESTARTED = ("SLEEPING", "PAUSED", "STOPPED", "RUNTIME_ERROR")
"""Stages in which a restart helps."""


@dataclass
class Space:
    """A Space on the Hub. `str(space)` describes its last known stage."""

    repository: str
    _api: "HfApi | None" = None
    _known: str = "its stage is unknown"
    _restarted: str | None = None

    def __str__(self) -> str:
        return f"Space {self.repository}: {self._known}"

    def wake(self) -> None:
        """Read the stage, and request one restart each time the Space enters a stage in which a restart helps."""
        from huggingface_hub import HfApi

        api = self._api or HfApi()
        try:
            stage = str(api.get_space_runtime(self.repository).stage)
        except Exception as error:  # the server itself may be back: the probe decides
            self._known = f"the Hub did not return its stage ({_brief(error)})"
            return
        if stage not in RESTARTED:
            self._known, self._restarted = f"stage {stage}", None
        elif self._restarted != stage:
            self._restarted = stage
            try:
                api.restart_space(self.repository)
                self._known = f"stage {stage}; a restart was requested"
            except Exception as error:
                self._known = f"stage {stage}; a restart was refused ({_brief(error)}): its owner must restart it"


def _brief(error: Exception) -> str:
    """Describe an error without its message, which may quote a token."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return f"status {status}" if status else type(error).__name__
