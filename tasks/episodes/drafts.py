"""Drafts of a completion's next tokens: the frame of a call, which is written the same way each time.

In: examples of a call, in several versions that differ in its values. Out: the tokens that follow in all of them. The
sampler verifies drafts in one pass and keeps its own draws, so that they cost nothing but time where they are wrong.
"""

from collections.abc import Sequence

CONTEXT = 6
"""Tokens, at most, by which a place in the frame is known."""
LONGEST = 32
"""Tokens of a draft, at most."""


class Drafts:
    """What follows a few tokens in every example that has them, and in each version of it.

    Args:
        versions: Of each example token ids, prompt included, one list for each version of its values.
    """

    def __init__(self, versions: Sequence[Sequence[list[int]]]):
        follows: dict[tuple[int, ...], set[int]] = {}
        for example in versions:
            seen = [_contexts(ids) for ids in example]
            for context in set.intersection(*map(set, seen)):
                follows.setdefault(context, set()).update(*(each[context] for each in seen))
        self._next = {context: next(iter(found)) for context, found in follows.items() if len(found) == 1}

    def after(self, ids: list[int], most: int) -> list[int]:
        """The tokens that follow the last ones of `ids`, up to where they are no longer certain."""
        drafted: list[int] = []
        tail = ids[-CONTEXT:]
        while len(drafted) < min(most, LONGEST) and (token := self._after(tail)) is not None:
            drafted.append(token)
            tail = [*tail[-CONTEXT + 1 :], token]
        return drafted

    def _after(self, tail: list[int]) -> int | None:
        """By the longest context that is known."""
        contexts = (tuple(tail[-length:]) for length in range(len(tail), 0, -1))
        return next((self._next[each] for each in contexts if each in self._next), None)


def _contexts(ids: list[int]) -> dict[tuple[int, ...], set[int]]:
    """The tokens that follow each context."""
    found: dict[tuple[int, ...], set[int]] = {}
    for place in range(1, len(ids)):
        for length in range(1, min(CONTEXT, place) + 1):
            found.setdefault(tuple(ids[place - length : place]), set()).add(ids[place])
    return found
