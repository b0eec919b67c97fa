"""Makes an environment of a game in one file, which teacher, training and evaluation play as any other.

In: a subclass of `Game`. Out: a class whose tools have the game's names, signatures and docstrings, and send each call
to the server, where the game itself runs. A game's `say` is sent in the same way.
"""

import functools
import inspect
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.game import SAY, Game, takes_text, tools_in
from apprentice.envs.source import digest_of

SHARED = ("Settings", "version", "reward_range", "phrases")
"""What the class has of the game as it stands there."""


class OneFile(ToolEnvironment):
    """The client of a game; `environment_of` adds the tools."""

    game: ClassVar[type[Game]]

    @property
    def instructions(self) -> str:
        return self.game(self.settings).instructions

    @property
    def max_turns(self) -> int:
        return self.game(self.settings).max_turns

    def reset(self, *, seed: int, **row: Any) -> str:
        return self.session.reset(seed=seed, settings=self.settings.model_dump(mode="json")).read(str, "text")

    def _call(self, tool: str, arguments: dict[str, Any]) -> str:
        """Raises ValueError, whose message the model sees, for what the game refuses."""
        reply = self.session.step({"tool": tool, "arguments": arguments})
        self.reward, self.done = reply.score, reply.done
        if self.done and reply.observation.get("correct") is not None:
            self.correct = reply.read(str, "correct")
        text = reply.read(str, "text")
        if reply.observation.get("refused"):
            raise ValueError(text)
        return text

    def slices(self, seed: int, question: str) -> dict[str, int | str]:
        return self.game(self.settings).traits(question)

    @classmethod
    def code_under(cls, settings: dict[str, Any]) -> str:
        return digest_of(Path(inspect.getfile(cls.game)))


def game_in(module: ModuleType) -> type[Game] | None:
    """Return the game that a module defines, if it defines one."""
    defined = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
    return next((each for each in defined if issubclass(each, Game)), None)


@cache
def environment_of(game: type[Game]) -> type[ToolEnvironment]:
    """Return the environment that plays `game` on a server."""
    shared = {name: getattr(game, name) for name in (*SHARED, "__doc__", "__module__")}
    sent = [*tools_in(game), *([SAY] if takes_text(game) else [])]
    tools = {name: _forwarded(name, getattr(game, name)) for name in sent}
    return type(game.__name__, (OneFile,), {"game": game, **shared, **tools})


def _forwarded(name: str, tool: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(tool)
    def forwarded(self: OneFile, *given: Any, **named: Any) -> str:
        arguments = inspect.signature(tool).bind(self, *given, **named).arguments
        return self._call(name, {each: value for each, value in arguments.items() if each != "self"})

    return forwarded
