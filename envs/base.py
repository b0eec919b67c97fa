"""The base class of environments: what their authors write.

Teacher, GRPO and evaluation play the same class, each through a `Player` (envs/player.py).

In: the environment's settings and a session of its OpenEnv server.
Out: a question from `reset(**row)`, tool results, and `reward` and `done` as attributes.
Why: the class's public methods are the tools, so its code is the only description of the task. A second
description (a hand-written schema, another prompt) costs accuracy (law 1 of docs/laws.md).
"""

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import BaseModel

from apprentice.envs.game import SAY, takes_text
from apprentice.envs.game import EnvironmentSettings as EnvironmentSettings
from apprentice.envs.game import whole_number as whole_number
from apprentice.envs.old_names import OldNames
from apprentice.envs.reward import is_right as is_right
from apprentice.envs.source import digest_of, joined
from apprentice.envs.tools import Tool
from apprentice.envs.wire.reply import Reply
from apprentice.envs.wire.server import EnvironmentServer, SessionLost

if TYPE_CHECKING:
    from apprentice.envs.wire.session import Session

T = TypeVar("T")

LONGEST_ACTION = 20_000
"""Maximum characters of an action's JSON; a server closes the connection on a much longer message."""


class ToolEnvironment(OldNames, ABC):
    """An environment of one episode at a time. Its public methods are the tools, except those of this class.

    One may be `say(self, text: str) -> None`. It is no tool: it is called with a message that is a text without a call,
    and sets `reward` and `done`. Without it such a message ends the episode as unfinished.

    Attributes:
        session: The connection to the server: `reset(seed=…)`, `step(action)`, `state()`.
        reward: The reward of the finished episode, within `reward_range`; 0.0, or partial credit, while the episode
            runs, and `None` when the infrastructure failed: an outage must not train the policy.
        done: Whether the environment has ended the episode.
        failure: Why the infrastructure failed, if it did.
        correct: The environment's own answer, once the episode is over and if it provides one; never shown to a model.
    """

    Settings: ClassVar[type[BaseModel]]
    version: ClassVar[str]  # raise it when the same seed gives another question; 1 to 1.1 when only another reward
    extra: ClassVar[tuple[str, str]] = ("", "")  # optional dependency of its server: extra, module it adds
    discovered: ClassVar[tuple[str, ...]] = ()  # settings that only its server knows; they are read before a run begins
    phrases: ClassVar[tuple[str, ...]] = ()  # parts of its replies that become single tokens of a student built here
    reward_range: tuple[float, float] = (0.0, 1.0)  # a reward outside it counts as a server failure
    bounded: bool = True  # False where nobody knows the range: any finite reward counts, and 1.0 is right
    unfinished: float | None = None  # the reward where a player ends the episode with 0.0; None: the lowest
    streams: ClassVar[dict[str, float]] = {"environment_reward": 1.0}  # GRPO's reward functions and their weights

    def __init__(self, settings: BaseModel, session: "Session | None" = None):
        """Without a `session` only the prompt and the tools are available."""
        self.settings = settings
        self.session = EpisodeSession(self, session)
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
        """Start the episode for `seed` and return its question. Raises BadReply, SessionLost; it is retried once."""

    def declared_tools(self) -> list[Tool]:
        """Return the tools. Override it if they are known at run time only."""
        return [Tool.of(getattr(self, name)) for name in tool_names(type(self))]

    def scores(self) -> dict[str, float | None]:
        """Return the score of each of `streams`, once the episode is over; None if the infrastructure failed."""
        return dict.fromkeys(self.streams, self.reward)

    def slices(self, seed: int, question: str) -> dict[str, int | str]:
        """Return the question's slices, such as {"terms": 3}, for the tables of an evaluation; needs no session."""
        return {}

    @classmethod
    def completed(cls, settings: dict[str, Any], session: "Session") -> dict[str, Any]:
        """Return the settings with those in `discovered`. Raises ValueError, Refused, BadReply, SessionLost."""
        return settings

    @classmethod
    def questions_under(cls, settings: dict[str, Any]) -> int | None:
        """Return how many questions there are, whatever the seed; None where every seed may have its own."""
        return None

    @classmethod
    def version_under(cls, settings: dict[str, Any]) -> str:
        """Return the version that people see."""
        return cls.version

    @classmethod
    def code_under(cls, settings: dict[str, Any]) -> str:
        """Return the digest of its folder: the class, its script and its server; of a base's folder as well."""
        own = [each for each in cls.__mro__ if issubclass(each, ToolEnvironment) and each is not ToolEnvironment]
        return joined([digest_of(place) for place in dict.fromkeys(map(_source_of, own))])


class EpisodeSession:
    """An environment's session. It sends nothing after the end of an episode, and ends one whose server is lost."""

    def __init__(self, environment: ToolEnvironment, session: "Session | None"):
        self._environment = environment
        self._session = session

    def __bool__(self) -> bool:
        """Whether there is a server to play on."""
        return self._session is not None

    @property
    def server(self) -> EnvironmentServer:
        return self.guarded(lambda session: session.server)

    def reset(self, *, seed: int, **question: Any) -> Reply:
        """Send a full reset, with everything that identifies the question. Raises Refused, BadReply, SessionLost."""
        episode = self._environment
        episode.reward, episode.done, episode.failure, episode.correct = 0.0, False, None, None
        return self.guarded(lambda session: session.reset(seed=seed, **question))

    def begin(self, anew: bool, skipped: int) -> None:
        """Say how the next episodes begin: each on a connection of its own, and after how many resets of it."""
        if self._session is not None:
            self._session.starts_anew, self._session.skipped = anew, skipped

    def step(self, action: dict[str, Any]) -> Reply:
        """Send one action of the running episode.

        Raises ValueError (a tool error that the model sees) if the episode is over or the action is too long;
        Refused, BadReply, SessionLost.
        """
        if self._environment.done:
            raise ValueError("The episode is over; no further call counts.")
        text = json.dumps(action, ensure_ascii=False)
        if len(text) > LONGEST_ACTION:
            raise ValueError(f"This is too long ({len(text)} characters; at most {LONGEST_ACTION} are read).")
        return self.guarded(lambda session: session.step(json.loads(whole_characters(text))))

    def state(self) -> dict[str, Any]:
        """Return the server's state of the current episode. Raises BadReply, SessionLost."""
        return self.guarded(lambda session: session.state())

    def guarded(self, call: "Callable[[Session], T]") -> T:
        """Call with the session; one that is lost ends the episode without a reward. Raises SessionLost."""
        if self._session is None:
            raise SessionLost("this environment was made without a session, so it cannot be played")
        try:
            return call(self._session)
        except SessionLost as lost:
            self.lose(str(lost))
            raise

    def lose(self, why: str) -> None:
        """End the episode without a reward."""
        self._environment.reward, self._environment.done, self._environment.failure = None, True, why

    def renew(self) -> None:
        """Play the next episode over a new connection."""
        if self._session is not None:
            self._session.renew()

    def close(self) -> None:
        """Close the session on the server."""
        if self._session is not None:
            self._session.close()


@cache
def tool_names(environment: type[ToolEnvironment]) -> list[str]:
    """Return the names of the tools that are methods of the class, in the order in which TRL discovers them."""
    functions = inspect.getmembers(environment, predicate=inspect.isfunction)
    own = [name for name, _ in functions if not name.startswith("_") and not hasattr(ToolEnvironment, name)]
    return [name for name in own if not (name == SAY and takes_text(environment))]


def _source_of(cls: type) -> Path:
    """Return the folder of a class's package, or its file where it belongs to no package or is one beside this file."""
    file = Path(inspect.getfile(cls))
    alone = cls.__module__.rpartition(".")[0] in ("", __package__)
    return file if alone and file.name != "__init__.py" else file.parent


def whole_characters(text: str) -> str:
    """Return the text as it can be sent: without half characters, which no encoding has."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
