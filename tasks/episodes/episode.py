"""One episode of messages and tool calls, used by teacher, evaluation and GRPO alike.

In: an environment, a seed, assistant messages. Out: the transcript in OpenAI's format, the reward, whether the calls
were valid.
Calls are handled as in TRL's tool loop (trl.GRPOTrainer, `_tool_call_loop`): every call is executed, an error becomes
the tool's reply, a message without a call ends the episode. An environment that takes a last text (`say`) scores it;
elsewhere the episode is unfinished. When the server itself fails on a call or a text, the episode is replayed once on a
new connection. If it fails again, the question is at fault, not the infrastructure.
"""

import json
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from apprentice.envs.game import SAY
from apprentice.envs.player import Player
from apprentice.envs.wire.reply import BadReply
from apprentice.envs.wire.session import SessionLost
from apprentice.tasks.episodes.answer_limits import beyond_limits, cut
from apprentice.tasks.episodes.notations import notation_of, without_thoughts
from apprentice.tasks.episodes.record import Message
from apprentice.tasks.episodes.thinking import CUT_OFF
from apprentice.tasks.reporting.errors import Stop

THOUGHT_CUT_OFF = "thought cut off"
"""The fault of a turn that has a thought without an end, or one over its budget."""
Call = tuple[str, dict[str, Any]]
"""A tool and its arguments."""
LAST_TEXT: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": SAY,
        "description": "End the episode with a text.",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string", "description": "The text."}},
            "required": ["text"],
        },
    },
}
"""A last text in the form of a tool, for a person or an audit that chooses among tools. No model is shown it."""


class Episode:
    """A running episode.

    Attributes:
        messages: The transcript so far: system, user, then assistant and tool messages.
        tools: The tools' JSON schemas, as rendered into the prompt.
        turns: How many messages the model has written.
        done: Whether the episode has ended: the environment ended it, no tool was called, or max_turns is reached.
        unfinished: Whether it ended without the environment, which then scores it as nothing done.
        causes: What was wrong with the calls so far; empty while all are valid.
        broken: Why the environment failed on the last call and again in the replay; the reward is None then. Empty
            otherwise.
    """

    def __init__(self, player: Player, seed: int):
        """Resets the environment; in a mixture, the part that the seed belongs to. Raises SessionLost."""
        self.player = player.part(seed)
        self.player.is_forfeited = False
        self.seed = seed
        self.sample = 0  # index of the sample of this question
        self.prompt_tokens = self.completion_tokens = 0  # of the turns so far; the player counts them
        self.wire: dict[int, Message] = {}  # an endpoint's own messages, by their place
        self.tools = self.player.schemas
        self.messages = prompt(self.player, self.player.ask(seed))
        self.causes: list[str] = []
        self.broken = ""
        self.done = self.unfinished = False
        self.turns = 0
        self._executed: list[Callable[[], str]] = []

    @property
    def question(self) -> str:
        return self.messages[1]["content"]

    @property
    def reward(self) -> float | None:
        """The environment's reward, 0.0 to 1.0; None when the infrastructure or the environment failed."""
        return self.player.reward

    @property
    def valid(self) -> bool:
        """Format compliance: every call fits its schema, and every message has one, but for a last text that counts."""
        return self.turns > 0 and not self.causes

    def check_question(self, recorded: str) -> None:
        """Raises Stop where the server asks another question than the one on record."""
        if self.question != recorded:
            raise Stop(
                f"For seed {self.seed} the server asks another question than the recorded one: "
                f"{self.question[:80]!r}, not {recorded[:80]!r}. The server has changed, so its results cannot be "
                "compared with earlier ones.",
                "Use the server's previous version, or a separate store for the new one (--set store.path=…).",
            )

    def step(self, message: Message) -> None:
        """Takes the model's next message and executes its calls, or has its last text scored. Raises SessionLost."""
        text = last_text(message, self.tools) if self.player.takes_text else ""
        message = self._taken(message)
        if text:
            self._played(partial(self._call, partial(self.player.say, text)))
        if not (text and self.player.done):  # a text that the environment refuses is none
            self.causes += problems(message, self.tools)
        calls = message.get("tool_calls") or []
        for call in calls:
            content = self._execute(call["function"]["name"], call["function"]["arguments"])
            reply = {"role": "tool", "name": call["function"]["name"], "content": content}
            self.messages.append(reply | ({"tool_call_id": call["id"]} if "id" in call else {}))
        if self.player.done:
            self.done = True
        elif not calls or self.turns >= self.player.max_turns:
            self.give_up()

    def give_up(self) -> None:
        """Ends the episode, if the environment has not: no call, no turn or no token is left. One that ends in a
        thought that was cut off scores the lowest."""
        self.unfinished |= not self.done and not self.player.done
        self.done = True
        if self.messages[-1].get(CUT_OFF):
            self.player.forfeit()
        self.player.give_up()

    def _taken(self, message: Message) -> Message:
        if found := beyond_limits(message):
            self.causes.append(found)
            message = cut(message)
        self.messages.append(message)
        self.turns += 1
        return message

    def _execute(self, name: str, arguments: str | dict[str, Any]) -> str:
        return self._played(partial(self._call, partial(self.player.act, name, arguments)))

    def _played(self, act: Callable[[], str]) -> str:
        try:
            content = act()
        except BadReply:
            content = self._again(act)
        self._executed.append(act)
        return content

    def _again(self, act: Callable[[], str]) -> str:
        """Replays the episode on a new connection and returns the reply. Raises SessionLost."""
        self.player.renew()
        self.player.ask(self.seed)
        try:
            for each in self._executed:
                each()
        except BadReply as bad:  # the server accepted these calls before
            self.player.lose(f"the episode could not be played again up to where the server broke: {bad}")
            raise SessionLost(self.player.failure) from bad
        try:
            return act()
        except BadReply as bad:
            self.broken = f"{bad}; twice, on new connections"
            self.player.renew()
            self.player.lose(self.broken)
            return str({"error": "the environment broke"})

    def _call(self, act: Callable[[], Any]) -> str:
        """The tool's reply, or the error of the call as text. Raises BadReply, SessionLost."""
        try:
            content = act()
        except (SessionLost, BadReply):
            raise
        except Exception as error:  # as in TRL, the model reads the error
            content = str({"error": str(error)})
        self.player.check_reward()
        return content


def prompt(player: Player, question: str) -> list[Message]:
    """The messages that open an episode, for every driver."""
    return [{"role": "system", "content": player.instructions}, {"role": "user", "content": question}]


def turn_of(tool: str, arguments: Any) -> Message:
    """An assistant's turn with one call and no text; the arguments are a mapping, or JSON text."""
    called = {"type": "function", "function": {"name": tool, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [called]}


def last_text(message: Message, tools: list[dict[str, Any]]) -> str:
    """The text of a message that has no call, without thoughts; empty if it has none, or is a call that could not be
    read or an answer beyond the limits."""
    if message.get("tool_calls") or beyond_limits(message):
        return ""
    text = without_thoughts(message.get("content") or "").strip()
    return "" if notation_of(text, tools) else text


def problems(message: Message, tools: list[dict[str, Any]]) -> list[str]:
    """The fault in the tool calls of an assistant message; empty when all are valid."""
    if found := beyond_limits(message):
        return [found]
    calls = message.get("tool_calls") or []
    if not calls:
        return [THOUGHT_CUT_OFF if message.get(CUT_OFF) else "no tool call"]
    return [cause for call in calls if (cause := _call_problem(call["function"], tools))]


def _call_problem(function: dict[str, Any], tools: list[dict[str, Any]]) -> str | None:
    validator = next(
        (_validator(json.dumps(tool)) for tool in tools if tool["function"]["name"] == function["name"]), None
    )
    if validator is None:
        return "unknown tool"
    try:
        given = function["arguments"]
        given = json.loads(given) if isinstance(given, str) else given
    except ValueError:  # also raised for numbers of more than 4,300 digits
        return "malformed arguments"
    return None if validator.is_valid(given) else "arguments off the schema"


@lru_cache
def _validator(tool: str) -> Any:
    from jsonschema import Draft202012Validator

    schema = json.loads(tool, object_hook=_with_null)["function"]["parameters"]
    return Draft202012Validator(schema | {"additionalProperties": False})


def _with_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A part of a schema in which null is a type: transformers writes `str | None` as a text that is `nullable`."""
    if schema.get("nullable") is not True or not isinstance(schema.get("type"), str):
        return schema
    return schema | {"type": [schema["type"], "null"]} | ({"enum": [*schema["enum"], None]} if "enum" in schema else {})
