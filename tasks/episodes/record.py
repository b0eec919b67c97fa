"""One played episode as one JSON line: what a dataset of rollouts, and an evaluation, consists of.

In: an episode and what it took. Out: a line that `datasets.load_dataset` reads and TRL's SFTTrainer takes as it stands.
Why no nested optional parts: Arrow types a column by its first rows, so a column is never null in one row and a
structure in the next, and what has a schema of its own (tools, a call's arguments) is JSON text.
"""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """One episode of the teacher."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    seed: int
    """Names the question, together with the environment and its settings."""
    environment: str
    """Name and version of the environment."""
    messages: list[dict[str, Any]]
    """The conversation in OpenAI's format, as it was sent and heard; a call's arguments are JSON text that fits the
    tool's schema."""
    tools: str
    """The tools' schemas, as JSON text."""
    reward: float | None
    """What the environment gave, 0.0 to 1.0; null when the episode failed."""
    correct: str = ""
    """The environment's own answer, where it names one; empty when the episode ended without it."""
    failed_at: str = ""
    """Where the episode failed: "teacher" (no valid call), "environment" (its server was lost), "question" (the
    environment broke on it, and again on a new connection); else empty."""
    cause: str = ""
    """Why it failed."""
    attempts: int = 0
    """Requests to the teacher."""
    asked_again: str = ""
    """Why answers were asked for again, separated by "; "."""
    prompt_tokens: int = 0
    """Tokens that the teacher read, answers that were asked for again included."""
    completion_tokens: int = 0
    """Tokens that the teacher wrote."""
    cached_tokens: int = 0
    """Of the prompt tokens, those that the endpoint had cached."""
    reasoning_tokens: int = 0
    """Of the completion tokens, those that were reasoning."""
    cost_usd: float = 0.0
    """At the recipe's prices."""

    @property
    def is_final(self) -> bool:
        """Whether the episode ended by itself, with a score or without a valid call."""
        return self.failed_at in ("", "teacher")

    def line(self) -> bytes:
        return self.model_dump_json().encode() + b"\n"


class EvaluatedEpisode(BaseModel):
    """One episode of an examination."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    place: int
    """Where it stands: questions in order, each one's samples together."""
    seed: int
    """Names the question, together with the environment and its settings."""
    sample: int
    """0 for the first completion of this question, 1 for the next."""
    question: str
    messages: list[dict[str, Any]]
    """The conversation in OpenAI's format; a call's arguments are JSON text."""
    turns: int
    """The model's turns."""
    reward: float | None
    """What the environment gave, 0.0 to 1.0; null when it broke."""
    broken: str = ""
    """Why the environment broke on what the model did, and again on a new connection; else empty."""
    valid: bool
    """Format compliance: tools were called, and every call was one that the parser of training accepts."""
    causes: list[str]
    """What was wrong with the calls."""
    correct: str
    """The environment's own answer, where the episode came to one."""
    traits: str
    """What kind of question it is, as JSON text, such as {"terms": 3}."""

    @property
    def score(self) -> float:
        """The reward; 0.0 where the environment broke."""
        return self.reward or 0.0

    @property
    def is_right(self) -> bool:
        """Accuracy is reward 1.0; partial credit is none."""
        return self.reward == 1.0

    def line(self) -> bytes:
        return self.model_dump_json().encode() + b"\n"


def with_texts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose calls have their arguments as JSON text."""
    return [
        message | {"tool_calls": [_with_text(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half a character cannot be written
    return call | {"function": call["function"] | {"arguments": text}}


def read_episodes(folder: Path) -> list[EvaluatedEpisode]:
    """An evaluation's episodes, in the order of the questions."""
    with (folder / "episodes.jsonl").open() as file:
        return [EvaluatedEpisode.model_validate_json(line) for line in file]
