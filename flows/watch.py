"""Watches Hub repositories for new revisions: an environment's Space, a dataset, a model.

In: repositories on the Hub. Out: an event `apprentice.revision.new` for each with a new revision since the last check,
which can trigger a deployment. A Prefect variable stores the last known revisions.
"""

from typing import Literal

from prefect import flow
from prefect.variables import Variable
from pydantic import BaseModel, ConfigDict

from apprentice.tasks.reporting import announce

SEEN = "apprentice_revisions"


def seen(space: str | None) -> str:
    """Return the last known revision of a Space as `owner/space@revision`; empty if it is not watched."""
    if space is None:
        return ""
    revisions: dict[str, str] = Variable.get(SEEN, default={}) or {}  # type: ignore[assignment]
    revision = revisions.get(f"space.{space}")
    return f"{space}@{revision}" if revision else ""


class Watched(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kind: Literal["space", "dataset", "model"]
    repository: str
    """owner/name"""

    def __str__(self) -> str:
        return f"{self.kind}.{self.repository}"


@flow(name="watch", result_serializer="json")
def watch(repositories: list[Watched]) -> dict[str, str]:
    """Emit an event for every repository with a new revision and return all revisions; the first check only stores."""
    from huggingface_hub import HfApi

    before: dict[str, str] = Variable.get(SEEN, default={}) or {}  # type: ignore[assignment]
    now: dict[str, str] = {}
    for each in repositories:
        try:
            now[str(each)] = str(HfApi().repo_info(each.repository, repo_type=each.kind).sha)
        except Exception as error:  # continue with the others; this one is checked again next time
            announce.warn(f"{each} cannot be read: {type(error).__name__}")
    for name, revision in now.items():
        if name in before and before[name] != revision:
            announce.warn(f"{name} has a new revision: {revision}")
            news = {"repository": name.partition(".")[2], "revision": revision, "before": before[name]}
            announce.event("revision.new", name, news)
    if before | now != before:
        Variable.set(SEEN, before | now, overwrite=True)
    return now
