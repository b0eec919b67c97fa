"""Answers with a part of a thought's budget: the thought is ended there, and the call is begun.

In: prompts, the tools of each, a function that generates. Out: the ids of each turn as if the model had written them.
What ends a thought and begins a call is found by rendering calls: what they have in common, whatever their arguments.
"""

import json
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from apprentice.tasks.episodes.example import first_calls
from apprentice.tasks.episodes.rendering import chat_format

Ids = list[list[int]]
Generate = Callable[[Ids, int, Sequence[int], bool], Ids]
"""Takes prompts, the most new tokens, the place of each prompt's episode, and whether a thought is continued by the
answer; returns what the model writes."""
MARK = "mark-5b1d"
"""A thought that no template writes."""
HALF = "\ufffd"
"""What is decoded of a character whose last tokens are missing."""


class Thoughts:
    """The last thought of each question, so that an answer can follow another question's."""

    def __init__(self) -> None:
        self._last: dict[int, str] = {}

    def of_others(self, seeds: Sequence[int], thoughts: Sequence[str]) -> list[str]:
        """For each thought that of the next question of the batch, or, where it is alone, of the last one before it;
        empty for the very first."""
        places = range(len(seeds))
        nexts = (next((k for k in (*places[at:], *places[:at]) if seeds[k] != seeds[at]), None) for at in places)
        befores = (next((t for seed, t in reversed(self._last.items()) if seed != seeds[at]), "") for at in places)
        found = [before if k is None else thoughts[k] for k, before in zip(nexts, befores, strict=True)]
        for seed, thought in zip(seeds, thoughts, strict=True):
            self._last.pop(seed, None)
            self._last[seed] = thought
        return found


class Forced(NamedTuple):
    """What a turn is made to begin with."""

    at_once: list[int]
    """Without a thought, up to the call's first argument."""
    after: str
    """After a thought, likewise, as text: what it begins with may be one token with the thought's end."""
    begun: str
    """A text that shows that the model has ended its thought itself."""


def forced_call(tokenizer: Any, tools: list[dict[str, Any]]) -> Forced:
    """What these tools' calls have in common under the tokenizer's template."""
    at_once = _common(tokenizer, tools, "")
    text = tokenizer.decode(_common(tokenizer, tools, MARK))
    after = text.partition(MARK)[2]
    return Forced(at_once, after, (after.split() or [""])[0])


def _common(tokenizer: Any, tools: list[dict[str, Any]], thought: str) -> list[int]:
    """The ids that all calls with this thought begin with, without a token that ends the turn."""
    turns = [turn for versions in first_calls(tokenizer, tools, (thought, thought)) for _, turn in versions]
    least, *others = sorted(turns, key=len)
    shared = list(takewhile(lambda each: all(other[each[0]] == each[1] for other in others), enumerate(least)))
    ids = [token for _, token in shared]
    ends = chat_format(tokenizer).ends
    return ids[: next((at for at, token in enumerate(ids) if token in ends), len(ids))]


def within_budget(
    generate: Generate,
    tokenizer: Any,
    prompts: Ids,
    tools: list[list[dict[str, Any]]],
    budget: int,
    answer: int,
    others: Callable[[list[str]], list[str]] | None = None,
) -> Ids:
    """The turns, each with at most `budget` tokens of thought, and at most `answer` tokens after it.

    Args:
        others: Given, each turn goes on from what it returns in place of the turn's own thought.
    """
    names = [json.dumps(each) for each in tools]
    known = {name: forced_call(tokenizer, each) for name, each in dict(zip(names, tools, strict=True)).items()}
    forced = [known[name] for name in names]
    if others is not None:
        written = generate(prompts, budget, range(len(prompts)), False)
        thoughts = [_thought(tokenizer, turn, each) for turn, each in zip(written, forced, strict=True)]
        turns = [
            _encoded(tokenizer, thought + each.after) if thought else list(each.at_once)
            for thought, each in zip(others(thoughts), forced, strict=True)
        ]
    elif budget == 0:
        turns = [list(each.at_once) for each in forced]
    else:
        turns = generate(prompts, budget, range(len(prompts)), False)
        for turn, each in zip(turns, forced, strict=True):
            if not _has_ended(tokenizer, turn, each):
                turn[:] = _encoded(tokenizer, tokenizer.decode(turn).rstrip(HALF) + each.after)
    ends = chat_format(tokenizer).ends
    open_ = [place for place, turn in enumerate(turns) if not turn or turn[-1] not in ends]
    rests = generate([prompts[place] + turns[place] for place in open_], answer, open_, True) if open_ else []
    for place, rest in zip(open_, rests, strict=True):
        turns[place] += rest
    return turns


def _thought(tokenizer: Any, turn: list[int], forced: Forced) -> str:
    """What stands before a turn's call, or before its end."""
    text = tokenizer.decode([token for token in turn if token not in chat_format(tokenizer).ends])
    return text.partition(forced.begun)[0].rstrip(HALF + "\n")


def _encoded(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def _has_ended(tokenizer: Any, turn: list[int], forced: Forced) -> bool:
    """Whether a model has ended its thought, or the turn, by itself."""
    return turn[-1:] != [] and (turn[-1] in chat_format(tokenizer).ends or forced.begun in tokenizer.decode(turn))
