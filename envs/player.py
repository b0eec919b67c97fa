"""A player of an environment: what teacher, GRPO, evaluation and audit play through.

In: an environment with its session. Out: questions, tool results, rewards, slices.
Why: TRL takes every public method of what it is given for a tool. So an environment holds what its author writes, its
player has all else, and TRL is given `facade_of` a player, which has the tools alone.
"""

import hashlib
import inspect
import itertools
import json
from collections.abc import Sequence
from copy import deepcopy
from functools import cached_property, wraps
from typing import Any, Protocol, cast

from pydantic import Field

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.game import EnvironmentSettings, takes_text
from apprentice.envs.old_names import OldPlayer, follow_overrides, give_old_names
from apprentice.envs.reward import ROUNDING
from apprentice.envs.tools import Tool
from apprentice.envs.wire.reply import BadReply, checked_text
from apprentice.envs.wire.server import SessionLost


class TextCall(EnvironmentSettings):
    """The call as which a last text is sent to the server."""

    tool: str
    """The tool."""
    argument: str
    """Its argument that takes the text; it has no other."""
    unlisted: bool = Field(default=False, exclude_if=lambda unlisted: not unlisted)
    """Whether the server does not list this tool, as one that grades the episode and is none of the model's."""


class CallsUnlisted(Protocol):
    """An environment whose server has tools that it does not list."""

    def call_unlisted(self, name: str, arguments: dict[str, Any]) -> None: ...


class TakesText(Protocol):
    """An environment that scores a last text."""

    def say(self, text: str) -> None: ...


@give_old_names
class Player(OldPlayer):
    """Plays one environment, an episode at a time.

    Attributes:
        environment: The environment, whose author decides on prompt, tools and rewards.
        label: The label of this environment in a mixture; empty outside a mixture.
    """

    def __init__(self, environment: ToolEnvironment, label: str = "", text_call: TextCall | None = None):
        """`text_call`: the call that sends a last text, for an environment without `say`."""
        self.environment = environment
        self.label = label
        self._text_call = text_call
        self.is_forfeited = False
        follow_overrides(self)

    @property
    def instructions(self) -> str:
        return self.environment.instructions

    @property
    def max_turns(self) -> int:
        return self.environment.max_turns

    @property
    def phrases(self) -> tuple[str, ...]:
        return self.environment.phrases

    @property
    def streams(self) -> dict[str, float]:
        return self.environment.streams

    @property
    def reward_range(self) -> tuple[float, float]:
        return self.environment.reward_range

    @cached_property
    def tools(self) -> list[Tool]:
        return self.environment.declared_tools()

    @cached_property
    def schemas(self) -> list[dict[str, Any]]:
        """The tools' JSON schemas, as every prompt has them."""
        return [tool.schema for tool in self.tools]

    @property
    def takes_text(self) -> bool:
        """Whether a message that is a text without a call ends the episode and is scored."""
        return self._text_call is not None or takes_text(type(self.environment))

    @property
    def reward(self) -> float | None:
        """The reward of the episode so far; None when the infrastructure failed."""
        return self.environment.reward

    @property
    def done(self) -> bool:
        """Whether the environment has ended the episode."""
        return self.environment.done

    @property
    def failure(self) -> str | None:
        """Why the infrastructure failed, if it did."""
        return self.environment.failure

    @property
    def correct(self) -> str | None:
        """The environment's own answer, once the episode is over and if it provides one."""
        return self.environment.correct

    def ask(self, seed: int) -> str:
        """Return the question for `seed`; reset once more if the reply holds none. Raises Refused, SessionLost."""
        try:
            return checked_text(self.environment.reset(seed=seed), "the question")
        except BadReply:  # a new connection: the reply may belong to another message
            self.renew()
        try:
            return checked_text(self.environment.reset(seed=seed), "the question")
        except BadReply as bad:
            self.lose(f"no question under seed {seed}, twice: {bad}")
            raise SessionLost(self.failure) from bad

    def act(self, name: str, arguments: str | dict[str, Any]) -> str:
        """Call a tool and return its reply.

        Raises BadReply, SessionLost. Whatever else the tool raises is an error that the model sees, as are ValueError
        for an unknown tool or malformed JSON, and TypeError for arguments that do not fit its signature.
        """
        tool = next((tool for tool in self.tools if tool.name == name), None)
        if tool is None:
            raise ValueError(f"Tool {name} not found.")
        # a tool may change what it is given; other rollouts of a group share the message
        given = json.loads(arguments) if isinstance(arguments, str) else deepcopy(arguments)
        inspect.signature(tool.call).bind(**given)
        return str(tool.call(**given))

    def say(self, text: str) -> None:
        """Have the environment score the last text of an episode, if `takes_text`.

        Raises BadReply, SessionLost, and whatever the environment raises for a text that it refuses.
        """
        call = self._text_call
        if call is not None and call.unlisted:
            cast(CallsUnlisted, self.environment).call_unlisted(call.tool, {call.argument: text})
        elif call is not None:
            self.act(call.tool, {call.argument: text})
        else:
            cast(TakesText, self.environment).say(text)

    def check_reward(self) -> None:
        """Set a reward that misses a bound of its range by rounding to it. Raises BadReply if it exceeds it by more."""
        if self.reward is None or not self.environment.bounded:
            return
        low, high = self.reward_range
        for name, score in {"reward": self.reward, **self.scores()}.items():
            if not isinstance(score, int | float) or not low - ROUNDING <= score <= high + ROUNDING:
                raise BadReply(f"{name} is {str(score)[:40]}, which is not within {low:g} to {high:g}")
        reward = min(max(self.reward, low), high)
        self.environment.reward = float(next((each for each in (low, high) if abs(reward - each) <= ROUNDING), reward))

    def forfeit(self) -> None:
        """Take back the partial credit of an episode that has not ended, and that of its reward streams."""
        if not self.done and self.reward is not None:
            self.environment.reward = 0.0
            self.is_forfeited = True

    def give_up(self) -> None:
        """Score an episode that its player ended: without partial credit it earns the lowest reward of the range, or
        the environment's `unfinished`. With 0.0, to do nothing would be better than a wrong answer of -1."""
        if not self.done and self.reward == 0.0:
            lowest, unfinished = self.reward_range[0], self.environment.unfinished
            self.environment.reward = lowest if unfinished is None else unfinished

    def lower(self, to: float) -> None:
        """Score an episode that its player ended no higher than `to`, where nobody knows the lowest reward."""
        if not self.environment.bounded and not self.done and self.reward is not None:
            self.environment.reward = min(self.reward, to)

    def lose(self, why: str) -> None:
        """End the episode without a reward."""
        self.environment.session.lose(why)

    def renew(self) -> None:
        """Play the next episode over a new connection."""
        self.environment.session.renew()

    def wait_for_server(self) -> None:
        """Wait until the server is not known to be unavailable. Raises SessionLost."""
        self.environment.session.guarded(lambda session: session.wait_for_server())

    def close(self) -> None:
        self.environment.session.close()

    def scores(self) -> dict[str, float | None]:
        """Return the score of each of `streams`, once the episode is over; None if the infrastructure failed."""
        if self.is_forfeited:
            return dict.fromkeys(self.streams, self.reward)
        return self.environment.scores()

    def slices(self, seed: int, question: str) -> dict[str, int | str]:
        """Return the question's slices, for tables; in a mixture the environment's label comes first."""
        label: dict[str, int | str] = {"environment": self.label} if self.label else {}
        return label | self.environment.slices(seed, question)

    def part(self, seed: int) -> "Player":
        """Return the player of this seed: this one, or the part of a mixture that the seed belongs to."""
        return self

    def parts(self) -> "list[Player]":
        """Return all players: this one, or all parts of a mixture."""
        return [self]


class Mixture(Player):
    """A player with parts, one of which plays each seed, drawn by their weights; `environment` has the settings.

    Rewards and tools are those of the parts.
    """

    def __init__(self, environment: ToolEnvironment, parts: dict[str, Player], weights: Sequence[float]):
        """`parts` are named by their labels, in the order of their weights."""
        super().__init__(environment)
        self._players = list(parts.values())
        self._ends, self._whole = list(itertools.accumulate(weights)), sum(weights)
        for label, part in parts.items():
            part.label = label

    @property
    def instructions(self) -> str:
        return "\n\n".join(part.instructions for part in self._players)

    @property
    def max_turns(self) -> int:
        return max(part.max_turns for part in self._players)

    def ask(self, seed: int) -> str:
        return self.part(seed).ask(seed)

    def slices(self, seed: int, question: str) -> dict[str, int | str]:
        return self.part(seed).slices(seed, question)

    def wait_for_server(self) -> None:
        for part in self._players:
            part.wait_for_server()

    def close(self) -> None:
        for part in self._players:
            part.close()

    def part(self, seed: int) -> Player:
        draw = int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=8).digest()) / 2**64
        drawn = (part for part, end in zip(self._players, self._ends, strict=True) if draw * self._whole < end)
        return next(drawn, self._players[-1])

    def parts(self) -> list[Player]:
        return self._players


def facade_of(player: Player) -> Any:
    """Return what TRL's `environment_factory` gives to a trainer: `reset`, and the tools as methods.

    Without a session `reset` returns the question of the dataset's row, since the players of a pool play the episode.
    """

    def reset(self: Any, *, seed: int, question: str = "", **row: Any) -> str:
        return player.ask(seed) if player.environment.session else question

    methods = {tool.name: _method(tool) for tool in player.tools}
    return type("Facade", (), {**methods, "reset": reset, "schemas": player.schemas})()


def _method(tool: Tool) -> Any:
    @wraps(getattr(tool.call, "__func__", tool.call))
    def method(self: Any, *given: Any, **named: Any) -> str:
        return tool.call(*given, **named)

    return method
