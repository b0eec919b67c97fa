"""Where training curves go: experiment trackers, and Trackio's Space.

In: `report_to` and `trackio` of a recipe. Out: validated settings; none of them enters a key.
"""

from functools import partial
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from apprentice.envs.wire.server import without_secrets
from apprentice.tasks.settings.spec_base import Spec

Reporter = Literal["trackio", "wandb", "mlflow"]
"""Experiment trackers that receive training curves, by the names of transformers' `report_to`."""


def hub_name_fault(repository: str) -> str:
    """What the Hub refuses about a repository's name; empty where it is one."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        name = repository.rpartition("/")[2]
        return f"{str(error).rstrip('.')} ({len(name)} characters)"
    return ""


class TrackioSpec(Spec):
    """Where Trackio logs training curves. Enters no key."""

    space_id: str | None = Field(default=None, pattern=r"^[\w.-]+/[\w.-]+$")
    """A Space on the Hub, such as owner/curves; Trackio creates it if needed, and HF_TOKEN must have write access.
    Default: the store's folder, which `apprentice dashboard` shows."""
    private: bool = True
    """Create the Space as private."""
    url: Annotated[str, AfterValidator(partial(without_secrets, remedy="whoever opens it logs in there"))] = ""
    """URL of a running dashboard of the store, such as http://127.0.0.1:7860, for a link on the run's page."""

    @field_validator("space_id")
    @classmethod
    def _is_a_name(cls, space_id: str | None) -> str | None:
        for name in [f"{space_id}-bucket", space_id] if space_id else []:  # Trackio keeps a Space's data in a bucket
            if fault := hub_name_fault(str(name)):
                raise ValueError(f"the Hub takes no such Space or bucket: {fault}")
        return space_id
