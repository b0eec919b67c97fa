"""`apprentice reproduce`: makes an artifact again from its record, and reports whether the result is the same.

In: a lineage. Out: for its artifact, or also for its ancestors, whether data or weights are the same, and which files
differ. Each is made from its recorded inputs, in a temporary store.
"""

import shutil
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

from prefect import flow
from prefect.settings import PREFECT_DEFAULT_RESULT_STORAGE_BLOCK, PREFECT_LOCAL_STORAGE_PATH, temporary_settings

from apprentice.flows.replay import Replay, ask_first, pinned_arguments, replay_of, students_of
from apprentice.flows.runtime.servers import RunServers
from apprentice.tasks.artifacts.lineage import Lineage
from apprentice.tasks.artifacts.local import LocalStore, digest_of
from apprentice.tasks.artifacts.provenance import CARD
from apprentice.tasks.artifacts.types import Artifact
from apprentice.tasks.engine.replay import record_of
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.reporting import announce
from apprentice.tasks.settings.stages import StudentSpec

COUNTED = {"model": (".safetensors",), "dataset": (".jsonl", ".json")}
"""The files that are compared: a model's weights, a dataset's data. Pictures, samples and cards do not count."""


class Outcome(NamedTuple):
    kind: str
    repository: str
    key: str
    revision: str
    stage: str
    same: bool
    decided_by: str
    """"weights" or "data"."""
    digest: str
    digest_again: str
    differing: list[str]
    """All files except the card that differ, are missing or are new; may be non-empty even if `same`."""
    differences: list[str]
    """Differences between this environment and the one that produced it."""
    seconds: float


class ScratchStore(LocalStore):
    """An empty store, so that nothing is a cache hit, which fetches inputs from another store."""

    def __init__(self, root: Path, inputs: LocalStore):
        super().__init__(root, inputs.project, inputs.namespace)
        self._inputs = inputs

    def address(self, kind: type[Artifact], key: str) -> str:
        return f"reproduced://{self.repository(kind)}@{key}"

    def fetch(self, artifact: Artifact) -> Path:
        made_here = self._snapshot(artifact).is_dir()  # such as a collection's shards
        return super().fetch(artifact) if made_here else self._inputs.fetch(artifact)

    def empty(self) -> None:
        for repositories in ("datasets", "models"):
            shutil.rmtree(self.root / repositories, ignore_errors=True)


def reproduce(lineage: Lineage, overrides: list[str], deep: bool = False, yes: bool = False) -> list[Outcome]:
    """Reproduce the lineage's artifact, the last of the returned list; with `deep` first all of its ancestors.

    Raises Stop before making anything if a record is incomplete or names something that must not be run.

    Args:
        overrides: Where the servers run, as `path=value`.
        yes: Allow paying a teacher again and running code from a student's repository.
    """
    nodes = list(lineage.nodes.values()) if deep else [lineage.root]
    with TemporaryDirectory(prefix="apprentice-reproduce-") as folder:
        replays = [replay_of(lineage, node, overrides, Path(folder)) for node in nodes]
        if not yes:
            ask_first(lineage, replays)
        for difference in dict.fromkeys(each for replay in replays for each in replay.differences):
            announce.warn(difference)
        # Prefect's cached results name artifacts; a later run must not find results that name these temporary ones
        separate: Any = {PREFECT_LOCAL_STORAGE_PATH: f"{folder}/.prefect", PREFECT_DEFAULT_RESULT_STORAGE_BLOCK: None}
        with temporary_settings(separate):
            return _made_again(lineage, replays, Path(folder), students_of(lineage) if yes else [])


def _made_again(lineage: Lineage, replays: list[Replay], folder: Path, trusted: list[StudentSpec]) -> list[Outcome]:
    outcomes: list[Outcome] = []

    @flow(name="reproduce", flow_run_name=f"reproduce-{lineage.root.named.key}", result_serializer="json")
    def again() -> None:
        store = ScratchStore(folder / "store", lineage.store)
        servers: dict[str, RunServers] = {}
        with ExitStack() as started:
            for replay in replays:
                same = replay.recipe.model_dump_json()
                if same not in servers:
                    servers[same] = started.enter_context(RunServers(replay.recipe))
                began = perf_counter()
                run = RunContext(store, servers[same], recipe=replay.recipe.for_record(), trusted=trusted)
                made = replay.stage(run, **pinned_arguments(replay))
                record = store.record(type(made), made.key, made.revision)
                outcomes.append(compared(replay, record.files, perf_counter() - began))
                store.empty()  # models are large

    again()
    return outcomes


def compared(replay: Replay, again: dict[str, str], seconds: float) -> Outcome:
    """Compare the reproduced files with the record.

    Args:
        again: SHA-256 by path.
    """
    record, repo_type = record_of(replay.node), replay.stage.produces.repo_type
    endings = COUNTED[repo_type]
    if not any(name.endswith(endings) for name in record.files):  # it refers to another model's weights
        endings = COUNTED["dataset"]
    digest, digest_again = (
        digest_of({name: files[name] for name in sorted(files) if name.endswith(endings)})
        for files in (record.files, again)
    )
    return Outcome(
        **replay.node.named.model_dump(),
        stage=replay.stage.name,
        same=digest == digest_again,
        decided_by="weights" if endings == COUNTED["model"] else "data",
        digest=digest,
        digest_again=digest_again,
        differing=sorted(
            name for name in {*record.files, *again} - {CARD} if record.files.get(name) != again.get(name)
        ),
        differences=replay.differences,
        seconds=round(seconds, 1),
    )


def rows(outcomes: list[Outcome]) -> list[dict[str, str]]:
    return [
        {
            "artifact": f"{each.repository.partition('/')[2]}@{each.key[:12]}",
            "stage": each.stage,
            "result": _result(each),
            "seconds": f"{each.seconds:.1f}",
        }
        for each in outcomes
    ]


def _result(outcome: Outcome) -> str:
    if outcome.same:
        beside = f"; other files differ: {', '.join(outcome.differing)}" if outcome.differing else ""
        return f"the same {outcome.decided_by}{beside}"
    return f"NOT the same {outcome.decided_by}: {', '.join(outcome.differing)}"
