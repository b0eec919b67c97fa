"""The text of a seed, and how much of it came back.

In: a seed, how many words, what was said. Out: the text; a share, 0 to 1.
"""

import os
import random


def text_of(seed: int, words: int) -> str:
    """The text that `seed` names: made-up words of three to five letters."""
    draw = random.Random(seed)
    return " ".join(
        "".join(draw.choice("aeiou" if place % 2 else "bdfgklmnprst") for place in range(draw.randint(3, 5)))
        for _ in range(words)
    )


def share_of(text: str, said: str) -> float:
    """The share of the text that was said right, from its start."""
    right = len(os.path.commonprefix([text, said]))  # noqa: RUF071 (letters, not paths)
    return right / max(len(text), len(said))
