"""The base class of environments: teacher, GRPO and evaluation all play the same class.

In: the environment's settings and a session of its OpenEnv server.
Out: a question from `reset(**row)`, tool results, and `reward` and `done` as attributes.
Why: the class's public methods are the tools, so its code is the only description of the task. A second
description (a hand-written schema, another prompt) costs accuracy (law 1 of docs/laws.md).

TRL's `environment_factory` uses the same interface: `reset`, and public methods as tools.
"""

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel

from apprentice.envs.game import EnvironmentSettings as EnvironmentSettings
from apprentice.envs.game import whole_number as whole_number
from apprentice.envs.reward import ROUNDING
from apprentice.envs.reward import is_right as is_right
from apprentice.envs.source import digest_of, joined
from apprentice.envs.wire.reply import BadReply, Reply, checked_text
from apprentice.envs.wire.server import SessionLost
from apprentice.envs.wire.session import Session

T = TypeVar("T")

LONGEST_ACTION = 20_000
"""Maximum characters of an action's JSON; a server closes the connection on a much longer message."""


class ToolEnvironment(ABC):
    """An environment that plays one episode at a time; its public methods are the tools.

    Attributes:
        reward: The reward of the finished episode, within `reward_range`; 0.0, or partial credit, while the episode
            runs, and `None` when the infrastructure failed: an outage must not train the policy.
        done: Whether the environment has ended the episode.
        failure: Why the infrastructure failed, if it did.
        correct: The environment's own answer, once the episode is over and if it provides one; never shown to a model.
        label: The label of this environment in a mixture; empty outside a mixture.
    """

    Settings: ClassVar[type[BaseModel]]
    version: ClassVar[str]  # raise it when the same seed gives another question; 1 to 1.1 when only another reward
    extra: ClassVar[tuple[str, str]] = ("", "")  # optional dependency of its server: extra, module it adds
    discovered: ClassVar[tuple[str, ...]] = ()  # settings that only its server knows; they are read before a run begins
    label = ""
    phrases: ClassVar[tuple[str, ...]] = ()  # parts of its replies that become single tokens of a student built here
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)  # a reward outside it counts as a server failure
    unfinished: ClassVar[float | None] = None  # the reward where a player ends the episode with 0.0; None: the lowest
    streams: ClassVar[dict[str, float]] = {"environment_reward": 1.0}  # GRPO's reward functions and their weights

    def __init__(self, settings: BaseModel, session: Session | None = None):
        """Without a `session` only the prompt and the tools are available."""
        self.settings = settings
        self.session = session
        self.reward: float | None = 0.0
        self.done = False
        self.failure: str | None = None
        self.correct: str | None = None

    @property
    def max_turns(self) -> int:
        """The maximum number of tool-calling turns in an episode."""
        return 1

    @property
    @abstractmethod
    def instructions(self) -> str:
        """The system prompt, the same for teacher, training and evaluation."""

    @abstractmethod
    def reset(self, *, seed: int, **row: Any) -> str:
        """Start the episode for `seed` and return its question.

        `row` takes the other columns of a GRPO dataset's row. Raises BadReply, SessionLost; `_ask` retries once.
        """

    def _ask(self, seed: int) -> str:
        """Return the question for `seed`; reset once more if the reply holds none. Raises Refused, SessionLost."""
        player = self._part(seed)
        try:
            return checked_text(player.reset(seed=seed), "the question")
        except BadReply:  # a new connection: the reply may belong to another message
            player._renew()
        try:
            return checked_text(player.reset(seed=seed), "the question")
        except BadReply as bad:
            player._lose(f"no question under seed {seed}, twice: {bad}")
            raise SessionLost(player.failure) from bad

    def _start(self, seed: int, **question: Any) -> Reply:
        """Send a full reset, with everything that identifies the question."""
        self.reward, self.done, self.failure, self.correct = 0.0, False, None, None
        return self._guarded(lambda session: session.reset(seed=seed, **question))

    def _act(self, action: dict[str, Any]) -> Reply:
        """Send one action of the running episode.

        Raises ValueError (a tool error that the model sees) if the episode is over or the action is too long;
        BadReply, SessionLost.
        """
        if self.done:
            raise ValueError("The episode is over; no further call counts.")
        text = json.dumps(action, ensure_ascii=False)
        if len(text) > LONGEST_ACTION:
            raise ValueError(f"This is too long ({len(text)} characters; at most {LONGEST_ACTION} are read).")
        return self._guarded(lambda session: session.step(json.loads(whole_characters(text))))

    def _guarded(self, call: Callable[[Session], T]) -> T:
        if self.session is None:
            raise SessionLost("this environment was made without a session, so it cannot be played")
        try:
            return call(self.session)
        except SessionLost as lost:
            self._lose(str(lost))
            raise

    def _lose(self, why: str) -> None:
        """End the episode without a reward."""
        self.reward, self.done, self.failure = None, True, why

    def _give_up(self) -> None:
        """Score an episode that its player ended: without partial credit it earns the lowest reward of the range, or
        `unfinished`. With 0.0, to do nothing would be better than a wrong answer of -1."""
        if not self.done and self.reward == 0.0:
            self.reward = self.reward_range[0] if self.unfinished is None else self.unfinished

    def _renew(self) -> None:
        """Play the next episode over a new connection."""
        if self.session is not None:
            self.session.renew()

    def _check_reward(self) -> None:
        """Set a reward that misses a bound of its range by rounding to it. Raises BadReply if it exceeds it by more."""
        if self.reward is None:
            return
        low, high = self.reward_range
        for name, score in {"reward": self.reward, **self._scores()}.items():
            if not isinstance(score, int | float) or not low - ROUNDING <= score <= high + ROUNDING:
                raise BadReply(f"{name} is {str(score)[:40]}, which is not within {low:g} to {high:g}")
        reward = min(max(self.reward, low), high)
        self.reward = float(next((bound for bound in (low, high) if abs(reward - bound) <= ROUNDING), reward))

    def _wait_for_server(self) -> None:
        """Wait until the server is not known to be unavailable. Raises SessionLost."""
        self._guarded(lambda session: session.wait_for_server())

    def _scores(self) -> dict[str, float | None]:
        """Return the score of each of `streams`, once the episode is over; None if the infrastructure failed."""
        return dict.fromkeys(self.streams, self.reward)

    def _part(self, seed: int) -> "ToolEnvironment":
        """Return the environment that plays this seed: this one, or the part of a mixture that the seed belongs to."""
        return self

    def _parts(self) -> list["ToolEnvironment"]:
        """Return all environments that may be played: this one, or all parts of a mixture."""
        return [self]

    @classmethod
    def _under(cls, settings: Any) -> type["ToolEnvironment"]:
        """Return the class that plays under these settings; another one where the settings decide on the tools."""
        return cls

    @classmethod
    def _completed(cls, settings: dict[str, Any], session: Session) -> dict[str, Any]:
        """Return the settings with those in `told`. Raises ValueError, Refused, BadReply, SessionLost."""
        return settings

    @classmethod
    def _version_under(cls, settings: dict[str, Any]) -> str:
        """Return the version that people see."""
        return cls.version

    @classmethod
    def _code_under(cls, settings: dict[str, Any]) -> str:
        """Return the digest of its folder: the class, its script and its server; of a base's folder as well."""
        own = [each for each in cls.__mro__ if issubclass(each, ToolEnvironment) and each is not ToolEnvironment]
        return joined([digest_of(place) for place in dict.fromkeys(map(_source_of, own))])

    def _traits(self, seed: int, question: str) -> dict[str, int | str]:
        """Return the question's traits, such as {"terms": 3}, for the slices of an evaluation; needs no session."""
        return {}

    def _close(self) -> None:
        if self.session is not None:
            self.session.close()


def _source_of(cls: type) -> Path:
    """Return the folder of a class's package, or its file where it belongs to no package or is one beside this file."""
    file = Path(inspect.getfile(cls))
    alone = cls.__module__.rpartition(".")[0] in ("", __package__)
    return file if alone and file.name != "__init__.py" else file.parent


def traits_of(environment: ToolEnvironment, seed: int, question: str) -> dict[str, int | str]:
    """Return the question's traits, for tables; in a mixture the environment's label comes first."""
    part = environment._part(seed)
    whose: dict[str, int | str] = {"environment": part.label} if part.label else {}
    return whose | part._traits(seed, question)


def tools_of(environment: ToolEnvironment) -> list[Callable[..., str]]:
    """Return the public methods except `reset`, in the order in which TRL discovers them (by name)."""
    return [getattr(environment, name) for name in _tool_names(type(environment))]


@cache
def _tool_names(environment: type[ToolEnvironment]) -> list[str]:
    functions = inspect.getmembers(environment, predicate=inspect.isfunction)
    return [name for name, _ in functions if not name.startswith("_") and name != "reset"]


def whole_characters(text: str) -> str:
    """Return the text as it can be sent: without half characters, which no encoding has."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def tool_schemas(environment: ToolEnvironment) -> list[dict[str, Any]]:
    """Return the tools' JSON schemas as every prompt has them, in training, evaluation and at a server.

    transformers derives them from the methods; its `return` is left out, which servers drop or refuse.
    """
    return _schemas_of(type(environment))


def tools_text(environment: ToolEnvironment) -> str:
    """Return `tool_schemas` as JSON text, as records and training rows store it."""
    return json.dumps(_schemas_of(type(environment)), ensure_ascii=False)


def described_text(environment: ToolEnvironment) -> str:
    """Return the schemas with `return` as JSON text, by which a collection knows its prompt since version 1."""
    return json.dumps(_described(type(environment)), ensure_ascii=False)


def without_return(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the schemas without transformers' `return`, which OpenAI's format does not have."""
    return [
        tool | {"function": {name: part for name, part in tool["function"].items() if name != "return"}}
        for tool in tools
    ]


def are_tools_of(environment: ToolEnvironment, given: Any) -> bool:
    """Whether a record's tools, as JSON or its text, are the environment's; `return` does not count."""
    try:
        tools = json.loads(given) if isinstance(given, str) else given
        return without_return(tools) == tool_schemas(environment)
    except (ValueError, TypeError, KeyError, AttributeError):
        return False


@cache
def _schemas_of(environment: type[ToolEnvironment]) -> list[dict[str, Any]]:
    return without_return(_described(environment))


@cache
def _described(environment: type[ToolEnvironment]) -> list[dict[str, Any]]:
    from transformers.utils.chat_template_utils import get_json_schema

    # bound methods, as TRL passes them, so that `self` is not a parameter
    return [get_json_schema(tool) for tool in tools_of(object.__new__(environment))]
