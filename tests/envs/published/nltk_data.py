"""A little of NLTK's data, from which TextArena makes its word list; the whole is a download."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nltk
from nltk.corpus import words as corpus_of_words

from apprentice.envs.wordle.rules import accepted
from apprentice.envs.wordle.words import word_list

WORDS = ["table", "stone", "quick", "apple", "sky", "plate", "crane", "storm", "house", "water"]
NOUNS = ["table", "stone", "apple", "plate", "crane", "storm", "house", "water"]


def write_nltk_data(folder: Path, basic: list[str], nouns: list[str]) -> None:
    """As NLTK's downloader leaves it, cut to a few words: the corpus, and a tagger that knows which are nouns."""
    corpus, tagger = folder / "corpora" / "words", folder / "taggers" / "averaged_perceptron_tagger_eng"
    corpus.mkdir(parents=True)
    tagger.mkdir(parents=True)
    for name in ("en", "en-basic"):
        (corpus / name).write_text("\n".join(basic) + "\n")
    for name, content in {"weights": {}, "tagdict": dict.fromkeys(nouns, "NN"), "classes": ["NN", "VB"]}.items():
        (tagger / f"averaged_perceptron_tagger_eng.{name}.json").write_text(json.dumps(content))


@contextmanager
def a_little_nltk_data() -> Iterator[None]:
    """In this process NLTK has a few words, and nothing else."""
    kept = nltk.data.path[:]
    with tempfile.TemporaryDirectory() as folder:
        write_nltk_data(Path(folder), WORDS, NOUNS)
        nltk.data.path[:] = [folder]
        corpus_of_words.ensure_loaded()
        yield
    forget: Any = corpus_of_words
    forget._unload()  # else it looks into the folder that is gone, for as long as this process lives
    nltk.data.path[:] = kept
    accepted.cache_clear()
    word_list.cache_clear()
