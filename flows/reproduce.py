"""`apprentice reproduce`: runs an artifact's recipe again in an empty store, and says which artifacts are the same.

In: a lineage, of which only the records are read. Out: for the artifact and all that it was made from, whether data or
weights are the same, and what differs. The store is temporary, and no Prefect server sees the run.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from prefect.settings import PREFECT_API_URL, temporary_settings

from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.of_record import recorded_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.recipe.sections import StoreSpec
from apprentice.flows.retrain import pinned_for_run, train
from apprentice.tasks.artifacts.foreign.models import source_of
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import CARD, ArtifactRecord, Parent, leaves, read_record
from apprentice.tasks.artifacts.store_files import digest_of
from apprentice.tasks.lineage.lineage import Lineage
from apprentice.tasks.lineage.node import Node, node_of
from apprentice.tasks.reporting.errors import Stop

COUNTED = {"weights": ".safetensors", "data": (".jsonl", ".json")}
"""The files that are compared: a model's weights, else data. Pictures, samples and cards do not count."""
VERSIONS = ("version", "code", "revision", "base_url")
"""What of a setting says by which code and at which address it was used; counterparts may differ in it."""


class ReproducedArtifact(NamedTuple):
    kind: str
    repository: str
    key: str
    revision: str
    stage: str
    same: bool
    result: str
    """In words, with the files that differ."""
    differences: list[str]
    """What differs in the making: versions of stage, environment, packages and code."""


def reproduce(lineage: Lineage, overrides: list[str], yes: bool = False) -> list[ReproducedArtifact]:
    """Return an outcome for each of the lineage's artifacts, the root's last. Raises Stop.

    Args:
        overrides: Where the servers run, as `path=value`.
        yes: Allow paying a teacher again and running code from a student's repository.
    """
    recipe = recipe_of(lineage.root, overrides)
    if not yes and (needed := "\n".join(_needs_consent(recipe))):
        raise Stop(needed, "Pass --yes to allow it.")
    with TemporaryDirectory(prefix="apprentice-reproduce-") as folder, temporary_settings({PREFECT_API_URL: None}):
        store = LocalStore(Path(folder) / "artifacts", recipe.name)
        again = recipe.model_copy(update={"store": StoreSpec(path=store.root), "report_to": []})
        train(pinned_for_run(again, []), Path(folder) / "runs", gpu="")
        known: dict[str, str] = {}
        made = {_making(node, known): node for node in _all_of(store)}
        return [_compared(node, made.get(_making(node, known))) for node in lineage.nodes.values()]


def recipe_of(node: Node, overrides: list[str]) -> Recipe:
    """Return the recorded recipe, for the installed environments, with the overrides' servers. Raises Stop."""
    before = recorded_recipe(node)
    if before.round is not None or before.student.goes_on:
        raise Stop(
            f"{node.ref} was trained from an earlier model, which an empty store does not have.",
            "Reproduce that model; `apprentice lineage` shows its key.",
        )
    after = load_recipe(before, overrides)
    if before.teacher and after.teacher:
        moved = before.teacher.model_copy(update={"base_url": after.teacher.base_url})
        before = before.model_copy(update={"teacher": moved})
    if after.for_record() != before.for_record():
        raise Stop(
            f"--set {' --set '.join(overrides)} would make a different artifact.",
            "Change only where servers run, their speed and their price: server.…, teacher.base_url.",
        )
    return after


def _needs_consent(recipe: Recipe) -> Iterator[str]:
    """What a person must allow: the record may come from a stranger."""
    teacher, student = recipe.teacher, recipe.student
    if recipe.buys and teacher and teacher.scripted_error_rate is None:
        at = f"{teacher.model} at {teacher.base_url or 'OpenAI'}"
        yield f"Running {recipe.name} again buys its episodes again, from {at}; its answers may differ."
    if student.trust_remote_code or not student.safetensors_only:
        yield f"Running {recipe.name} again loads {source_of(student)} in a way that can run its code."


def _all_of(store: LocalStore) -> Iterator[Node]:
    for folder in store.root.glob("*s/*/*/snapshots/*"):
        record = read_record(folder)
        named = Parent(kind=record.kind, repository="/".join(folder.parts[-4:-2]), revision=folder.name, key=record.key)
        yield node_of(store, named, {})


def _making(node: Node, known: dict[str, str]) -> str:
    """A digest of stage, settings and inputs, without the versions that a key has: counterparts have the same.

    `known`: those of other nodes, by revision. A lineage has inputs first, so that its champions need no recursion.
    """
    if node.named.revision not in known:
        inputs = {name: _making(each, known) for name, each in node.inputs.items()}
        stage = node.record.made_by.get("stage") if node.record else node.ref
        text = json.dumps([stage, _without_versions(node.settings), inputs], sort_keys=True)
        known[node.named.revision] = hashlib.sha256(text.encode()).hexdigest()
    return known[node.named.revision]


def _without_versions(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _without_versions(each) for name, each in value.items() if name not in VERSIONS}


def _compared(node: Node, again: Node | None) -> ReproducedArtifact:
    there, here = node.record, again.record if again else None
    about = {**node.named.model_dump(), "stage": there.made_by.get("stage", "") if there else ""}
    if there is None or here is None:
        why = "the recipe's run does not make it" if there else "it no longer exists"
        return ReproducedArtifact(**about, same=False, result=f"not compared: {why}", differences=[])
    what = "weights" if any(name.endswith(COUNTED["weights"]) for name in there.files) else "data"
    same = _digest(there, what) == _digest(here, what)
    names = {*there.files, *here.files} - {CARD}
    differing = ", ".join(sorted(name for name in names if there.files.get(name) != here.files.get(name)))
    beside = f"; other files differ: {differing}" if differing else ""
    result = f"the same {what}{beside}" if same else f"NOT the same {what}: {differing}"
    made, remade = _made_by(there), _made_by(here)
    differences = [
        f"{path} is {remade.get(path, 'nothing')} here, and {value} in the record."
        for path, value in made.items()
        if value != remade.get(path)
    ]
    return ReproducedArtifact(**about, same=same, result=result, differences=differences)


def _digest(record: ArtifactRecord, what: str) -> str:
    return digest_of({name: record.files[name] for name in sorted(record.files) if name.endswith(COUNTED[what])})


def _made_by(record: ArtifactRecord) -> dict[str, str]:
    """Every value of the making but the inputs, as JSON by its path."""
    return dict(leaves(record.made_by | {"inputs": {}, "code": record.provenance.code}))


def rows(outcomes: list[ReproducedArtifact]) -> list[dict[str, str]]:
    return [
        {"artifact": f"{repository.partition('/')[2]}@{key[:12]}", "stage": stage, "result": result}
        for _, repository, key, _, stage, _, result, _ in outcomes
    ]
