"""A small server that answers with the wire of the published TextArena environment, over TextArena's own games.

As read in envs/textarena_env/server/environment.py and rewards.py of huggingface/OpenEnv at 385de5eb, which is
not on PyPI: what a reset takes, that TextArena's text comes letter by letter and is put together to one message, what
stands in `prompt`, `info` and the state.
"""

import random
import re
import threading
from collections import Counter
from typing import Any

from fastapi import FastAPI
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import BaseModel, Field

from apprentice.envs.wordle.words import without_downloads

dice = threading.Lock()
"""TextArena draws from the process's random state."""


class TextArenaAction(Action):
    message: str


class Message(BaseModel):
    sender_id: int
    content: str
    category: str


class TextArenaObservation(Observation):
    prompt: str
    messages: list[Message]
    current_player_id: int = 0
    legal_players: list[int]
    info: dict[str, Any]


class TextArenaState(State):
    env_id: str
    num_players: int = 1
    max_turns: int | None = None
    turn: int = 0
    last_reward: float = 0.0
    last_info: dict[str, Any] = Field(default_factory=dict)
    raw_state: dict[str, Any] = Field(default_factory=dict)


class Published(Environment[TextArenaAction, TextArenaObservation, TextArenaState]):
    SUPPORTS_CONCURRENT_SESSIONS = True
    env_id = ""

    def __init__(self) -> None:
        import textarena

        super().__init__()
        with without_downloads():
            self.game = textarena.make(self.env_id)
        self.before: Counter[str] = Counter()
        self.step_count = 0
        with dice:
            self.game.reset(num_players=1)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> TextArenaObservation:
        self.before.clear()
        self.step_count = 0
        wrapper = self.game
        while hasattr(wrapper, "env"):
            if hasattr(wrapper, "full_observations"):
                wrapper.full_observations = {}
            wrapper = wrapper.env
        with dice:
            kept = random.getstate()
            self.game.reset(num_players=1, seed=seed)
            if seed is not None:
                random.setstate(kept)
        return self.observed(done=False, reward=0.0)

    def step(self, action: TextArenaAction, timeout_s: float | None = None, **_: Any) -> TextArenaObservation:
        done, _info = self.game.step(action.message)
        self.step_count += 1
        reward = float((self.game.state.rewards or {}).get(0, 0.0))
        seen = self.observed(done, reward)
        if self.env_id == "Wordle-v0":
            seen.info["reward_signals"] = self.signals(action.message, seen.messages[0].content, reward)
        return seen

    def observed(self, done: bool, reward: float) -> TextArenaObservation:
        player, text = self.game.get_observation()
        return TextArenaObservation(
            prompt=text.strip() if self.game.state.turn == 0 else self.env_id,
            messages=[Message(sender_id=-1, content=text, category="MESSAGE")],
            current_player_id=player,
            legal_players=[0],
            info={},
            done=done,
            reward=reward,
        )

    def signals(self, message: str, text: str, reward: float) -> dict[str, float]:
        marks = re.findall(r"^(?:[GYX] ?){5}$", text, re.MULTILINE)[-1:]
        guess = re.search(r"\[([a-z]{5})\]", message.lower())
        letters = guess[1] if guess else re.sub("[^a-z]", "", message.lower())[:5]
        before = self.before[letters] if len(letters) == 5 else 0
        self.before[letters] += 1
        return {
            "wordle.greens": "".join(marks).count("G") / 5,
            "wordle.yellows": "".join(marks).count("Y") / 5,
            "wordle.repetitions": 1.0 - before,
            "wordle.correct": reward,
        }

    @property
    def state(self) -> TextArenaState:
        game = self.game.state
        raw = {"turn": game.turn, "game_state": game.game_state, "logs": game.logs, "done": game.done}
        return TextArenaState(
            env_id=self.env_id, step_count=self.step_count, turn=game.turn, raw_state=raw | {"rewards": game.rewards}
        )


def app_of(game: str) -> FastAPI:
    """A server that was started with this game of TextArena's."""
    served = type("Served", (Published,), {"env_id": game})
    return create_app(served, TextArenaAction, TextArenaObservation, env_name="textarena_env", max_concurrent_envs=8)
