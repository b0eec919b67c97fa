"""Wordle as an OpenEnv environment, in the wire of the published TextArena environment.

A reset names its puzzle whole (seed, words, candidates, rules). An observation's one message holds all that was said
since the reset. Read in envs/textarena_env of github.com/huggingface/OpenEnv (385de5eb). Beside its fields stand the
puzzle in short, the list in use, and after the end the secret.
"""

import re
from collections import Counter
from typing import Any
from uuid import uuid4

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import BaseModel, Field

from . import words as word_lists
from .rules import Game, accepted

GAME = "Wordle-v0"
"""TextArena's name of the game; the prompt once a turn was made."""
MARKS = re.compile(r"^[GYX](?: [GYX]){4}$", re.MULTILINE)

accepted(
    "wordle"
)  # reads the dictionaries, which takes seconds: when the server starts, not in a session's first reset


class WordleAction(Action):
    """A guess in square brackets, such as "[crane]"."""

    message: str


class WordleMessage(BaseModel):
    """TextArena's message."""

    sender_id: int = -1
    content: str
    category: str = "MESSAGE"


class WordleObservation(Observation):
    """What was said since the reset, in one message."""

    prompt: str = ""
    messages: list[WordleMessage] = Field(default_factory=list)
    current_player_id: int = 0
    legal_players: list[int] = Field(default_factory=lambda: [0])
    info: dict[str, Any] = Field(default_factory=dict)
    question: str = ""
    """The puzzle in short, after a reset."""
    word_list: str = ""
    """Which list the secret is from."""
    correct_answer: str | None = None
    """The secret, once the game is over."""


class WordleEnvironment(Environment[WordleAction, WordleObservation, State]):
    """One word an episode. Sessions share nothing that changes."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._game: Game | None = None
        self._list = ""
        self._guessed: Counter[str] = Counter()
        self._state = State(episode_id=None, step_count=0)

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        words: str = "wordle",
        candidates: int = 0,
        rules: str = "textarena",
        **_: Any,
    ) -> WordleObservation:
        if not isinstance(seed, int):
            raise ValueError(
                "a reset names its puzzle: send a seed, such as reset(seed=7); words, candidates and rules may follow"
            )
        if not isinstance(candidates, int):
            raise ValueError(f"candidates must be a whole number, not {candidates!r}")
        puzzle = word_lists.puzzle(words, candidates, seed)
        self._game, self._list = Game(puzzle, accepted(words), rules), words
        self._guessed.clear()
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        told = self._game.transcript
        return self._seen(told, prompt=told.strip(), question=puzzle.question, done=False, reward=0.0)

    def step(self, action: WordleAction, timeout_s: float | None = None, **_: Any) -> WordleObservation:
        if self._game is None:
            raise ValueError("no episode runs: reset first, with a seed")
        game = self._game
        done = game.step(action.message)
        self._state.step_count += 1
        self._game = None if done else game
        told = game.transcript
        return self._seen(
            told,
            prompt=GAME if game.turn else told.strip(),
            info={"reward_signals": self._signals(action.message, told, game.reward)},
            correct_answer=game.secret if done else None,
            done=done,
            reward=game.reward,
        )

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **given: Any
    ) -> WordleObservation:
        """As `reset`; on the server's loop, since a thread for each session costs more than the game."""
        return self.reset(seed, episode_id, **given)

    async def step_async(self, action: WordleAction, timeout_s: float | None = None, **given: Any) -> WordleObservation:
        """As `step`."""
        return self.step(action, timeout_s, **given)

    @property
    def state(self) -> State:
        return self._state

    def _seen(self, told: str, **rest: Any) -> WordleObservation:
        return WordleObservation(
            messages=[WordleMessage(content=told)], word_list=word_lists.in_use(self._list), **rest
        )

    def _signals(self, message: str, told: str, reward: float) -> dict[str, float]:
        """As the published environment has them: shares of the last marks that were told, be they of this guess or of
        an earlier one; 1.0 less the times that this word was guessed before."""
        marks = (MARKS.findall(told) or [""])[-1]
        found = re.search(r"\[([a-z]{5})\]", message.lower())
        word = found[1] if found else re.sub("[^a-z]", "", message.lower())[: word_lists.LETTERS]
        before = self._guessed[word] if len(word) == word_lists.LETTERS else 0
        self._guessed[word] += 1
        return {
            "wordle.greens": marks.count("G") / word_lists.LETTERS,
            "wordle.yellows": marks.count("Y") / word_lists.LETTERS,
            "wordle.repetitions": 1.0 - before,
            "wordle.correct": reward,
        }
