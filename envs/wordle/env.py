"""Wordle as an environment: find a secret word of five letters in six guesses.

In: which word list, and how many candidates a puzzle names. Out: the puzzle of a seed, what each guess has right, and
whether the word was found. Speaks the wire of OpenEnv's TextArena environment (step: message, such as "[crane]").
"""

from typing import Any, Literal

from pydantic import Field, field_validator

from apprentice.envs.base import EnvironmentSettings, ToolEnvironment
from apprentice.envs.wordle.server import words

MARKS = ("X ", "G ", "Y ")
REFUSALS = (
    "Your word must be exactly 5 letters.",
    "You tried submitting a word in the wrong format. Please make sure to use squared brackets.",
    "You have already guessed '",
    "' before. Please try a different word.",
    "' is not an English word.",
)
"""As TextArena says them."""
SIGNALS = {"wordle.greens": "greens", "wordle.yellows": "yellows", "wordle.repetitions": "repetition"}
"""The streams by their names on the wire."""


class Settings(EnvironmentSettings):
    """Which secret words, and how much is known of them."""

    words: Literal["wordle", "textarena"] = "wordle"
    """The list of secret words, the same on every server. `wordle`: the 2,315 of the original game, from the package
    reasoning_gym. `textarena`: TextArena's own, the nouns of NLTK's basic English, from NLTK's download."""
    candidates: int = Field(default=0, ge=0, le=100)
    """Words that the puzzle names, one of which is the secret: more puzzles, each easier, and to be had without knowing
    English. 0 names none: the list itself is all that is known."""

    @field_validator("candidates")
    @classmethod
    def _leave_something_to_guess(cls, candidates: int) -> int:
        if candidates == 1:
            raise ValueError("one candidate is the answer; name 0 for none, or 2 and more")
        return candidates


class Environment(ToolEnvironment):
    """One word an episode, six calls of `guess`."""

    Settings = Settings
    version = "1"
    extra = ("textarena", "textarena")
    phrases = (
        words.NAMED,
        words.OPEN,
        *MARKS,
        *REFUSALS,
        *(f"\nGuesses left: {left}." for left in range(1, words.GUESSES)),
    )
    streams = {"correct": 1.0, "greens": 0.2, "yellows": 0.1, "repetition": 0.1}  # noqa: RUF012 (base.py declares it)
    settings: Settings
    _signals: dict[str, float] = {}  # noqa: RUF012 (never changed, only replaced)

    @property
    def max_turns(self) -> int:
        return words.GUESSES

    @property
    def instructions(self) -> str:
        return (
            "You play Wordle: find the secret word of five letters in six guesses. Call the tool `guess` with one word "
            "at a time. For each letter of it you are told G (in the word, in this place), Y (in the word, in another "
            "place) or X (not in the word). What is no English word of five letters, or was guessed before, is refused "
            "and costs a guess."
        )

    def reset(self, *, seed: int, **row: Any) -> str:
        """The puzzle that `seed` names."""
        self._signals = {}
        reply = self._start(seed, words=self.settings.words, candidates=self.settings.candidates)
        return reply.read(str, "question")

    def guess(self, word: str) -> str:
        """Guess the secret word.

        Args:
            word: An English word of five letters.

        Returns:
            For each letter G, Y or X, and how many guesses are left.
        """
        reply = self._act({"message": f"[{str(word).strip().strip('[]')}]"})
        self._signals = {name: reply.read(float, "info", "reward_signals", name) for name in SIGNALS}
        if reply.done:
            self.reward, self.done, self.correct = reply.score, True, reply.read(str, "correct_answer")
            return "OK."
        seen = reply.find(str, "refused") or reply.read(str, "feedback")
        return f"{seen}\nGuesses left: {reply.read(int, 'guesses_left')}."

    def _scores(self) -> dict[str, float | None]:
        """Whether the word was found, the shares of G and of Y in the last turn, and that of turns with a new word."""
        if self.reward is None:
            return dict.fromkeys(self.streams)
        return {
            "correct": self.reward,
            **{stream: self._signals.get(name, 0.0) for name, stream in SIGNALS.items()},
        }

    def _traits(self, seed: int, question: str) -> dict[str, int | str]:
        """How many different letters the word has, and where among the candidates it stands; from the list that lies
        here, so empty where the server has another puzzle under this seed."""
        if self.settings.words != "wordle":
            return {}
        puzzle = words.puzzle(self.settings.words, self.settings.candidates, seed)
        if puzzle.question != question:
            return {}
        traits: dict[str, int | str] = {"different letters": len(set(puzzle.secret))}
        return traits | ({"place": puzzle.candidates.index(puzzle.secret) + 1} if puzzle.candidates else {})
