"""Reads from an artifact's record which stage made it and with which arguments.

In: an artifact of a lineage. Out: the stage, its arguments, and the differences between this machine and the original.
Why so strict: a record may come from a stranger and must not choose imports or calls.
"""

import importlib
import inspect
import re
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from apprentice.envs.catalog import EnvironmentSpec, environment_class
from apprentice.envs.source import digest_of_script
from apprentice.tasks.artifacts.lineage import Node
from apprentice.tasks.artifacts.provenance import ArtifactRecord, code_version
from apprentice.tasks.engine.stage import Stage
from apprentice.tasks.reporting.errors import Stop

STAGE = re.compile(r"(apprentice\.tasks\.\w+):(\w+)")
"""The stages that a record may name: those in this package's modules."""
MOVED = {
    "apprentice.tasks.rungs": "apprentice.tasks.questions",
    "apprentice.tasks.fresh": "apprentice.tasks.questions",
    "apprentice.tasks.filter": "apprentice.tasks.sft_data",
    "apprentice.tasks.mix": "apprentice.tasks.sft_data",
    "apprentice.tasks.lengths": "apprentice.tasks.sft_data",
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
    except ModuleNotFoundError:
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
        if (here := known._version_under(under)) != environment.get("version"):
            found.append(f"{name} is version {here} here; {node.ref} was made in version {environment.get('version')}.")
        if (sources := known._code_under(under)) != environment.get("code", sources):
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
