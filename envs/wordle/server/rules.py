"""TextArena's Wordle, with its rules and messages as they are, and with our words.

What differs: the secret is given, and not drawn from the global random state, which all sessions of a server share; a
guess that is refused costs one of the six, where TextArena forgives one and ends the game at the next; no download is
tried, as in a closed network it may hang.
"""

from functools import lru_cache
from typing import Any

import textarena

from .nltk_words import without_downloads
from .words import GUESSES, LETTERS, word_list

with without_downloads():
    from textarena.envs.utils.word_lists import EnglishDictionary
    from textarena.envs.Wordle.env import WordleEnv


class _State(textarena.SinglePlayerState):
    """A refused guess is a turn like any other."""

    refused = ""

    def set_invalid_move(self, reason: str | None, reward: float = -1.0) -> None:
        self.refused = reason or "This guess is refused."
        self.add_observation(message=self.refused, observation_type=textarena.ObservationType.GAME_ADMIN)


class Game(WordleEnv):
    """One game. `accepted`: the words that may be guessed."""

    def __init__(self, secret: str, accepted: frozenset[str]):
        textarena.Env.__init__(self)  # not WordleEnv's, which loads words and dictionary anew for every game
        self.word_length, self.num_guesses = LETTERS, GUESSES
        self._accepted = accepted
        self.state = _State(num_players=1)
        self.secret = secret
        self._history: list[tuple[str, list[str]]] = []
        hidden = {"secret_word": secret, "guess_history": self._history}
        hidden |= {"word_length": LETTERS, "num_guesses": GUESSES}
        self.state.reset(game_state=hidden, player_prompt_function=self._generate_player_prompt)

    @property
    def won(self) -> bool:
        return bool(self._history) and self._history[-1][0] == self.secret

    @property
    def marks(self) -> str:
        """What the last turn's guess has right, such as "X G Y X X"; nothing where it was refused."""
        return " ".join(self._history[-1][1]) if self._history and not self.state.refused else ""

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        self.state.refused = ""
        _, info = super().step(action)
        if self.state.turn >= self.num_guesses and not self.state.done:
            self.state.set_outcome(reward=0.0, reason="The turn limit has been reached.")
        return self.state.done, info

    def _check_word(self, word: str) -> bool:
        return word in self._accepted


@lru_cache
def accepted(name: str) -> frozenset[str]:
    """What may be guessed: the list of the secrets, and TextArena's British and American dictionaries.

    NLTK's words only with the list that is made of them: else a guess were accepted on one server and not on another.
    """
    with without_downloads():
        dictionary = EnglishDictionary(include_nltk=name == "textarena")
    return frozenset(word for word in dictionary.get_all_words() if len(word) == LETTERS).union(word_list(name))
