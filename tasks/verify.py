"""Has the environment confirm a conversation that exists: finds its question's seed, and plays its calls again.

In: a row, the questions that are known. Out: a `Record` with the environment's own prompt, replies and reward, or the
field of the row that is wrong. Only the assistant's turns are the row's.
"""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from pydantic import ValidationError

from apprentice.envs.base import ToolEnvironment, are_tools_of, tool_schemas, tools_text
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.wire.session import Refused
from apprentice.tasks.episodes.conversations import Conversation, NotAConversation, Turn, conversation_of
from apprentice.tasks.episodes.episode import Episode, Message, problems, prompt
from apprentice.tasks.episodes.record import Record, same_text
from apprentice.tasks.rescore import act_again, difference
from apprentice.tasks.settings.spec import Column

UNKNOWN = "no seed is known that asks this question"


class Known(NamedTuple):
    """The questions that rows may answer."""

    seeds: dict[str, int]
    """The seed of each question by its text, normalized."""
    examined: set[str]
    """The questions of the evaluation, normalized."""

    def seed_of(self, text: str) -> int | None:
        """The seed of the question that equals a text, or of the longest one inside it."""
        if text in self.seeds:
            return self.seeds[text]
        within = [each for each in self.seeds if stands_in(each, text)]
        return self.seeds[max(within, key=len)] if within else None


def stands_in(question: str, text: str) -> bool:
    """Whether a text, such as a prompt of somebody else's, holds the question as whole words; both normalized."""
    at = text.find(question)
    while at >= 0:
        if not (text[:at][-1:].isalnum() or text[at + len(question) :][:1].isalnum()):
            return True
        at = text.find(question, at + 1)
    return False


class Checked(NamedTuple):
    """What the environment made of a row."""

    record: Record | None
    field: str = ""
    """The field that is wrong, where the row is refused or not verified."""
    cause: str = ""
    notes: tuple[str, ...] = ()
    """What was replaced by the environment's own, and where its reward is another one."""


class Verifier:
    """Has the environment confirm one row. Called in several threads at once."""

    def __init__(self, environment: EnvironmentSpec, known: Known, columns: dict[Column, str]):
        self._environment = environment
        self._known = known
        self._columns = columns
        self._parts = environment.make()._parts()

    def __call__(self, instance: ToolEnvironment, row: Any) -> Checked:
        """Raises SessionLost."""
        try:
            claim = conversation_of(row, self._columns)
            if claim.environment:
                self._check_name(claim.environment)
            if claim.about.get("failed_at"):  # it has no reward, and nobody learns from it
                seed = claim.seed or 0
                return Checked(self._record(seed, instance._part(seed), row["messages"], None, claim))
            asked, turns = _split(claim.messages)
            if same_text(asked) in self._known.examined:
                raise NotAConversation("messages", "its question stands in the evaluation set")
            return self._played(instance, claim, asked, turns) or self._unverified(claim, asked, turns)
        except NotAConversation as wrong:
            return Checked(None, wrong.field, wrong.cause)
        except ValidationError as error:  # of the other fields of a rollout
            first = error.errors(include_url=False)[0]
            return Checked(None, ".".join(map(str, first["loc"])), first["msg"])

    def _played(
        self, instance: ToolEnvironment, claim: Conversation, asked: str, turns: list[Message]
    ) -> Checked | None:
        """The row as the environment confirms it; None where no known seed asks its question."""
        text = same_text(asked)
        for seed in dict.fromkeys((claim.seed, self._known.seed_of(text))):
            if seed is None:
                continue
            try:
                episode = Episode(instance, seed)
            except Refused:  # a seed that this environment does not have
                continue
            question = same_text(episode.question)
            if not stands_in(question, text):
                continue
            if question in self._known.examined:
                raise NotAConversation("messages", "its question stands in the evaluation set")
            part = episode.environment
            acts, notes = _fitting(turns, part, claim)
            then = [*episode.messages, *_without_last_replies(acts)]
            act_again(episode, then)
            if episode.done and len(then) == len(episode.messages) + 1 and _is_closing(then[-1]):
                then, notes = then[:-1], [*notes, "a closing turn is left out"]
            if differs := episode.broken or difference(episode, then):
                raise NotAConversation("messages", differs)
            if claim.reward is not None and claim.reward != episode.reward:
                notes.append("the environment gives another reward")
            record = self._record(seed, part, episode.messages, episode.reward, claim)
            return Checked(record.model_copy(update={"correct": part.correct or ""}), notes=tuple(notes))
        return None

    def _unverified(self, claim: Conversation, asked: str, turns: list[Message]) -> Checked:
        """The row as it claims to be, with the environment's prompt. Raises NotAConversation."""
        text = same_text(asked)
        if any(stands_in(question, text) for question in self._known.examined):
            raise NotAConversation("messages", "its question stands in the evaluation set")
        part = next(
            (part for part in self._parts if _name(self._environment.played_by(part)) == _name(claim.environment)),
            self._parts[0] if len(self._parts) == 1 else None,
        )
        if part is None:
            raise NotAConversation("environment", f"which one of the mixture is not known, and {UNKNOWN}")
        acts, _ = _fitting(turns, part, claim)
        low, high = part.reward_range
        reward = 1.0 if claim.reward is None else claim.reward
        if not low <= reward <= high:
            raise NotAConversation("reward", f"{reward:g} is not from {low:g} to {high:g}")
        acts = acts[:-1] if len(acts) > 1 and _is_closing(acts[-1]) else acts
        said = [turn | {"content": turn["content"] or ""} for turn in acts]
        record = self._record(0, part, [*prompt(part, asked), *said], reward, claim)
        if claim.seed is None:
            return Checked(record, "messages", UNKNOWN)
        return Checked(record, "seed", f"seed {claim.seed} asks another question, and {UNKNOWN}")

    def _record(
        self, seed: int, part: ToolEnvironment, messages: list[Message], reward: float | None, claim: Conversation
    ) -> Record:
        environment, tools = self._environment.played_by(part), tools_text(part)
        own = {"seed": seed, "environment": environment, "messages": messages, "tools": tools, "reward": reward}
        return Record.model_validate(claim.about | own)

    def _check_name(self, named: str) -> None:
        """Raises NotAConversation for a rollout of another environment; its version is left to the replay."""
        known = [self._environment.played_by(part) for part in self._parts]
        if _name(named) not in map(_name, known):
            raise NotAConversation("environment", f"it is {named!r}, not {' or '.join(map(repr, known))}")


def _name(environment: str) -> str:
    return environment.rpartition(" ")[0] or environment


def _split(messages: list[Turn]) -> tuple[str, list[Message]]:
    """The text before the first turn of an assistant, and from there on the turns with a reply to each call; the
    content of a reply is None where the row has none."""
    first = next((at for at, turn in enumerate(messages) if turn.role == "assistant"), None)
    if first is None:
        raise NotAConversation("messages", "no turn of an assistant")
    asked = [turn.content or "" for turn in messages[:first] if turn.role == "user"]
    if not asked:
        raise NotAConversation("messages", "no question of a user")
    turns: list[Message] = []
    waiting: list[Message] = []
    for at, turn in enumerate(messages[first:], first):
        if turn.role == "assistant":
            turns.append(turn.as_message())
            waiting = [
                {"role": "tool", "name": call.name, "content": None} | ({"tool_call_id": call.id} if call.id else {})
                for call in turn.tool_calls
            ]
            turns += waiting
        elif turn.role == "tool":
            named = [each for each in waiting if turn.tool_call_id in (None, each.get("tool_call_id"))]
            named = named or [each for each in waiting if "tool_call_id" not in each]
            if not named:
                raise NotAConversation(f"messages.{at}", "a tool's reply to no call before it")
            named[0]["content"] = turn.content
            waiting = [each for each in waiting if each is not named[0]]
        else:
            raise NotAConversation(f"messages.{at}", f"a message of a {turn.role} after the first turn")
    return "\n".join(asked), turns


def _without_last_replies(turns: list[Message]) -> list[Message]:
    """The turns without the content of the replies after the last call: no action can depend on them."""
    last = max((at for at, turn in enumerate(turns) if turn.get("tool_calls")), default=0)
    return turns[:last] + [turn | {"content": None} if turn["role"] == "tool" else turn for turn in turns[last:]]


def _is_closing(turn: Message) -> bool:
    return turn["role"] == "assistant" and not turn.get("tool_calls")


def _fitting(turns: list[Message], part: ToolEnvironment, claim: Conversation) -> tuple[list[Message], list[str]]:
    """The turns as calls of the environment's tools, and the changes for that.

    Raises NotAConversation for a call that does not fit; where the row has the environment's own tools, such a call is
    the player's mistake and stays.
    """
    tools = tool_schemas(part)
    notes = []
    system = next((turn.content for turn in claim.messages if turn.role == "system"), None)
    if system is not None and system != part.instructions:
        notes.append("the system prompt is replaced by the environment's")
    own = are_tools_of(part, claim.tools)
    if claim.tools and not own:
        notes.append("the tools' schemas are replaced by the environment's")
    if not any(turn.get("tool_calls") for turn in turns):
        turns, notes = _as_call(turns, tools), [*notes, "an answer in words is taken as the call"]
    for at, turn in enumerate(claim.messages):
        for number, call in enumerate([] if own else turn.tool_calls):
            if found := problems({"tool_calls": [call.as_message()]}, tools):
                called = f"{call.name}({call.arguments[:80]}); the environment takes {_signatures(tools)}"
                raise NotAConversation(f"messages.{at}.tool_calls.{number}", f"{found[0]}: {called}")
    return turns, notes


def _as_call(turns: list[Message], tools: list[dict[str, Any]]) -> list[Message]:
    """A single answer in words as the call of the only tool, where that takes one argument."""
    function = tools[0]["function"]
    taken = function["parameters"]["properties"]
    text = str(turns[0].get("content") or "").strip()
    if len(turns) > 1 or len(tools) > 1 or len(taken) != 1 or not text:
        raise NotAConversation("messages", f"no call of a tool; the environment takes {_signatures(tools)}")
    ((argument, schema),) = taken.items()
    try:
        value = text if schema.get("type") == "string" else json.loads(text)
    except ValueError:
        value = text
    arguments = json.dumps({argument: value}, ensure_ascii=False)
    function = {"name": function["name"], "arguments": arguments}
    said = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    return [said, {"role": "tool", "name": function["name"], "content": None}]


def _signatures(tools: Iterable[dict[str, Any]]) -> str:
    functions = [tool["function"] for tool in tools]
    return ", ".join(f"{each['name']}({', '.join(each['parameters']['properties'])})" for each in functions)
