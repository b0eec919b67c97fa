"""The contract of an environment: one class that teacher, GRPO and evaluation all play.

In: the environment's settings and a session of its OpenEnv server.
Out: a question from `reset(**row)`, the effect of the tools, and `reward` and `done` as attributes.
Why: the class's public methods are the tools, so its code is the only description of the task; a second
description (a hand-written schema, another prompt) costs a student its accuracy (law 1 of docs/laws.md).

TRL's `environment_factory` looks at the same things: `reset`, public methods as tools.
"""

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict

from apprentice.envs.source import digest_of
from apprentice.envs.wire.breaker import SessionLost
from apprentice.envs.wire.reply import BadReply, Reply, checked_text
from apprentice.envs.wire.session import Session

T = TypeVar("T")

LONGEST_ACTION = 20_000
"""Characters of an action's JSON; a server closes the connection on a message that is much longer."""

ROUNDING = 1e-9
"""By how much a reward may miss its range and be taken for its bound: sums of tenths are no more exact."""


class EnvironmentSettings(BaseModel):
    """The settings of an environment, as a recipe names them."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ToolEnvironment(ABC):
    """One episode at a time in an environment whose tools are this class's public methods.

    Attributes:
        reward: What the environment gave for the finished episode, within `reward_range`; 0.0 while it runs, and `None`
            when the infrastructure failed (never a reward: an outage must not train the policy).
        done: Whether the environment has ended the episode.
        failure: Why the infrastructure failed, if it did.
        correct: The environment's own answer, once the episode is over and where it names one; no driver shows it to a
            model.
        label: What a mixture calls this one of its parts; empty for an environment alone.
    """

    Settings: ClassVar[type[BaseModel]]
    version: ClassVar[str]  # for people: raise it when the same seed means another question or reward
    extra: ClassVar[tuple[str, str]] = (
        "",
        "",
    )  # what its server needs besides: apprentice[…], the module that it brings
    label = ""
    phrases: ClassVar[tuple[str, ...]] = ()  # stretches of its replies, each one token of a student that is built here
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)  # a reward outside it is taken for a broken server
    streams: ClassVar[dict[str, float]] = {"environment_reward": 1.0}  # what GRPO rewards, and with which weight

    def __init__(self, settings: BaseModel, session: Session | None = None):
        """`session` may be left out where only the prompt and the tools are looked at."""
        self.settings = settings
        self.session = session
        self.reward: float | None = 0.0
        self.done = False
        self.failure: str | None = None
        self.correct: str | None = None

    @property
    def max_turns(self) -> int:
        """Tool-calling turns after which an episode is over."""
        return 1

    @property
    @abstractmethod
    def instructions(self) -> str:
        """The system prompt, the same for every driver."""

    @abstractmethod
    def reset(self, *, seed: int, **row: Any) -> str:
        """Starts the episode of the question that `seed` names, and returns its text.

        `row` takes what else a GRPO dataset's row carries. Raises BadReply, SessionLost; `_ask` asks twice.
        """

    def _ask(self, seed: int) -> str:
        """The text of the question that `seed` names; asked for once more where the reply holds none.

        Raises Refused, SessionLost.
        """
        player = self._part(seed)
        try:
            return checked_text(player.reset(seed=seed), "the question")
        except BadReply:  # what was meant for another message is not read again
            player._renew()
        try:
            return checked_text(player.reset(seed=seed), "the question")
        except BadReply as bad:
            player._lose(f"no question under seed {seed}, twice: {bad}")
            raise SessionLost(player.failure) from bad

    def _start(self, seed: int, **question: Any) -> Reply:
        """Sends the full reset: everything that names the question, every time."""
        self.reward, self.done, self.failure, self.correct = 0.0, False, None, None
        return self._guarded(lambda session: session.reset(seed=seed, **question))

    def _act(self, action: dict[str, Any]) -> Reply:
        """Sends one action of the running episode.

        Raises ValueError when the episode is over, or the action too long (tool errors that the model sees),
        BadReply, SessionLost.
        """
        if self.done:
            raise ValueError("The episode is over; no further call counts.")
        text = json.dumps(action, ensure_ascii=False)
        if len(text) > LONGEST_ACTION:
            raise ValueError(f"This is too long ({len(text)} characters; at most {LONGEST_ACTION} are read).")
        sendable = json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))  # no half characters
        return self._guarded(lambda session: session.step(sendable))

    def _guarded(self, call: Callable[[Session], T]) -> T:
        if self.session is None:
            raise SessionLost("this environment was made without a session, so it cannot be played")
        try:
            return call(self.session)
        except SessionLost as lost:
            self._lose(str(lost))
            raise

    def _lose(self, why: str) -> None:
        """Ends the episode without a reward."""
        self.reward, self.done, self.failure = None, True, why

    def _renew(self) -> None:
        """What comes next is played over a new connection."""
        if self.session is not None:
            self.session.renew()

    def _check_reward(self) -> None:
        """Takes a reward that misses its range by mere rounding for the range's bound. Raises BadReply for others."""
        if self.reward is None:
            return
        low, high = self.reward_range
        for name, score in {"reward": self.reward, **self._scores()}.items():
            if not isinstance(score, int | float) or not low - ROUNDING <= score <= high + ROUNDING:
                raise BadReply(f"{name} is {str(score)[:40]}, which is not within {low:g} to {high:g}")
        self.reward = float(min(max(self.reward, low), high))

    def _wait_for_server(self) -> None:
        """Returns when the server is there, as far as is known. Raises SessionLost."""
        self._guarded(lambda session: session.wait_for_server())

    def _scores(self) -> dict[str, float | None]:
        """What each of `streams` came to, once the episode is over; None where infrastructure failed."""
        return dict.fromkeys(self.streams, self.reward)

    def _part(self, seed: int) -> "ToolEnvironment":
        """Who plays the question of this seed: the environment itself, or the one of a mixture that it belongs to."""
        return self

    def _parts(self) -> list["ToolEnvironment"]:
        """Everything that may be played: the environment itself, or all that a mixture consists of."""
        return [self]

    @classmethod
    def _version_under(cls, settings: dict[str, Any]) -> str:
        """The version that people are told."""
        return cls.version

    @classmethod
    def _code_under(cls, settings: dict[str, Any]) -> str:
        """The digest of its folder: this class, its script, its server."""
        return digest_of(Path(inspect.getfile(cls)).parent)

    def _traits(self, seed: int, question: str) -> dict[str, int | str]:
        """What kind of question this is, such as {"terms": 3}, for the slices of an evaluation; needs no session."""
        return {}

    def _close(self) -> None:
        if self.session is not None:
            self.session.close()


def traits_of(environment: ToolEnvironment, seed: int, question: str) -> dict[str, int | str]:
    """What kind of question this is, for tables; in a mixture first of all, whose it is."""
    part = environment._part(seed)
    whose: dict[str, int | str] = {"environment": part.label} if part.label else {}
    return whose | part._traits(seed, question)


def tools_of(environment: ToolEnvironment) -> list[Callable[..., str]]:
    """The public methods of the class but `reset`, in the order TRL discovers them (by name)."""
    return [getattr(environment, name) for name in _tool_names(type(environment))]


@cache
def _tool_names(environment: type[ToolEnvironment]) -> list[str]:
    functions = inspect.getmembers(environment, predicate=inspect.isfunction)
    return [name for name, _ in functions if not name.startswith("_") and name != "reset"]


def whole_number(value: Any, what: str, least: int, most: int) -> int:
    """A number from a model, which may write 7 as "7". Raises ValueError, as words that the model can act on."""
    try:
        number = int(str(value).strip())
    except ValueError:
        raise ValueError(f"{what} must be a whole number, {least} to {most}.") from None
    if isinstance(value, bool) or not least <= number <= most:
        raise ValueError(f"{what} must be a whole number, {least} to {most}.")
    return number


def tool_schemas(environment: ToolEnvironment) -> list[dict[str, Any]]:
    """The tools as JSON schemas, made by the function with which TRL and chat templates make theirs."""
    return _schemas_of(type(environment))


def tools_text(environment: ToolEnvironment) -> str:
    """`tool_schemas` as JSON text: what stands in records and training rows."""
    return _text_of(type(environment))


@cache
def _text_of(environment: type[ToolEnvironment]) -> str:
    return json.dumps(_schemas_of(environment), ensure_ascii=False)


@cache
def _schemas_of(environment: type[ToolEnvironment]) -> list[dict[str, Any]]:
    from transformers.utils.chat_template_utils import get_json_schema

    # bound, as TRL hands them over, so that `self` is no parameter
    return [get_json_schema(tool) for tool in tools_of(object.__new__(environment))]
