"""One played episode as one JSON line, and the other JSON lines that stages read and write.

In: an episode and its costs. Out: a line that `datasets.load_dataset` reads and TRL's SFTTrainer accepts unchanged.
Arrow infers a column's type from its first rows. So no column is null in one row and a structure in the next. Values
with their own schema (tools, a call's arguments) are JSON text. An imported turn that carries no loss has `weight` 0.

A journal has one line per finished episode of a running collection or evaluation, whose process may be killed.
questions.jsonl has purpose, seed, question, and whether it is used; learned.jsonl stage, seed and question of a
checkpoint's training episodes.
"""

import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from apprentice.envs.reward import is_right
from apprentice.tasks.episodes.texts import read_json
from apprentice.tasks.episodes.texts import same_text as same_text
from apprentice.tasks.files.lease import held
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import Purpose

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


class JsonLines:
    """An append-only file of lines; appended lines survive a kill of the process."""

    def __init__(self, path: Path):
        self.path = path
        path.touch()
        with path.open("r+b") as file:
            whole = sum(len(line) for line in file if line.endswith(b"\n"))
            file.truncate(whole)

    def __iter__(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            yield from file

    def append(self, *lines: bytes) -> None:
        with self.path.open("ab") as file:
            file.writelines(lines)


def as_line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def read_rows(path: Path) -> list[dict[str, Any]]:
    return list(map(json.loads, path.read_bytes().splitlines()))


class Journal:
    """An open journal. Uses 16 bytes of memory per episode.

    Args:
        numbered_by: The record field with its number.
        say: Called with a warning, where the file is not as one process writes it.
        check: Called before each change; raises where another process may change the file.
    """

    def __init__(
        self, path: Path, numbered_by: str, say: Callable[[str], None], check: Callable[[], None] = lambda: None
    ):
        self._lines = JsonLines(path)
        self._say = say
        self._numbered_by = numbered_by
        self.check = check
        self._read()

    def _read(self) -> None:
        """Of an episode that two processes have played the first counts; what cannot be read is played again."""
        self._numbers = array("q")
        self._offsets = array("q")
        self._end = 0
        known: set[int | None] = {None}
        twice = unreadable = 0
        for line in self._lines:
            number = self._number(line)
            twice += number is not None and number in known
            unreadable += number is None
            self._index(None if number in known else number, line)
            known.add(number)
        if twice:
            self._say(
                f"Episodes that are played twice in {self._lines.path}: {twice:,}. Two processes wrote it at the same "
                "time; the first of each counts."
            )
        if unreadable:
            self._say(f"Unreadable lines in {self._lines.path}: {unreadable:,}. Their episodes are played again.")

    def _number(self, line: bytes) -> int | None:
        try:
            number = json.loads(line)[self._numbered_by]
        except (ValueError, TypeError, KeyError):
            return None
        return number if isinstance(number, int) else None

    def __len__(self) -> int:
        return len(self._numbers)

    def done(self) -> set[int]:
        """The numbers of the finished episodes."""
        return set(self._numbers)

    def append(self, record: Record | EvaluatedEpisode) -> None:
        """Writes and flushes one episode, so that a killed process does not lose it."""
        line = record.line()
        self.check()
        self._lines.append(line)
        self._index(getattr(record, self._numbered_by), line)

    def in_order(self) -> Iterator[bytes]:
        """The lines in the order of their numbers, one at a time."""
        with self._lines.path.open("rb") as file:
            for position in sorted(range(len(self)), key=self._numbers.__getitem__):
                file.seek(self._offsets[position])
                yield file.readline()

    def forget(self, numbers: set[int]) -> None:
        """Removes episodes, so that they are played again."""
        self.check()
        half = self._lines.path.with_suffix(".half")
        with half.open("wb") as file:
            file.writelines(line for line in self._lines if self._number(line) not in {None, *numbers})
        half.replace(self._lines.path)
        self._read()

    def _index(self, number: int | None, line: bytes) -> None:
        if number is not None:
            self._numbers.append(number)
            self._offsets.append(self._end)
        self._end += len(line)


@contextmanager
def journal(
    folder: Path, initial_settings: dict[str, Any], say: Callable[[str], None], numbered_by: str = "seed"
) -> Iterator[Journal]:
    """Opens and locks the journal in `folder`. Raises Stop when it is locked or was started under other settings."""

    def busy() -> None:
        raise Stop("Another run is playing the same episodes.", "Wait for it to end; this run then uses its result.")

    with held(folder / "lock", busy, say) as lease:
        check_initial_settings(folder / "settings.json", initial_settings)
        yield Journal(folder / "episodes.jsonl", numbered_by, say, lease.check)


def check_initial_settings(path: Path, now: dict[str, Any]) -> None:
    """Saves the settings at the first call. Raises Stop, with the difference, when the saved settings differ."""
    digest = hashlib.sha256(json.dumps(now, sort_keys=True).encode()).hexdigest()
    if not path.exists():
        half = path.with_suffix(".half")
        half.write_text(json.dumps({"digest": digest, "settings": now}, indent=2, ensure_ascii=False) + "\n")
        half.replace(path)
        return
    initial = json.loads(path.read_text())
    if initial["digest"] != digest:
        difference = "\n".join(f"  {line}" for line in _differences(initial["settings"], now))
        raise Stop(
            f"These episodes were started under other settings:\n{difference}",
            f"Restore those settings, or remove {path.parent} to start over.",
        )


def _differences(then: Any, now: Any, path: str = "") -> Iterator[str]:
    if isinstance(then, dict) and isinstance(now, dict):
        for name in sorted(then.keys() | now.keys()):
            yield from _differences(then.get(name), now.get(name), f"{path}.{name}".lstrip("."))
    elif then != now:
        yield f"{path}: {json.dumps(then, ensure_ascii=False)} → {json.dumps(now, ensure_ascii=False)}"


LEARNED = "learned.jsonl"


def write_learned(out: Path, stage: str, questions: Iterable[tuple[int, str]], before: Path | None = None) -> None:
    """Writes learned.jsonl: the rows of the initial checkpoint `before`, then these seeds and questions of `stage`."""
    rows = read_learned(before) if before else []
    rows += [{"stage": stage, "seed": seed, "question": question} for seed, question in questions]
    (out / LEARNED).write_bytes(b"".join(map(as_line, rows)))


class TrainedQuestions:
    """The questions that a training has used so far, by seed, in a file that survives an interruption."""

    def __init__(self, path: Path):
        self._lines = JsonLines(path)
        self._questions: dict[int, str] = dict(map(json.loads, self._lines))

    def note(self, questions: Iterable[tuple[int, str]]) -> None:
        new = {seed: text for seed, text in questions if seed not in self._questions}
        self._questions |= new
        self._lines.append(*map(as_line, new.items()))

    def items(self) -> Iterable[tuple[int, str]]:
        return self._questions.items()


def read_learned(checkpoint: Path) -> list[dict[str, Any]]:
    """The rows of a checkpoint: stage, seed, question; empty for a student that was not trained here."""
    path = checkpoint / LEARNED
    return read_rows(path) if path.exists() else []


def write_questions(out: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Writes one line per row: purpose, seed, question, used."""
    (out / "questions.jsonl").write_bytes(b"".join(map(as_line, rows)))


def read_questions(folder: Path, purpose: str) -> list[dict[str, Any]]:
    """The rows of one purpose: seed, question, and whether it is used."""
    return [row for row in read_rows(folder / "questions.jsonl") if row["purpose"] == purpose]


def held_out_texts(folder: Path) -> set[str]:
    """The normalized questions of the evaluation that training may not have: none where there are so few questions that
    both ask the same ones."""
    evaluated, trained = (
        {same_text(row["question"]) for row in used_questions(folder, purpose)}
        for purpose in (Purpose.EVALUATE, Purpose.TRAIN)
    )
    return evaluated - trained


def used_questions(folder: Path, purpose: str) -> list[dict[str, Any]]:
    """The rows of one purpose that are asked."""
    return [row for row in read_questions(folder, purpose) if row["used"]]
