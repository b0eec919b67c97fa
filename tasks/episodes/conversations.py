"""Conversations in other tools' formats: reads them as messages in OpenAI's format, and writes rollouts in them.

In, to read: one row as a dictionary, and which of its columns mean what. Out: a `Conversation`.
Reads `messages` (TRL, OpenAI, ShareGPT), `prompt` with `completion` (TRL, verifiers), the records of `openenv
collect`, traces of verifiers, samples of Inspect's logs and ATIF trajectories. Calls may be nested or flat, their
arguments JSON or text, or written as <tool_call> into a text; notations.py knows the other notations.

In, to write: records, a folder. Out: files of TRL's conversational format, of ATIF, or as `openenv collect` writes
them, which are read back as the same rollouts. An episode that failed has no reward and no end, so it is not exported.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from apprentice.tasks.episodes.notations import THINKING, NotAConversation, calls_in, carries_loss, read_call
from apprentice.tasks.episodes.record import STORED_EPISODE, EvaluatedEpisode, Record, as_line, ends_in_text
from apprentice.tasks.episodes.trl_rows import exact_messages, row_writer
from apprentice.tasks.settings.spec import Column

ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "developer": "system", "function": "tool"}
ROLES |= {"observation": "tool", "function_call": "assistant"}
"""Other names of the four roles."""
GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Inspect's letters for correct, partly correct, incorrect and no answer."""
EXACT = "openai_message"
"""The key in `extra` of an ATIF step under which an export keeps a message that a step cannot hold exactly."""
ROLLOUT = "rollout"
"""The key in `extra` under which an export keeps the other fields of a rollout."""


class Call(BaseModel):
    """One call of a tool."""

    id: str | None = None
    name: str
    arguments: str
    """JSON text."""
    as_object: bool = False
    """Whether the row has them as an object, which Arrow fills with null."""

    @model_validator(mode="before")
    @classmethod
    def _of_any_form(cls, given: Any) -> Any:
        if isinstance(given, str):
            given = read_call(given)
        if not isinstance(given, dict):
            return given
        inner = given["function"] if isinstance(given.get("function"), dict) else given
        names = (inner.get("name"), given.get("function_name"), given.get("function"))
        arguments = next((inner[name] for name in ("arguments", "args", "parameters") if name in inner), {})
        return {
            "id": given.get("id") or given.get("tool_call_id"),
            "name": next((name for name in names if isinstance(name, str)), None),
            "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False),
            "as_object": not isinstance(arguments, str),
        }

    def as_message(self) -> dict[str, Any]:
        """The call as a message of OpenAI's format has it."""
        function = {"name": self.name, "arguments": self.arguments}
        return ({"id": self.id} if self.id else {}) | {"type": "function", "function": function}


class Turn(BaseModel):
    """One message. Reasoning beside it (`reasoning_content`) is not read: it is no part of what a student says. A call
    in a thought within the text is none."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    tool_calls: list[Call] = []
    tool_call_id: str | None = None
    carries_loss: bool = True

    @model_validator(mode="before")
    @classmethod
    def _of_any_form(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        named, content = given.get("role", given.get("from")), given.get("content", given.get("value"))
        role = ROLES.get(named, named) if isinstance(named, str) else named
        learned = role != "assistant" or carries_loss(given)
        calls = given.get("tool_calls") or ([given["function_call"]] if given.get("function_call") else [])
        if isinstance(content, list):
            content = "".join(map(_text_of, content))
        if role == "assistant" and not calls and isinstance(content, str):
            if named == "function_call":  # LLaMA-Factory's turn of calls alone
                read = read_call(content)
                calls, content = read if isinstance(read, list) else [read], None
            elif (found := calls_in(content))[0]:
                calls, content = found
        called = {"tool_calls": calls, "tool_call_id": given.get("tool_call_id")}
        return {"role": role, "content": content, "carries_loss": learned} | called

    def as_message(self) -> dict[str, Any]:
        """The turn as a message of an assistant in OpenAI's format."""
        calls = [call.as_message() for call in self.tool_calls]
        weight = {} if self.carries_loss else {"weight": 0}
        return {"role": self.role, "content": self.content} | ({"tool_calls": calls} if calls else {}) | weight


class Result(BaseModel):
    """What a call of an ATIF step got for an answer."""

    source_call_id: str | None = None
    content: Any = None


class Observation(BaseModel):
    """The answers to an ATIF step."""

    results: list[Result] = []


class Step(BaseModel):
    """One step of an ATIF trajectory."""

    source: Literal["system", "user", "agent"]
    message: Any = ""
    tool_calls: list[Call] = []
    observation: Observation = Observation()
    extra: dict[str, Any] = {}

    def messages(self) -> list[dict[str, Any]]:
        """The step's message and the answers to its calls."""
        role = "assistant" if self.source == "agent" else self.source
        said = {"role": role, "content": self.message, "tool_calls": [call.as_message() for call in self.tool_calls]}
        answers = [
            {"role": "tool", "content": each.content, "tool_call_id": each.source_call_id}
            for each in (self.observation.results if self.source == "agent" else [])
        ]
        exact = self.extra.get(EXACT)
        return [exact if isinstance(exact, dict) else said, *answers]


class Trajectory(BaseModel):
    """An ATIF trajectory: its steps, and what else of it is read."""

    schema_version: str = Field(pattern=r"^ATIF-v1\.")
    steps: list[Step]
    agent: dict[str, Any] = {}
    extra: dict[str, Any] = {}


class Node(BaseModel):
    """One message of a trace of verifiers, and the place of the one before it."""

    message: Any
    parent: int | None = None


class Score(BaseModel):
    """One reward of a trace of verifiers."""

    score: float
    weight: float = 1.0


class Trace(BaseModel):
    """What one agent did in an episode of verifiers (traces.jsonl of 0.4)."""

    nodes: list[Node]
    rewards: dict[str, Score | None] = {}
    tools: Any = None

    def conversation(self) -> dict[str, Any]:
        """The messages of a trace without branches, and its weighted rewards. Raises NotAConversation."""
        if any(node.parent != (at - 1 if at else None) for at, node in enumerate(self.nodes)):
            raise NotAConversation("traces.0.nodes", "the trace has branches")
        scores = [each.score * each.weight for each in self.rewards.values() if each is not None]
        messages = [node.message for node in self.nodes]
        return {"messages": messages, "tools": self.tools, "reward": sum(scores) if scores else None}


class Conversation(BaseModel):
    """A row that could be read. Nothing of it is checked against an environment."""

    messages: list[Turn]
    tools: Any = None
    """The tools' schemas as JSON or its text; None where the row has none."""
    reward: float | None = Field(default=None, allow_inf_nan=False)
    seed: int | None = Field(default=None, ge=0)
    environment: str = ""
    """Name and version of the environment, where a rollout of this project names it."""
    about: dict[str, Any] = {}
    """The other fields of a rollout of this project."""

    def said(self) -> list[tuple[str, str]]:
        """The field and the text of each turn of an assistant."""
        turns = enumerate(self.messages)
        return [(f"messages.{at}.content", turn.content or "") for at, turn in turns if turn.role == "assistant"]

    @field_validator("messages", mode="before")
    @classmethod
    def _may_be_text(cls, given: Any) -> Any:
        return json.loads(given) if isinstance(given, str) and given.startswith("[") else given

    @field_validator("reward", mode="before")
    @classmethod
    def _is_no_truth_value_or_letter(cls, given: Any) -> Any:
        return GRADES.get(given, given) if isinstance(given, str) else given


def conversation_of(row: Any, columns: dict[Column, str] | None = None) -> Conversation:
    """The conversation of a row. Raises NotAConversation.

    Args:
        columns: The row's own names of columns, with dots for what is nested, such as {"reward": "info.score"}.
    """
    if not isinstance(row, dict):
        raise NotAConversation("row", f"is {type(row).__name__}, not an object with columns")
    named: dict[str, Any] = {name: _at(row, at) for name, at in (columns or {}).items()}
    hidden = {"messages", "conversations"} if named.keys() & {"prompt", "completion"} else set()
    try:
        given = _given({name: value for name, value in row.items() if name not in hidden} | named)
        return Conversation.model_validate(given | {name: named[name] for name in named.keys() & given.keys()})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        cause = first["msg"].removeprefix("Value error, ")
        raise NotAConversation(".".join(map(str, first["loc"])) or "row", cause) from None


def _given(row: dict[str, Any]) -> dict[str, Any]:
    if "steps" in row and "schema_version" in row:
        read = Trajectory.model_validate(row)
        messages = [message for step in read.steps for message in step.messages()]
        tools = read.agent.get("tool_definitions")
        return {"messages": messages, "tools": tools, **_named(read.extra), **_rollout(read.extra)}
    if "episode_id" in row and "tool_trace" in row:
        task, extra = row.get("task"), row.get("extra") or {}
        named = _named(task if isinstance(task, dict) else {"seed": task} if isinstance(task, int) else {})
        return {"messages": row.get("messages"), "reward": row.get("reward"), **named, **_rollout(extra)}
    if isinstance(traces := row.get("traces"), list) and "env" in row:
        if len(traces) != 1:
            raise NotAConversation("traces", f"{len(traces)} agents play, and an episode here has one player")
        return Trace.model_validate(traces[0]).conversation()
    if "scores" in row and "messages" in row:
        return _of_inspect(row)
    given = {name: row[name] for name in ("tools", "reward", "seed") if name in row} | _rollout(row)
    return given | {"messages": _messages_of(row)}


def _messages_of(row: dict[str, Any]) -> Any:
    if "messages" in row:
        return exact_messages(row)
    if "conversations" in row:
        return row["conversations"]
    if "prompt" in row and "completion" in row:
        prompt, said = row["prompt"], row["completion"]
        prompt = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        said = [{"role": "assistant", "content": said}] if isinstance(said, str) else said
        return [*prompt, *said] if isinstance(prompt, list) and isinstance(said, list) else prompt
    raise NotAConversation("messages", f"no such column; the row has {', '.join(row) or 'none'}")


def _named(given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in ("seed", "reward") if name in given}


def _rollout(given: dict[str, Any]) -> dict[str, Any]:
    """What a rollout of this project holds beside its conversation; nothing for rows of others."""
    own = given.get(ROLLOUT, given)
    if not isinstance(own, dict) or not {"environment", "seed", "tools"} <= own.keys():
        return {}
    read = {"messages", "tools", "seed", "reward", "environment"}
    about = {name: value for name, value in own.items() if name in Record.model_fields and name not in read}
    return {name: own[name] for name in read - {"messages"} if name in own} | {"about": about}


def _of_inspect(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample of Inspect's log: as this project recorded it, or its messages and its first score."""
    if isinstance(stored := (sample.get("store") or {}).get(STORED_EPISODE), dict):
        own = EvaluatedEpisode.model_validate(stored)
        return {"messages": own.messages, "reward": own.reward, "seed": own.seed}
    scores = [each.get("value") for each in (sample.get("scores") or {}).values() if isinstance(each, dict)]
    seed = (sample.get("metadata") or {}).get("seed")
    return {"messages": sample["messages"], "reward": scores[0] if scores else None, "seed": seed}


def _text_of(part: Any) -> str:
    if isinstance(part, dict) and part.get("type") in THINKING:
        return ""
    text = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
    if not isinstance(text, str):
        raise ValueError(f"a part is no text: {str(part)[:80]}")
    return text


def _at(row: dict[str, Any], path: str) -> Any:
    found: Any = row
    for name in [path] if path in row else path.split("."):
        if not isinstance(found, dict) or name not in found:
            raise NotAConversation(path, f"no such column; the row has {', '.join(row) or 'none'}")
        found = found[name]
    return found


Format = Literal["trl", "atif", "openenv"]
ATIF = "ATIF-v1.5"
"""The first version whose agents have `tool_definitions`."""


def export(records: Iterable[Record], form: Format, folder: Path, project: str) -> tuple[int, int]:
    """Write the records; return how many were written, and how many were not since they failed.

    Args:
        folder: Exists and is empty.
        project: Names the agent in ATIF, and the environment's project in metadata.
    """
    written = failed = 0
    write = WRITERS[form](folder, project)
    for record in records:
        if record.failed_at or record.reward is None:
            failed += 1
            continue
        write(written, record)
        written += 1
    return written, failed


def _trl(folder: Path, project: str) -> Callable[[int, Record], None]:
    """One row a line: what SFTTrainer reads, and the rollout's other columns."""
    row_of = row_writer()
    return lambda number, record: _append(folder / "train.jsonl", row_of(record))


def _atif(folder: Path, project: str) -> Callable[[int, Record], None]:
    """One trajectory a file."""

    def write(number: int, record: Record) -> None:
        steps = _steps(record.messages)
        metrics = {
            "total_prompt_tokens": record.prompt_tokens,
            "total_completion_tokens": record.completion_tokens,
            "total_cached_tokens": record.cached_tokens,
            "total_cost_usd": record.cost_usd,
            "total_steps": len(steps),
        }
        tools = json.loads(record.tools)
        trajectory = {
            "schema_version": ATIF,
            "session_id": f"{project}-{record.seed}-{number}",
            "agent": {"name": record.player or project, "version": record.environment, "tool_definitions": tools},
            "steps": steps,
            "final_metrics": metrics,
            "extra": {"seed": record.seed, "reward": record.reward, ROLLOUT: _without_messages(record)},
        }
        (folder / f"trajectory-{number:06}.json").write_text(json.dumps(trajectory, ensure_ascii=False, indent=1))

    return write


def _steps(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    for at, message in enumerate(messages):
        if message["role"] == "tool":
            results = steps[-1].setdefault("observation", {"results": []})["results"]
            called = steps[-1].get("tool_calls", [{}] * (len(results) + 1))[len(results)].get("tool_call_id")
            results.append(({"source_call_id": called} if called else {}) | {"content": message["content"]})
            continue
        source = "agent" if message["role"] == "assistant" else message["role"]
        step: dict[str, Any] = {"step_id": len(steps) + 1, "source": source, "message": message["content"] or ""}
        if message.get("tool_calls"):
            calls = Turn.model_validate(message).tool_calls
            step["tool_calls"] = [
                {
                    "tool_call_id": call.id or f"call_{at}_{number}",
                    "function_name": call.name,
                    "arguments": _mapping(call.arguments),
                }
                for number, call in enumerate(calls)
            ]
        if source == "agent" and _read_back(step) != message:
            step["extra"] = {EXACT: message}
        steps.append(step)
    return steps


def _read_back(step: dict[str, Any]) -> dict[str, Any]:
    return Turn.model_validate(Step.model_validate(step).messages()[0]).as_message()


def _mapping(arguments: str) -> dict[str, Any]:
    """The arguments as an object, which ATIF requires; empty where they are none."""
    try:
        read = json.loads(arguments)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def _openenv(folder: Path, project: str) -> Callable[[int, Record], None]:
    """One EpisodeRecord a line in results.jsonl, and metadata.json."""
    (folder / "metadata.json").write_text(json.dumps({"env": project, "provider": "apprentice"}, indent=2) + "\n")

    def write(number: int, record: Record) -> None:
        calls = [call for message in record.messages for call in Turn.model_validate(message).tool_calls]
        replies = [message["content"] for message in record.messages if message["role"] == "tool"]
        last_call = 0 if ends_in_text(record.messages) else len(calls)
        trace = [
            {
                "tool_name": call.name,
                "arguments": _mapping(call.arguments),
                "result": {"data": reply, "done": place == last_call, "metadata": {}, "error": None},
            }
            for place, (call, reply) in enumerate(zip(calls, replies, strict=True), 1)
        ]
        turns = sum(message["role"] == "assistant" for message in record.messages)
        episode = {
            "episode_id": f"ep-{number:06}",
            "messages": record.messages,
            "reward": record.reward,
            "done": True,
            "tool_trace": trace,
            "metrics": {"turns": turns, "tool_calls": len(calls)},
            "verify_metrics": {},
            "artifacts": {},
            "task": {"seed": record.seed},
            "extra": {ROLLOUT: _without_messages(record)},
        }
        _append(folder / "results.jsonl", episode)

    return write


def _without_messages(record: Record) -> dict[str, Any]:
    return {name: value for name, value in json.loads(record.line()).items() if name != "messages"}


def _append(path: Path, row: dict[str, Any]) -> None:
    with path.open("ab") as file:
        file.write(as_line(row))


WRITERS: dict[Format, Callable[[Path, str], Callable[[int, Record], None]]] = {
    "trl": _trl,
    "atif": _atif,
    "openenv": _openenv,
}
