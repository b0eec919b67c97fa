"""The OpenEnv server of a game in one file. A Space has a copy of this file, of the game and of `game.py`.

A reset names its question whole (seed, settings), so the same seed is the same question on every server. A step is
{"tool": …, "arguments": {…}}. Where the game has `say`, a last text is {"tool": "say", "arguments": {"text": …}}.
"""

from typing import Any, ClassVar
from uuid import uuid4

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

from apprentice.envs.game import SAY, Game, takes_text, tools_in


class Move(Action):
    """One call of a tool."""

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class Seen(Observation):
    """The question, or what the tool answered."""

    text: str = ""
    refused: bool = False
    """Whether the game refused the call; `text` says why."""
    correct: str | None = None


class GameServer(Environment[Move, Seen, State]):
    """One game an episode. Sessions share nothing."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    game: ClassVar[type[Game]]

    def __init__(self):
        super().__init__()
        self._playing: Game | None = None
        self._state = State(episode_id=None, step_count=0)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, settings: dict[str, Any] | None = None, **_: Any
    ) -> Seen:
        if not isinstance(seed, int):
            raise ValueError("a reset names its question: send a seed, such as reset(seed=7), and settings if you like")
        self._playing = self.game(self.game.Settings.model_validate(settings or {}))
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        return Seen(text=self._playing.ask(seed), done=False, reward=0.0)

    def step(self, action: Move, timeout_s: float | None = None, **_: Any) -> Seen:
        playing, tools = self._playing, tools_in(self.game)
        is_last_text = action.tool == SAY and takes_text(self.game)
        if playing is None or playing.done:
            raise ValueError("no episode runs: reset first, with a seed")
        if action.tool not in tools and not is_last_text:
            raise ValueError(f"there is no tool {action.tool}; there are {', '.join(tools)}")
        self._state.step_count += 1
        try:
            reply = getattr(playing, action.tool)(**action.arguments)
            text, refused = "" if is_last_text else str(reply), False
        except ValueError as error:
            text, refused = str(error), True
        playing.done |= (is_last_text and not refused) or self._state.step_count >= playing.max_turns
        correct = playing.correct if playing.done else None
        return Seen(text=text, refused=refused, correct=correct, done=playing.done, reward=playing.reward)

    @property
    def state(self) -> State:
        return self._state


def server_of(game: type[Game]) -> type[GameServer]:
    """Return the server's class for one game."""
    return type(f"{game.__name__}Server", (GameServer,), {"game": game})
