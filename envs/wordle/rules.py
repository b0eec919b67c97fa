"""TextArena's Wordle, with its rules and messages as they are, and with our words.

What differs: the secret is given, and not drawn from the global random state, which all sessions of a server share; by
the rules `apprentice`, a guess that is refused costs one of the six, where TextArena forgives one and ends the game at
the next in a row; no download is tried, as in a closed network it may hang.
"""

from functools import lru_cache
from typing import Any

import textarena
from textarena.wrappers import ActionFormattingWrapper, LLMObservationWrapper

from .words import GUESSES, LETTERS, Puzzle, without_downloads, word_list

with without_downloads():
    from textarena.envs.utils.word_lists import EnglishDictionary
    from textarena.envs.Wordle.env import WordleEnv

RULES = ("apprentice", "textarena")


class _State(textarena.SinglePlayerState):
    """A refused guess is a turn like any other."""

    def set_invalid_move(self, reason: str | None, reward: float = -1.0) -> None:
        said = reason or "This guess is refused."
        self.add_observation(message=said, observation_type=textarena.ObservationType.GAME_ADMIN)


class _Game(WordleEnv):
    """`accepted`: the words that may be guessed."""

    def __init__(self, puzzle: Puzzle, accepted: frozenset[str], rules: str):
        textarena.Env.__init__(self)  # not WordleEnv's, which loads words and dictionary anew for every game
        self.word_length, self.num_guesses = LETTERS, GUESSES
        self._accepted, self._puzzle = accepted, puzzle
        self._costs_a_guess = rules == "apprentice"
        self.state = (_State if self._costs_a_guess else textarena.SinglePlayerState)(num_players=1)
        self.history: list[tuple[str, list[str]]] = []
        hidden = {"secret_word": puzzle.secret, "guess_history": self.history}
        hidden |= {"word_length": LETTERS, "num_guesses": GUESSES}
        self.state.reset(game_state=hidden, player_prompt_function=self._generate_player_prompt)

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        _, info = super().step(action)
        if self._costs_a_guess and self.state.turn >= self.num_guesses and not self.state.done:
            self.state.set_outcome(reward=0.0, reason="The turn limit has been reached.")
        return self.state.done, info

    def _generate_player_prompt(self, player_id: int, game_state: Any) -> str:
        named = f"The secret is one of: {', '.join(self._puzzle.candidates)}.\n" if self._puzzle.candidates else ""
        return super()._generate_player_prompt(player_id, game_state) + named

    def _check_word(self, word: str) -> bool:
        return word in self._accepted


class Game:
    """One game, behind the wrappers with which TextArena registers it and the published environment makes it."""

    def __init__(self, puzzle: Puzzle, accepted: frozenset[str], rules: str):
        """Raises ValueError for unknown rules."""
        if rules not in RULES:
            raise ValueError(f"unknown rules {rules!r}; known: {', '.join(RULES)}")
        self.secret, self._rules = puzzle.secret, rules
        self._game = _Game(puzzle, accepted, rules)
        self._wrapped = ActionFormattingWrapper(LLMObservationWrapper(self._game))

    def step(self, action: str) -> bool:
        """Make a guess. Returns whether the game is over."""
        return self._wrapped.step(action)[0]

    @property
    def transcript(self) -> str:
        """All that was said so far. To be read once after each turn, as TextArena keeps what was not yet read."""
        return self._wrapped.get_observation()[1]

    @property
    def turn(self) -> int:
        """Turns so far; a mistake that was forgiven is none."""
        return self._game.state.turn

    @property
    def reward(self) -> float:
        """1.0 for the word, else 0.0; by TextArena's rules also a share of the last marks, once the game is over."""
        if self._rules == "textarena":
            return float((self._game.state.rewards or {}).get(0, 0.0))
        return float(bool(self._game.history) and self._game.history[-1][0] == self.secret)


@lru_cache
def accepted(name: str) -> frozenset[str]:
    """What may be guessed: the list of the secrets, and TextArena's British and American dictionaries.

    NLTK's words only with the list that is made of them: else a guess were accepted on one server and not on another.
    """
    with without_downloads():
        dictionary = EnglishDictionary(include_nltk=name == "textarena")
    return frozenset(word for word in dictionary.get_all_words() if len(word) == LETTERS).union(word_list(name))
