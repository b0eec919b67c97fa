"""Conversations in other tools' formats, read as messages in OpenAI's format; exports.py writes rollouts in them.

In: one row as a dictionary, and which of its columns mean what. Out: a `Conversation`.
Reads `messages` (TRL, OpenAI, ShareGPT), `prompt` with `completion` (TRL, verifiers), the records of `openenv
collect`, traces of verifiers, samples of Inspect's logs and ATIF trajectories. Calls may be nested or flat, their
arguments JSON or text, or written as <tool_call> into a text; notations.py knows the other notations.
"""

import json
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from apprentice.tasks.episodes.notations import (
    THINKING,
    NotAConversation,
    calls_in,
    carries_loss,
    read_call,
    split_thought,
    split_thoughts_ahead,
)
from apprentice.tasks.episodes.record import STORED_EPISODE, EvaluatedEpisode, Record
from apprentice.tasks.episodes.thinking import THOUGHT
from apprentice.tasks.formats.trl_rows import exact_messages
from apprentice.tasks.formats.waiting_rows import is_waiting, verdict_of
from apprentice.tasks.settings.spec import Column

ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "developer": "system", "function": "tool"}
ROLES |= {"observation": "tool", "function_call": "assistant"}
"""Other names of the four roles."""
OF_THOUGHTS = ("reasoning", "thinking", "thought", "thoughts")
"""Roles of a message that is the thought of the turn after it."""
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


class ForeignTurn(BaseModel):
    """One message. Its thought, in any provider's form, is kept apart: only a student that thinks learns it. A call
    within a thought is none."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thought: str = ""
    """Without the text beside a call, which is `content`."""
    tool_calls: list[Call] = []
    tool_call_id: str | None = None
    carries_loss: bool = True
    is_thought: bool = False
    """Whether it says itself that it is the thought of the turn after it, by its role or as harmony's channel."""
    speaker: str = ""
    """Its `name`, which tells one model's turns from another's."""

    @model_validator(mode="before")
    @classmethod
    def _of_any_form(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        named, content = given.get("role", given.get("from")), given.get("content", given.get("value"))
        role = ROLES.get(named, named) if isinstance(named, str) else named
        is_thought = named in OF_THOUGHTS or (role == "assistant" and given.get("channel") == "analysis")
        role = "assistant" if is_thought else role
        learned = role != "assistant" or carries_loss(given)
        blocks = content if isinstance(content, list) else None  # of a text, marked thoughts stay where they are
        thought = split_thought({**given, "content": blocks, "tool_calls": None, "function_call": None})[0]
        calls = given.get("tool_calls") or ([given["function_call"]] if given.get("function_call") else [])
        if isinstance(content, list):
            content = "".join(map(_text_of, content))
        if role == "assistant" and not calls and isinstance(content, str):
            if named == "function_call":  # LLaMA-Factory's turn of calls alone
                ahead, written = split_thoughts_ahead(content)
                thought, read = thought or ahead, _calls_alone(written)
                calls, content = read if isinstance(read, list) else [read], None
            elif (found := calls_in(content))[0]:
                thought = thought or split_thought({"content": content})[0]
                calls, content = found
        called = {"tool_calls": calls, "tool_call_id": given.get("tool_call_id")}
        called |= {"thought": thought} if role == "assistant" else {}
        if is_thought and not calls and isinstance(content, str):
            thought = "\n".join(filter(None, (thought, split_thought({"content": content})[0] or content)))
            called, content = {"thought": thought, "is_thought": True}, ""
        called |= {"speaker": given["name"]} if isinstance(given.get("name"), str) else {}
        return {"role": role, "content": content, "carries_loss": learned} | called

    def as_message(self) -> dict[str, Any]:
        """The turn as a message of an assistant in OpenAI's format."""
        calls = [call.as_message() for call in self.tool_calls]
        weight = {} if self.carries_loss else {"weight": 0}
        thought = {THOUGHT: self.thought} if self.thought else {}
        return (
            {"role": self.role, "content": self.content} | ({"tool_calls": calls} if calls else {}) | weight | thought
        )

    def thought_alone(self) -> str:
        """Its thought, where it is an assistant's turn of nothing else; empty for others."""
        if self.role != "assistant" or self.tool_calls:
            return ""
        thought, content = (self.thought, self.content) if self.thought else split_thought({"content": self.content})
        return "" if (content or "").strip() else thought

    def after(self, thoughts: list["ForeignTurn"]) -> "ForeignTurn":
        """The turn of an assistant with the thoughts of the turns before it, except those that carry no loss."""
        ahead = [each.thought_alone() for each in thoughts if each.carries_loss]
        own = self.thought or ("" if self.tool_calls else split_thought({"content": self.content})[0])
        return self.model_copy(update={"thought": "\n".join(filter(None, (*ahead, own)))}) if ahead else self

    def thinking(self, is_on: bool) -> "ForeignTurn":
        """The turn for a student that thinks, or that answers at once. The former takes the text beside a call for the
        thought, where there is no other one, and marked thoughts out of the text."""
        if self.role != "assistant" or not is_on:
            return self.model_copy(update={"thought": ""})
        given = {"content": self.content} if self.thought else self.as_message()  # a text beside both stays a text
        thought, content = split_thought(given)
        return self.model_copy(update={"thought": self.thought or thought, "content": content})


class AtifResult(BaseModel):
    """What a call of an ATIF step got for an answer."""

    source_call_id: str | None = None
    content: Any = None


class Observation(BaseModel):
    """The answers to an ATIF step."""

    results: list[AtifResult] = []


class AtifStep(BaseModel):
    """One step of an ATIF trajectory."""

    source: Literal["system", "user", "agent"]
    message: Any = ""
    reasoning_content: str | None = None
    tool_calls: list[Call] = []
    observation: Observation = Observation()
    extra: dict[str, Any] = {}

    def messages(self) -> list[dict[str, Any]]:
        """The step's message and the answers to its calls."""
        role = "assistant" if self.source == "agent" else self.source
        said = {"role": role, "content": self.message, "tool_calls": [call.as_message() for call in self.tool_calls]}
        said |= {THOUGHT: self.reasoning_content} if self.reasoning_content else {}
        answers = [
            {"role": "tool", "content": each.content, "tool_call_id": each.source_call_id}
            for each in (self.observation.results if self.source == "agent" else [])
        ]
        exact = self.extra.get(EXACT)
        return [exact if isinstance(exact, dict) else said, *answers]


class Trajectory(BaseModel):
    """An ATIF trajectory: its steps, and what else of it is read."""

    schema_version: str = Field(pattern=r"^ATIF-v1\.")
    steps: list[AtifStep]
    agent: dict[str, Any] = {}
    extra: dict[str, Any] = {}


class TraceNode(BaseModel):
    """One message of a trace of verifiers, and the place of the one before it."""

    message: Any
    parent: int | None = None


class Score(BaseModel):
    """One reward of a trace of verifiers."""

    score: float
    weight: float = 1.0


class Trace(BaseModel):
    """What one agent did in an episode of verifiers (traces.jsonl of 0.4)."""

    nodes: list[TraceNode]
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

    messages: list[ForeignTurn]
    tools: Any = None
    """The tools' schemas as JSON or its text; None where the row has none."""
    reward: float | None = Field(default=None, allow_inf_nan=False)
    seed: int | None = Field(default=None, ge=0)
    environment: str = ""
    """Name and version of the environment, where a rollout of this project names it."""
    about: dict[str, Any] = {}
    """The other fields of a rollout of this project."""
    waits: bool = False
    """Whether the row was written to wait for a person's verdict; its reward is that verdict, None without one."""

    def thinking(self, is_on: bool) -> "Conversation":
        """The conversation for a student that thinks, or that answers at once."""
        return self.model_copy(update={"messages": [turn.thinking(is_on) for turn in self.messages]})

    def said(self) -> list[tuple[str, str]]:
        """The field and the text of each turn of an assistant."""
        turns = enumerate(self.messages)
        return [(f"messages.{at}.content", turn.content or "") for at, turn in turns if turn.role == "assistant"]

    @field_validator("messages", mode="before")
    @classmethod
    def _may_be_text(cls, given: Any) -> Any:
        return json.loads(given) if isinstance(given, str) and given.startswith("[") else given

    @field_validator("messages")
    @classmethod
    def _joins_thoughts_to_their_turns(cls, given: list[ForeignTurn]) -> list[ForeignTurn]:
        joined, waiting = list[ForeignTurn](), list[ForeignTurn]()
        for turn, follows in zip(given, [*given[1:], None], strict=False):  # one more where there is none
            is_next = follows is not None and follows.role == "assistant" and follows.speaker == turn.speaker
            if is_next and turn.thought_alone():
                waiting.append(turn)
            elif turn.is_thought:
                raise ValueError("a thought has no turn of its model after it")
            else:
                joined.append(turn.after(waiting))
                waiting = []
        return joined

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
        return {"messages": messages, "tools": tools, **_some(read.extra, "seed", "reward"), **_rollout(read.extra)}
    if "episode_id" in row and "tool_trace" in row:
        task, extra = row.get("task"), row.get("extra") or {}
        task = task if isinstance(task, dict) else {"seed": task} if isinstance(task, int) else {}
        named = _some(task, "seed", "reward")
        return {"messages": row.get("messages"), "reward": row.get("reward"), **named, **_rollout(extra)}
    if isinstance(traces := row.get("traces"), list) and "env" in row:
        if len(traces) != 1:
            raise NotAConversation("traces", f"{len(traces)} agents play, and an episode here has one player")
        return Trace.model_validate(traces[0]).conversation()
    if "scores" in row and "messages" in row:
        return _of_inspect(row)
    if is_waiting(row):
        right = verdict_of(row)
        judged = {"reward": None if right is None else float(right), "waits": True}
        return judged | {name: row.get(name) for name in ("messages", "tools")} | _some(row, "environment")
    return _some(row, "tools", "reward", "seed") | _rollout(row) | {"messages": _messages_of(row)}


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


def _some(given: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}


def _rollout(given: dict[str, Any]) -> dict[str, Any]:
    """What a rollout of this project holds beside its conversation; nothing for rows of others."""
    own = given.get(ROLLOUT, given)
    if not isinstance(own, dict) or not {"environment", "seed", "tools"} <= own.keys():
        return {}
    read = {"messages", "tools", "seed", "reward", "environment"}
    about = {name: value for name, value in own.items() if name in Record.model_fields and name not in read}
    return _some(own, *read - {"messages"}) | {"about": about}


def _of_inspect(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample of Inspect's log: as this project recorded it, or its messages and its first score."""
    if isinstance(stored := (sample.get("store") or {}).get(STORED_EPISODE), dict):
        own = EvaluatedEpisode.model_validate(stored)
        return {"messages": own.messages, "reward": own.reward, "seed": own.seed}
    scores = [each.get("value") for each in (sample.get("scores") or {}).values() if isinstance(each, dict)]
    seed = (sample.get("metadata") or {}).get("seed")
    return {"messages": sample["messages"], "reward": scores[0] if scores else None, "seed": seed}


def _calls_alone(text: str) -> Any:
    """A call or several, as JSON or within tags. Raises ValueError for none."""
    try:
        return read_call(text)
    except ValueError:
        if found := calls_in(text)[0]:
            return found
        raise


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
