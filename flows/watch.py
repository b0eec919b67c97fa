"""Looks whether something upstream has a new revision: the Space that serves an environment, a dataset, a model.

In: repositories of the Hub. Out: an event `apprentice.revision.new` for each whose head has moved since the last look;
a deployment that is triggered by it retrains. What was seen is kept as a Prefect variable.
"""

from typing import Literal

from prefect import flow
from prefect.variables import Variable
from pydantic import BaseModel, ConfigDict

from apprentice.tasks.reporting import announce

SEEN = "apprentice_revisions"


def seen(space: str | None) -> str:
    """The revision of a Space that the last look found, as `owner/space@revision`; empty for one not watched."""
    if space is None:
        return ""
    revisions: dict[str, str] = Variable.get(SEEN, default={}) or {}  # type: ignore[assignment]
    revision = revisions.get(f"space.{space}")
    return f"{space}@{revision}" if revision else ""


class Watched(BaseModel):
    """A repository of the Hub."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kind: Literal["space", "dataset", "model"]
    repository: str
    """owner/name"""

    def __str__(self) -> str:
        return f"{self.kind}.{self.repository}"


@flow(name="watch", result_serializer="json")
def watch(repositories: list[Watched]) -> dict[str, str]:
    """Emits an event for every repository with a new revision; the first look only notes. Returns what was seen."""
    from huggingface_hub import HfApi

    before: dict[str, str] = Variable.get(SEEN, default={}) or {}  # type: ignore[assignment]
    now: dict[str, str] = {}
    for each in repositories:
        try:
            now[str(each)] = str(HfApi().repo_info(each.repository, repo_type=each.kind).sha)
        except Exception as error:  # the others are looked at all the same, and this one the next time
            announce.warn(f"{each} cannot be read: {type(error).__name__}")
    for name, revision in now.items():
        if name in before and before[name] != revision:
            announce.warn(f"{name} has a new revision: {revision}")
            news = {"repository": name.partition(".")[2], "revision": revision, "before": before[name]}
            announce.event("revision.new", name, news)
    if before | now != before:
        Variable.set(SEEN, before | now, overwrite=True)
    return now
