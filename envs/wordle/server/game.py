"""Wordle as an OpenEnv environment, in the wire of the published TextArena environment.

A reset names its puzzle whole (seed, words, candidates). An observation holds what is new since the last one. The
reward is 1.0 for the word, else 0.0; the four signals of the published environment stand in `info`.
"""

from typing import Any
from uuid import uuid4

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import BaseModel, Field

from . import words as word_lists
from .rules import Game, accepted

accepted(
    "wordle"
)  # reads the dictionaries, which takes seconds: when the server starts, not in a session's first reset


class WordleAction(Action):
    """A guess in square brackets, such as "[crane]"."""

    message: str


class WordleMessage(BaseModel):
    """One of TextArena's messages."""

    sender_id: int
    content: str
    category: str


class WordleObservation(Observation):
    """What is new: after a reset the game's rules and the puzzle, after a step what became of the guess."""

    prompt: str = ""
    messages: list[WordleMessage] = Field(default_factory=list)
    current_player_id: int = 0
    legal_players: list[int] = Field(default_factory=lambda: [0])
    info: dict[str, Any] = Field(default_factory=dict)
    question: str = ""
    """The puzzle in short, after a reset."""
    feedback: str = ""
    """The last guess's marks, such as "X G Y X X"."""
    refused: str = ""
    """Why the last guess was refused, if it was."""
    guesses_left: int = word_lists.GUESSES
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
        self._new_words = 0
        self._state = State(episode_id=None, step_count=0)

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        words: str = "wordle",
        candidates: int = 0,
        **_: Any,
    ) -> WordleObservation:
        if not isinstance(seed, int):
            raise ValueError("a reset names its puzzle: seed, words and candidates")
        if not isinstance(candidates, int):
            raise ValueError(f"candidates must be a whole number, not {candidates!r}")
        puzzle = word_lists.puzzle(words, candidates, seed)
        self._game, self._list, self._new_words = Game(puzzle.secret, accepted(words)), words, 0
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        seen = self._seen(self._game)
        prompt = "\n".join(message.content for message in seen) + puzzle.question
        return WordleObservation(
            prompt=prompt,
            messages=seen,
            question=puzzle.question,
            word_list=word_lists.in_use(words),
            done=False,
            reward=0.0,
        )

    def step(self, action: WordleAction, timeout_s: float | None = None, **_: Any) -> WordleObservation:
        if self._game is None:
            raise ValueError("no episode runs: reset first")
        game = self._game
        done, _info = game.step(action.message)
        self._state.step_count += 1
        self._new_words += bool(game.marks)
        reward = float(game.won)
        self._game = None if done else game
        return WordleObservation(
            messages=self._seen(game),
            info={"reward_signals": self._signals(game)},
            feedback=game.marks,
            refused=game.state.refused,
            guesses_left=word_lists.GUESSES - self._state.step_count,
            word_list=word_lists.in_use(self._list),
            correct_answer=game.secret if done else None,
            done=done,
            reward=reward,
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

    def _signals(self, game: Game) -> dict[str, float]:
        """Under their published names. `repetitions` falls with every turn that brought no new word."""
        return {
            "wordle.greens": game.marks.count("G") / word_lists.LETTERS,
            "wordle.yellows": game.marks.count("Y") / word_lists.LETTERS,
            "wordle.repetitions": self._new_words / self._state.step_count,
            "wordle.correct": float(game.won),
        }

    @staticmethod
    def _seen(game: Game) -> list[WordleMessage]:
        """TextArena's messages since they were last read."""
        _, new = game.get_observation()
        return [WordleMessage(sender_id=sender, content=text, category=kind.name) for sender, text, kind in new]
