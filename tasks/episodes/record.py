"""One played episode as one JSON line.

In: an episode and its costs. Out: a line that `datasets.load_dataset` reads and TRL's SFTTrainer accepts unchanged.
Arrow infers a column's type from its first rows. So no column is null in one row and a structure in the next. Values
with their own schema (tools, a call's arguments) are JSON text. An imported turn that carries no loss has `weight` 0.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from apprentice.envs.reward import is_right
from apprentice.tasks.episodes.texts import read_json

Message = dict[str, Any]
"""A message of an episode, in OpenAI's format."""

STORED_EPISODE = "examined"
"""The key of an evaluated episode in the store of an Inspect sample."""


DATASET = "the dataset"
"""The player of rows that were taken from a dataset."""


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
    """Where the episode failed: "teacher" (no valid call, or no verdict on a row that was taken from elsewhere),
    "teacher's endpoint" (it refused the question, such as by a content filter), "environment" (its server was lost),
    "question" (the environment failed on it, and again on a new connection); else empty."""
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
    """Who played it, where several did: the teacher, a model of this project, or whoever made the dataset; empty where
    only the teacher did."""
    verified: str = ""
    """Of rows that were taken from elsewhere: "yes" where the environment gave the reward, "person" or "teacher" where
    a person or a teacher judged the answer, "no" where nobody did (`collect.unverified`); empty where no row is
    unverified."""

    takes_text: bool = False
    """Whether the environment scores a last text without a call (`say`); left out where it does not."""

    def line(self) -> bytes:
        """The row; without `player`, `raw`, `verified` or `takes_text` where it is empty: all rows of one environment
        have equal columns."""
        empty = {name for name in ("player", "raw", "verified", "takes_text") if not getattr(self, name)}
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
    def broke_off_after(self) -> str:
        """The tool of the last call of an episode that the model ended by a turn without one; empty for others."""
        turns = turns_of(self.messages)
        if not self.unfinished or not turns or turns[-1].get("tool_calls"):
            return ""
        called = [call["function"]["name"] for message in turns for call in message.get("tool_calls") or []]
        return called[-1] if called else ""

    @property
    def last_text(self) -> str:
        """The text that ended it, where the environment scored one; else empty."""
        return self.messages[-1]["content"] if self.valid and ends_in_text(self.messages) else ""

    @property
    def score(self) -> float:
        """The reward, without the rounding of a right one; 0.0 when the environment failed."""
        return 1.0 if self.is_right else self.reward or 0.0

    @property
    def is_right(self) -> bool:
        """Whether the reward is 1.0; partial credit does not count."""
        return is_right(self.reward)

    def line(self) -> bytes:
        return self.model_dump_json().encode() + b"\n"


def turns_of(messages: Iterable[Message]) -> list[Message]:
    """The messages of the assistant."""
    return [message for message in messages if message["role"] == "assistant"]


def ends_in_text(messages: list[Message]) -> bool:
    """Whether the last message is an assistant's text without a call."""
    return bool(messages) and messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls")


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


def arguments_of(call: dict[str, Any]) -> Any:
    """A call's arguments, read from their JSON text; the text itself where it is none."""
    given = call["function"]["arguments"]
    return read_json(given, given) if isinstance(given, str) else given


def read_episodes(folder: Path) -> list[EvaluatedEpisode]:
    """An evaluation's episodes, in the order of the questions."""
    with (folder / "episodes.jsonl").open() as file:
        return [EvaluatedEpisode.model_validate_json(line) for line in file]
