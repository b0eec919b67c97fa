"""TextArena's own list of secrets, and TextArena without the downloads that it tries when it is imported.

In: a length. Out: the nouns of that length in NLTK's basic English. In a closed network a download may hang.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import nltk


@contextmanager
def without_downloads() -> Iterator[None]:
    """TextArena asks for NLTK's data when it is imported and when its dictionary is made."""
    download, nltk.download = nltk.download, lambda *_, **__: False
    try:
        yield
    finally:
        nltk.download = download


def nouns(length: int) -> tuple[str, ...]:
    """Raises LookupError without NLTK's data."""
    with without_downloads():
        from textarena.envs.Wordle.env import WordleEnv

        loader = object.__new__(WordleEnv)
        loader.word_length = length
        loader._load_word_list()
    return tuple(loader.word_list)
