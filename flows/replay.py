"""Prepares to reproduce an artifact: its stage, its arguments, the recipe with today's servers.

In: an artifact of a lineage, and overrides for servers. Out: a `Replay`. A record may come from a stranger, so
spending money and running code from a model's repository need a person's consent.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from apprentice.flows.recipe.loading import explain, load_recipe, recipe_text
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.artifacts.foreign import CODE, source_of
from apprentice.tasks.artifacts.lineage import Lineage, Node
from apprentice.tasks.artifacts.types import BaseStudent
from apprentice.tasks.engine.replay import arguments_of, at_present, differences, record_of, stage_of
from apprentice.tasks.engine.stage import Stage
from apprentice.tasks.models.student_model import pinned
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.stages import StudentSpec
from apprentice.tasks.settings.teacher import TeacherSpec


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
