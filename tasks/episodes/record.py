"""One played episode as one JSON line, for datasets of rollouts and for evaluations.

In: an episode and its costs. Out: a line that `datasets.load_dataset` reads and TRL's SFTTrainer accepts unchanged.
Arrow infers a column's type from its first rows. So no column is null in one row and a structure in the next. Values
with their own schema (tools, a call's arguments) are JSON text.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

EXAMINED = "examined"
"""The key of an evaluated episode in the store of an Inspect sample."""


class Record(BaseModel):
    """One episode of the teacher."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    seed: int
    """Identifies the question, together with the environment and its settings."""
    environment: str
    """Name and version of the environment."""
    messages: list[dict[str, Any]]
    """The conversation in OpenAI's format; a call's arguments are JSON text that fits the tool's schema."""
    tools: str
    """The tools' schemas, as JSON text."""
    reward: float | None
    """The environment's reward, 0.0 to 1.0; null when the episode failed."""
    correct: str = ""
    """The environment's own answer, if it gives one; empty when the episode ended without it."""
    failed_at: str = ""
    """Where the episode failed: "teacher" (no valid call), "teacher's endpoint" (it refused the question, such as by a
    content filter), "environment" (its server was lost), "question" (the environment failed on it, and again on a new
    connection); else empty."""
    cause: str = ""
    """Why it failed."""
    attempts: int = 0
    """Requests to the teacher."""
    asked_again: str = ""
    """Reasons for repeated requests, separated by "; "."""
    prompt_tokens: int = 0
    """Prompt tokens of all requests, repeated ones included."""
    completion_tokens: int = 0
    """Completion tokens of all requests."""
    cached_tokens: int = 0
    """Cached tokens among the prompt tokens."""
    reasoning_tokens: int = 0
    """Reasoning tokens among the completion tokens."""
    cost_usd: float = 0.0
    """Cost in USD at the recipe's prices."""
    noted: str = ""
    """What answers held besides the one call that counts, such as a second call; and what the endpoint did not take of
    the requests, such as "without temperature"; separated by "; "."""
    raw: str = ""
    """The endpoint's own messages by their places in the conversation, as JSON text, if the recipe keeps them
    (`collect.raw`)."""
    player: str = ""
    """Who played it, where several did: the teacher, or a model of this project; empty where only the teacher did."""
    verified: str = ""
    """Of rows that were taken from elsewhere: "yes" where the environment gave the reward, "no" where the row is taken
    at its word (`collect.unverified: keep`); empty where no row is unverified."""

    def line(self) -> bytes:
        """The row; without `player`, `raw` or `verified` where it is empty: all rows of a file have equal columns."""
        empty = {name for name in ("player", "raw", "verified") if not getattr(self, name)}
        return self.model_dump_json(exclude=empty or None).encode() + b"\n"


class EvaluatedEpisode(BaseModel):
    """One episode of an evaluation."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    place: int
    """Index in the evaluation: question index × samples + sample."""
    seed: int
    """Identifies the question, together with the environment and its settings."""
    sample: int
    """0 for the first completion of this question, 1 for the next."""
    question: str
    messages: list[dict[str, Any]]
    """The conversation in OpenAI's format; a call's arguments are JSON text."""
    turns: int
    """Number of assistant messages."""
    reward: float | None
    """The environment's reward, 0.0 to 1.0; null when the environment failed."""
    broken: str = ""
    """Why the environment failed on the model's call, and again on a new connection; else empty."""
    valid: bool
    """Format compliance: tools were called, and the training parser accepts every call."""
    causes: list[str]
    """What was wrong with the calls."""
    unfinished: bool = False
    """Whether the model ended it: without a call, or with its turns or tokens. Then it earns the environment's lowest
    reward, partial credit aside."""
    correct: str
    """The environment's own answer; empty when the episode ended without it."""
    traits: str
    """Properties of the question as JSON text, such as {"terms": 3}."""
    scores: str = "{}"
    """The score of each of the environment's reward functions as JSON text, where it has several; else empty."""
    prompt_tokens: int = 0
    """Tokens that the model read, of all turns; 0 where they are not known."""
    completion_tokens: int = 0
    """Tokens that the model wrote, of all turns; 0 where they are not known."""

    @property
    def score(self) -> float:
        """The reward; 0.0 when the environment failed."""
        return self.reward or 0.0

    @property
    def is_right(self) -> bool:
        """Whether the reward is 1.0; partial credit does not count."""
        return self.reward == 1.0

    def line(self) -> bytes:
        return self.model_dump_json().encode() + b"\n"


def with_arguments(messages: list[dict[str, Any]], form: Callable[[dict[str, Any]], Any]) -> list[dict[str, Any]]:
    """The messages, with `form(call)` as the arguments of each call."""

    def changed(call: dict[str, Any]) -> dict[str, Any]:
        return call | {"function": call["function"] | {"arguments": form(call)}}

    return [
        message | {"tool_calls": list(map(changed, message["tool_calls"]))} if message.get("tool_calls") else message
        for message in messages
    ]


def as_text(call: dict[str, Any]) -> str:
    """A call's arguments as JSON text."""
    arguments = call["function"]["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # lone surrogates cannot be encoded


def read_episodes(folder: Path) -> list[EvaluatedEpisode]:
    """An evaluation's episodes, in the order of the questions."""
    with (folder / "episodes.jsonl").open() as file:
        return [EvaluatedEpisode.model_validate_json(line) for line in file]
