"""`apprentice reproduce`: makes an artifact again from its record, and reports whether the result is the same.

In: a lineage. Out: for its artifact, or also for its ancestors, whether data or weights are the same, and which files
differ. Each is made from its recorded inputs, in a temporary store.

First reads from the record which stage made it and with which arguments, and what differs between this machine and the
original. Why so strict: a record may come from a stranger and must not choose imports or calls.
"""

import importlib
import inspect
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple, get_type_hints

from prefect import flow
from prefect.settings import PREFECT_DEFAULT_RESULT_STORAGE_BLOCK, PREFECT_LOCAL_STORAGE_PATH, temporary_settings
from pydantic import TypeAdapter, ValidationError

from apprentice.envs.catalog import EnvironmentSpec, environment_class
from apprentice.envs.source import digest_of_script
from apprentice.flows.recipe.loading import explain, load_recipe, recipe_text
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime.servers import RunServers
from apprentice.tasks.artifacts.foreign import CODE, source_of
from apprentice.tasks.artifacts.lineage import Lineage, Node
from apprentice.tasks.artifacts.local import LocalStore, digest_of
from apprentice.tasks.artifacts.types import CARD, Artifact, ArtifactRecord, BaseStudent
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import Stage, code_version
from apprentice.tasks.models.student_model import pinned
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.endpoint import TeacherSpec
from apprentice.tasks.settings.spec import StudentSpec

STAGE = re.compile(r"(apprentice\.tasks\.\w+):(\w+)")
"""The stages that a record may name: those in this package's modules."""
MOVED = {
    "apprentice.tasks.rungs": "apprentice.tasks.questions",
    "apprentice.tasks.fresh": "apprentice.tasks.questions",
    "apprentice.tasks.filter": "apprentice.tasks.sft",
    "apprentice.tasks.mix": "apprentice.tasks.sft",
    "apprentice.tasks.lengths": "apprentice.tasks.sft",
    "apprentice.tasks.sft_data": "apprentice.tasks.sft",
    "apprentice.tasks.verdict": "apprentice.tasks.judge",
    "apprentice.tasks.gate": "apprentice.tasks.judge",
    "apprentice.tasks.release": "apprentice.tasks.judge",
}
"""Module names in records of older code, and the modules' current names."""


def stage_of(node: Node) -> Stage[..., Any]:
    """The stage that made an artifact. Raises Stop when the record names no stage of this code."""
    record = record_of(node)
    named = record.provenance.stage
    if not named or not record.provenance.recipe:
        raise Stop(
            f"{node.ref} was made by older code, which recorded neither its stage nor its recipe.",
            "`apprentice lineage` shows its record; run its recipe again to make it with this code.",
        )
    if not (parts := STAGE.fullmatch(named)):
        raise Stop(
            f"{node.ref} names {named} as its stage, which is not in apprentice.tasks: it was not run.",
            "Check where that artifact comes from.",
        )
    try:
        stage = getattr(importlib.import_module(MOVED.get(parts[1], parts[1])), parts[2], None)
    except ModuleNotFoundError as missing:
        if not str(missing.name).startswith("apprentice"):  # a package that the stage's module imports
            raise
        stage = None
    if not isinstance(stage, Stage) or stage.produces.__name__ != record.kind:
        raise Stop(f"This code has no stage {named} that makes {record.kind}.", _other_code(record))
    return stage


def arguments_of(stage: Stage[..., Any], node: Node) -> dict[str, Any]:
    """The stage's arguments by name: settings parsed by the body's type hints, artifacts as references. Operational
    settings, which no record contains, have their defaults. Raises Stop when the arguments do not fit this code."""
    record = record_of(node)
    settings = record.made_by["settings"]
    hints = get_type_hints(stage.body)
    arguments: dict[str, Any] = {}
    inputs = node.inputs
    parameters = list(inspect.signature(stage.body).parameters.values())[1:]
    for parameter in parameters:
        name = parameter.name
        within = {which.partition(".")[2]: each for which, each in inputs.items() if which.startswith(f"{name}.")}
        if name in inputs:
            arguments[name] = inputs[name].artifact
        elif within:
            arguments[name] = {which: each.artifact for which, each in within.items()}
        elif name in settings:
            arguments[name] = _setting(hints[name], settings[name], name, record)
        elif parameter.default is inspect.Parameter.empty:
            raise Stop(f"{stage.name} needs {name} here, which {node.ref} did not record.", _other_code(record))
    if unknown := {*settings, *(name.partition(".")[0] for name in inputs)} - {each.name for each in parameters}:
        raise Stop(f"{stage.name} has no argument {', '.join(sorted(unknown))} here.", _other_code(record))
    return arguments


def differences(stage: Stage[..., Any], node: Node, served_here: bool) -> list[str]:
    """Differences that may change the result, as sentences: versions of stage, environment, packages and code.

    Args:
        served_here: Whether the environment's server is started here, from the installed code.
    """
    record = record_of(node)
    made_by, code = record.made_by, record.provenance.code
    found = []
    if made_by["version"] != stage.version:
        found.append(f"{stage.name} is version {stage.version} here; version {made_by['version']} made {node.ref}.")
    environment = made_by["settings"].get("environment") or {}
    if name := environment.get("name"):
        known, under = environment_class(name), environment.get("settings") or {}
        if (here := known.version_under(under)) != environment.get("version"):
            found.append(f"{name} is version {here} here; {node.ref} was made in version {environment.get('version')}.")
        if (sources := known.code_under(under)) != environment.get("code", sources):
            found.append(f"{name} has the code {sources} here; {node.ref} was made with {environment['code']}.")
        if environment.get("revision") and served_here:
            found.append(
                f"{name} is the installed one here; {node.ref} was made in revision {environment['revision']}."
            )
    teachers = [each for each in made_by["settings"].values() if isinstance(each, dict)]
    if any(
        each.get("scripted_error_rate") is not None and each.get("script") != digest_of_script() for each in teachers
    ):
        found.append(f"The scripted teacher errs in other ways here than when {node.ref} was made.")
    for package, there in made_by.get("packages", {}).items():
        if there != (here := _installed(package)):
            found.append(f"{package} is {here} here; {there} made {node.ref}.")
    if code != code_version():
        found.append(f"The code is {code_version()} here; {node.ref} was made by {code}.")
    return found


def record_of(node: Node) -> ArtifactRecord:
    """The artifact's record. Raises Stop when the artifact no longer exists."""
    if node.record is None:
        raise Stop(
            f"{node.ref}, revision {node.named.revision[:12]}, no longer exists and cannot be reproduced.",
            "Name another store that has it with --store or --hub.",
        )
    return node.record


def at_present(environment: dict[str, Any]) -> dict[str, Any]:
    """The environment's settings without version and code, so that the installed ones apply."""
    return {name: value for name, value in environment.items() if name not in ("version", "code")}


def _setting(hint: Any, value: Any, name: str, record: ArtifactRecord) -> Any:
    try:
        return TypeAdapter(hint).validate_python(at_present(value) if hint is EnvironmentSpec else value)
    except ValidationError as error:
        raise Stop(
            f"The setting {name} does not fit this code: {error.errors()[0]['msg']}", _other_code(record)
        ) from None


def _installed(package: str) -> str:
    try:
        return installed(package)
    except PackageNotFoundError:
        return "not installed"


def _other_code(record: ArtifactRecord) -> str:
    return f"Use the code that made it: {record.provenance.code}."


class Replay(NamedTuple):
    node: Node
    stage: Stage[..., Any]
    arguments: dict[str, Any]
    recipe: Recipe
    differences: list[str]
    """Differences between this environment and the one that produced it."""


def replay_of(lineage: Lineage, node: Node, overrides: list[str], folder: Path) -> Replay:
    """Return how to reproduce an artifact. Raises Stop if it cannot be reproduced."""
    stage = stage_of(node)
    arguments = arguments_of(stage, node)
    for name, value in arguments.items():
        if isinstance(value, StudentSpec):
            arguments[name] = _in_its_folder(value, node)
    teacher = _teacher_among(arguments)
    recipe = _recipe_of(node, overrides, folder, arguments[teacher] if teacher else None)
    if teacher:
        arguments[teacher] = recipe.teacher  # with the overrides of its endpoint and key
    repository = lineage.store.root / f"{stage.produces.repo_type}s" / node.named.repository
    if (repository / "snapshots" / node.named.revision).is_dir():
        lineage.store.fetch(node.artifact)  # verifies the files: the result is compared with the record
    return Replay(node, stage, arguments, recipe, differences(stage, node, served_here=recipe.server.is_local))


def pinned_arguments(replay: Replay) -> dict[str, Any]:
    """Return the arguments with the student pinned to its current commit or content.

    Raises Stop if the record's student no longer exists.
    """
    arguments = dict(replay.arguments)
    for name, value in arguments.items():
        if isinstance(value, StudentSpec):
            if value.content and value.model is None:
                raise Stop(
                    f"{replay.node.ref} was made from a folder whose path is not recorded.", "It cannot be reproduced."
                )
            arguments[name] = pinned(value)
    return arguments


def ask_first(lineage: Lineage, replays: list[Replay]) -> None:
    """Raise Stop for anything that needs a person's consent: records and artifacts may come from a stranger."""
    found = [each for replay in replays for each in (*_costs(replay), *_foreign_code(lineage, replay))]
    if found:
        raise Stop("\n".join(found), "Pass --yes to allow it.")


def _costs(replay: Replay) -> Iterator[str]:
    teacher, counts = replay.recipe.teacher, record_of(replay.node).counts
    if teacher and _teacher_among(replay.arguments) is not None and teacher.scripted_error_rate is None:
        cost = counts.get("cost_usd")
        spent = f"they cost {cost:.2f} USD" if cost else "their price was not recorded"
        yield (
            f"Reproducing {replay.node.ref} buys {counts.get('episodes', counts.get('n'))} episodes again, from "
            f"{teacher.model} at {teacher.base_url or 'OpenAI'} ({spent}); its answers may differ."
        )


def _foreign_code(lineage: Lineage, replay: Replay) -> Iterator[str]:
    for student in (value for value in replay.arguments.values() if isinstance(value, StudentSpec)):
        if student.trust_remote_code or not student.safetensors_only:
            name = source_of(student)
            yield f"Reproducing {replay.node.ref} loads {name} in a way that can run its code."
    for node in replay.node.inputs.values():
        if CODE in record_of(node).files or lineage.is_pickled(node):
            origin = ", ".join(str(source_of(each)) for each in students_of(lineage)) or "an unknown source"
            yield f"Reproducing {replay.node.ref} loads {node.ref} in a way that can run code from {origin}."


def students_of(lineage: Lineage) -> list[StudentSpec]:
    """Return the students of a lineage whose code or pickled weights were trusted when they were trained."""
    found = []
    for node in lineage.nodes.values():
        if node.kind is BaseStudent and node.record is not None:
            try:
                found.append(_in_its_folder(StudentSpec.model_validate(node.record.made_by["settings"]["spec"]), node))
            except (ValidationError, KeyError):
                continue  # a record of older code, or a stranger's
    return [each for each in found if each.trust_remote_code or not each.safetensors_only]


def _in_its_folder(student: StudentSpec, node: Node) -> StudentSpec:
    """Return a student pinned by content with the folder that the recipe names."""
    named = record_of(node).provenance.recipe.get("student", {}).get("model")
    return student.model_copy(update={"model": named}) if student.content and isinstance(named, str) else student


def _recipe_of(node: Node, overrides: list[str], folder: Path, teacher: TeacherSpec | None) -> Recipe:
    """Return the recorded recipe with the teacher that was used, and with the overrides' servers."""
    record = record_of(node)
    recorded = dict(record.provenance.recipe)
    recorded["environment"] = at_present(recorded.get("environment", {}))
    recorded["guards"] = [
        guard | {"environment": at_present(guard.get("environment", {}))} for guard in recorded.get("guards", [])
    ]
    if teacher is not None:
        recorded["teacher"] = teacher.in_made_by()
    try:
        before = Recipe.model_validate(recorded)
    except ValidationError as error:
        raise Stop(
            f"The recipe of {node.ref} is not valid for this code:\n{explain(error)}",
            f"Use the code that made it: {record.provenance.code}.",
        ) from None
    file = folder / "recorded-recipe.yaml"
    file.write_text(recipe_text(recorded))
    after = load_recipe(file, overrides)
    moved = before.teacher and before.teacher.model_copy(
        update={"base_url": after.teacher.base_url if after.teacher else None}
    )
    if after.for_record() != before.model_copy(update={"teacher": moved}).for_record():
        raise Stop(
            f"--set {' --set '.join(overrides)} would make a different artifact.",
            "Change only where servers run, their speed and their price: server.…, teacher.base_url.",
        )
    return after


def _teacher_among(arguments: dict[str, Any]) -> str | None:
    return next((name for name, value in arguments.items() if isinstance(value, TeacherSpec)), None)


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
