"""The contract of an environment: one class that teacher, GRPO and evaluation all play.

In: the environment's settings and a session of its OpenEnv server.
Out: a question from `reset(**row)`, the effect of the tools, and `reward` and `done` as attributes.
Why: the class's public methods are the tools, so its code is the only description of the task; a second
description (a hand-written schema, another prompt) costs a student its accuracy (METHOD: one class, three drivers).

TRL's `environment_factory` looks at the same things: `reset`, public methods as tools.
"""

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict

from apprentice.envs.breaker import SessionLost
from apprentice.envs.session import Refused, Reply, Session

T = TypeVar("T")

BROKE = "EXECUTION_ERROR"
"""What OpenEnv's server says of an exception in a step: the game's own fault, for which no player is scored."""

LONGEST_ACTION = 20_000
"""Characters of an action's JSON; a server closes the connection on a message that is much longer."""


class EnvironmentSettings(BaseModel):
    """The settings of an environment, as a recipe names them."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ToolEnvironment(ABC):
    """One episode at a time in an environment whose tools are this class's public methods.

    Attributes:
        reward: What the environment gave for the finished episode, 0.0 to 1.0; 0.0 while it runs, and `None` when the
            infrastructure failed (never a reward: an outage must not train the policy).
        done: Whether the environment has ended the episode.
        failure: Why the infrastructure failed, if it did.
        correct: The environment's own answer, once the episode is over and where it names one; no driver shows it to a
            model.
        label: What a mixture calls this one of its parts; empty for an environment alone.
    """

    Settings: ClassVar[type[BaseModel]]
    version: ClassVar[str]  # enters every artifact's key: raise it when the same seed means another question or reward
    extra: ClassVar[tuple[str, str]] = (
        "",
        "",
    )  # what its server needs besides: apprentice[…], the module that it brings
    label = ""
    phrases: ClassVar[tuple[str, ...]] = ()  # stretches of its replies, each one token of a student that is built here
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

        `row` takes what else a GRPO dataset's row carries. Raises SessionLost.
        """

    def _start(self, seed: int, **question: Any) -> Reply:
        """Sends the full reset: everything that names the question, every time."""
        self.reward, self.done, self.failure, self.correct = 0.0, False, None, None
        return self._guarded(lambda session: session.reset(seed=seed, **question))

    def _act(self, action: dict[str, Any]) -> Reply:
        """Sends one action of the running episode.

        Raises ValueError when the episode is over, or the action too long (tool errors that the model sees),
        SessionLost.
        """
        if self.done:
            raise ValueError("The episode is over; no further call counts.")
        text = json.dumps(action, ensure_ascii=False)
        if len(text) > LONGEST_ACTION:
            raise ValueError(f"This is too long ({len(text)} characters; at most {LONGEST_ACTION} are read).")
        sendable = json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))  # no half characters
        try:
            return self._guarded(lambda session: session.step(sendable))
        except Refused as refused:
            if BROKE not in str(refused):
                raise
            self.reward, self.done, self.failure = None, True, f"the server broke in the middle of a step: {refused}"
            raise SessionLost(self.failure) from refused

    def _guarded(self, call: Callable[[Session], T]) -> T:
        if self.session is None:
            raise SessionLost("this environment was made without a session, so it cannot be played")
        try:
            return call(self.session)
        except SessionLost as lost:
            self.reward, self.done, self.failure = None, True, str(lost)
            raise

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
        """The version that enters keys."""
        return cls.version

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
