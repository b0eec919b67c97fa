"""A question as a model was trained to read it, for the Python on its card."""

import json
from typing import Any

from pydantic import ValidationError

from apprentice.envs.base import ToolEnvironment, tool_schemas
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.artifacts.node import Node
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.episodes.episode import prompt

NO_QUESTION = "Put a question here."


def example_prompt(made: Node) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The messages that open an episode, with a question, and the tools."""
    instance = _instance(made.environment())
    seed, question = _question(made)
    if instance is None:
        return [{"role": "user", "content": question}], []
    return prompt(instance._part(seed), question), tool_schemas(instance._part(seed))


def _instance(environment: dict[str, Any] | None) -> ToolEnvironment | None:
    """The environment to look at; None where this code has it no more, or in another version."""
    try:
        return EnvironmentSpec.model_validate(environment).make()
    except ValidationError:
        return None


def _question(made: Node) -> tuple[int, str]:
    """Seed and text of a question of the evaluation, or of GRPO where there is none among the nearest."""
    asked = made.nearest(Questions)
    if (folder := asked.fetch() if asked else None) is None:
        return 0, NO_QUESTION
    with (folder / "questions.jsonl").open() as file:
        used = [row for row in map(json.loads, file) if row["used"]]
    by_purpose = {row["purpose"]: (row["seed"], row["question"]) for row in reversed(used)}  # the first of each
    return by_purpose.get("evaluate") or by_purpose.get("grpo", (0, NO_QUESTION))
