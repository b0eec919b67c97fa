"""Wordle as an environment: find a secret word of five letters in six guesses.

In: which word list, and how many candidates a puzzle names. Out: the puzzle of a seed, what each guess has right, and
whether the word was found. Speaks the wire of OpenEnv's TextArena environment (step: message, such as "[crane]"), and
plays on servers of that environment as well as on ours, under the settings that such a server has.

Its scripted teacher finds the word nearly always. As many candidates as there are guesses it takes in turn, whatever
the marks: that is sure, and a student without any pretraining can learn it. Of more it takes the first that fits. Where
none is named it knows the game's word list, and takes the word whose letters are the commonest in their places. On a
fixed share of the puzzles it misspells all.
"""

import json
import re
from collections import Counter
from functools import lru_cache
from typing import Any, Literal

from pydantic import Field, field_validator

from apprentice.envs.base import EnvironmentSettings, ToolEnvironment, is_right
from apprentice.envs.policy import errs, question_in
from apprentice.envs.textarena import Transcript, published_state, refusal_in
from apprentice.envs.wire.reply import Reply
from apprentice.envs.wire.session import Refused
from apprentice.envs.wordle import words

MARKS = ("X ", "G ", "Y ")
REFUSALS = (
    "Your word must be exactly 5 letters.",
    "You tried submitting a word in the wrong format. Please make sure to use squared brackets.",
    "You have already guessed '",
    "' before. Please try a different word.",
    "' is not an English word.",
)
"""As TextArena says them."""
FEEDBACK = re.compile(r"^Feedback:\n[^\n]*\n([GYX](?: [GYX]){4})$", re.MULTILINE)
PUBLISHED = "words: textarena, candidates: 0, rules: textarena"
"""The settings under which a server of the published environment can be played: what it is asked for it ignores."""


class Settings(EnvironmentSettings):
    """Which secret words, and how much is known of them."""

    words: Literal["wordle", "textarena"] = "wordle"
    """The list of secret words, the same on every server. `wordle`: the 2,315 of the original game, from the package
    reasoning_gym. `textarena`: TextArena's own, the nouns of NLTK's basic English, from NLTK's download."""
    candidates: int = Field(default=0, ge=0, le=100)
    """Words that the puzzle names, one of which is the secret: more puzzles, each easier, and to be had without knowing
    English. 0 names none: the list itself is all that is known."""
    rules: Literal["apprentice", "textarena"] = "apprentice"
    """What a refused guess costs, and what a lost game earns. `apprentice`: one of the six guesses, and nothing.
    `textarena`, as the published server has it: nothing, but the second in a row ends the game; and a lost game earns a
    fifth for each G of the last marks and a tenth for each Y."""

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
    _transcript: Transcript
    _secret: str | None = None
    _marks = ""
    _turns = 0
    _accepted = 0

    @property
    def max_turns(self) -> int:
        """Six; by TextArena's rules one refused guess before each is free."""
        return words.GUESSES if self.settings.rules == "apprentice" else 2 * words.GUESSES

    @property
    def instructions(self) -> str:
        costs = "costs a guess" if self.settings.rules == "apprentice" else "the second time in a row ends the game"
        return (
            "You play Wordle: find the secret word of five letters in six guesses. Call the tool `guess` with one word "
            "at a time. For each letter of it you are told G (in the word, in this place), Y (in the word, in another "
            "place) or X (not in the word). What is no English word of five letters, or was guessed before, is refused "
            f"and {costs}."
        )

    def reset(self, *, seed: int, **row: Any) -> str:
        """The puzzle that `seed` names."""
        self._marks, self._turns, self._accepted = "", 0, 0
        reply = self.session.reset(seed=seed, **self.settings.model_dump())
        self._transcript, self._secret = Transcript(reply), None
        question = reply.find(str, "question")
        return self._published() if question is None else question

    def _published(self) -> str:
        """The puzzle on a server of the published environment, which names none: by the secret in its state."""
        if (self.settings.words, self.settings.candidates, self.settings.rules) != ("textarena", 0, "textarena"):
            raise Refused(
                f"this server is of the published TextArena environment, which plays only {PUBLISHED}: set these, or "
                "serve this project's Wordle (apprentice env build wordle makes a Space of it)"
            )
        self._secret = published_state(self, "Wordle-v0", PUBLISHED).get("secret_word")
        if not isinstance(self._secret, str):
            raise Refused(
                "this server does not tell its secret in its state, so that its puzzles cannot be told apart; serve "
                "this project's Wordle (apprentice env build wordle makes a Space of it)"
            )
        return words.question_about(self._secret)

    def guess(self, word: str) -> str:
        """Guess the secret word.

        Args:
            word: An English word of five letters.

        Returns:
            For each letter G, Y or X, and how many guesses are left.
        """
        message = f"[{str(word).strip().strip('[]')}]"
        reply = self.session.step({"message": message})
        return self._read(reply, self._transcript.new(reply, message))

    def _read(self, reply: Reply, new: str) -> str:
        won = reply.done and is_right(reply.score)  # which TextArena does not say in its message
        marks = FEEDBACK.search(new)
        self._marks = "G G G G G" if won else marks[1] if marks else ""
        self._turns += 1
        self._accepted += bool(self._marks)
        if reply.done:
            self.reward, self.done = reply.score, True
            self.correct = self._secret or reply.read(str, "correct_answer")
            return "OK."
        used = self._turns if self.settings.rules == "apprentice" else self._accepted
        return f"{self._marks or refusal_in(new)}\nGuesses left: {words.GUESSES - used}."

    def scores(self) -> dict[str, float | None]:
        """The reward, the shares of G and of Y in the last turn, and that of turns with a new word."""
        if self.reward is None:
            return dict.fromkeys(self.streams)
        return {
            "correct": self.reward,
            "greens": self._marks.count("G") / words.LETTERS,
            "yellows": self._marks.count("Y") / words.LETTERS,
            "repetition": self._accepted / self._turns if self._turns else 0.0,
        }

    def slices(self, seed: int, question: str) -> dict[str, int | str]:
        """How many different letters the word has, and where among the candidates it stands; from the list that lies
        here, so empty where the server has another puzzle under this seed."""
        if self.settings.words != "wordle":
            return {}
        puzzle = words.puzzle(self.settings.words, self.settings.candidates, seed)
        if puzzle.question != question:
            return {}
        traits: dict[str, int | str] = {"different letters": len(set(puzzle.secret))}
        return traits | ({"place": puzzle.candidates.index(puzzle.secret) + 1} if puzzle.candidates else {})


def check(settings: dict[str, Any]) -> None:
    """Raises ValueError where the list that it would have to know cannot be had here."""
    if not settings.get("candidates"):
        words.word_list(settings.get("words", "wordle"))


def call(settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float) -> tuple[str, dict[str, Any]]:
    """The tool and the arguments of the script's next turn."""
    question = question_in(messages)
    named = words.candidates_in(question)
    pool = named or words.word_list(settings.get("words", "wordle"))
    told = _told(messages)
    fitting = [word for word in pool if word not in told and all(marks(g, word) == m for g, m in told.items() if m)]
    if 0 < len(named) <= words.GUESSES:
        fitting = [word for word in named if word not in told]
    choice = _commonest(tuple(fitting)) if fitting and not named else next(iter(fitting), pool[0])
    return "guess", {"word": _misspelt(choice) if errs(question, error_rate) else choice}


@lru_cache(maxsize=100_000)
def marks(guess: str, secret: str) -> str:
    """What the game says of a guess, such as "X G Y X X"."""
    elsewhere = Counter(s for g, s in zip(guess, secret, strict=True) if g != s)
    told = []
    for g, s in zip(guess, secret, strict=True):
        told.append("G" if g == s else "Y" if elsewhere[g] > 0 else "X")
        elsewhere[g] -= g != s
    return " ".join(told)


def _told(messages: list[dict[str, Any]]) -> dict[str, str]:
    """Each guess so far, and its marks: none for one that was refused."""
    guesses = [
        call["function"]["arguments"]
        for message in messages
        if message["role"] == "assistant"
        for call in message.get("tool_calls") or []
    ]
    replies = [message["content"].split("\n")[0] for message in messages if message["role"] == "tool"]
    given = [json.loads(each) if isinstance(each, str) else each for each in guesses]
    return {
        each["word"]: reply if set(reply) <= set("GYX ") else "" for each, reply in zip(given, replies, strict=True)
    }


@lru_cache
def _commonest(fitting: tuple[str, ...]) -> str:
    counts = [Counter(letters) for letters in zip(*fitting, strict=True)]
    return max(fitting, key=lambda word: (sum(counts[place][letter] for place, letter in enumerate(word)), word))


def _misspelt(word: str) -> str:
    """The word with its last letter one further."""
    return word[:-1] + chr((ord(word[-1]) - ord("a") + 1) % 26 + ord("a"))
