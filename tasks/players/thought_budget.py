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


class Forced(NamedTuple):
    """What a turn is made to begin with."""

    at_once: list[int]
    """Without a thought, up to the call's first argument."""
    after: list[int]
    """After a thought, likewise."""
    begun: str
    """A text that shows that the model has ended its thought itself."""


def forced_call(tokenizer: Any, tools: list[dict[str, Any]]) -> Forced:
    """What these tools' calls have in common under the tokenizer's template."""
    at_once = _common(tokenizer, tools, "")
    text = tokenizer.decode(_common(tokenizer, tools, MARK))
    after = text.partition(MARK)[2]
    return Forced(at_once, tokenizer.encode(after, add_special_tokens=False), (after.split() or [""])[0])


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
    others: Ids | None = None,
) -> Ids:
    """The turns, each with at most `budget` tokens of thought, and at most `answer` tokens after it.

    Args:
        others: Given, each prompt gets the next one's thought in place of its own. It holds the last thought of the
            batch before, for a prompt that is alone, and then the last one of this batch.
    """
    names = [json.dumps(each) for each in tools]
    known = {name: forced_call(tokenizer, each) for name, each in dict(zip(names, tools, strict=True)).items()}
    forced = [known[name] for name in names]
    if others is not None:
        written = generate(prompts, budget, range(len(prompts)), False)
        thoughts = [_thought(tokenizer, turn, each) for turn, each in zip(written, forced, strict=True)]
        first = thoughts[0] if len(thoughts) > 1 else next(iter(others), [])
        turns = [thought + each.after for thought, each in zip([*thoughts[1:], first], forced, strict=True)]
        others[:] = thoughts[-1:]
    elif budget == 0:
        turns = [list(each.at_once) for each in forced]
    else:
        turns = generate(prompts, budget, range(len(prompts)), False)
        for turn, each in zip(turns, forced, strict=True):
            if not _has_ended(tokenizer, turn, each):
                turn += each.after
    ends = chat_format(tokenizer).ends
    open_ = [place for place, turn in enumerate(turns) if not turn or turn[-1] not in ends]
    rests = generate([prompts[place] + turns[place] for place in open_], answer, open_, True) if open_ else []
    for place, rest in zip(open_, rests, strict=True):
        turns[place] += rest
    return turns


def _thought(tokenizer: Any, turn: list[int], forced: Forced) -> list[int]:
    """The tokens before a turn's call, or before its end."""
    text = tokenizer.decode([token for token in turn if token not in chat_format(tokenizer).ends])
    return tokenizer.encode(text.partition(forced.begun)[0].rstrip("\n"), add_special_tokens=False)


def _has_ended(tokenizer: Any, turn: list[int], forced: Forced) -> bool:
    """Whether a model has ended its thought, or the turn, by itself."""
    return turn[-1:] != [] and (turn[-1] in chat_format(tokenizer).ends or forced.begun in tokenizer.decode(turn))
