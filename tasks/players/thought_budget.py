"""Answers with a part of a thought's budget: the thought is ended there, and the call is begun.

In: prompts with their conversations and tools, a function that generates. Out: the ids of each turn as if the model had
written them. What ends a thought and begins a call is rendered as training renders it, up to the first argument.
"""

import json
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from apprentice.tasks.episodes.example import calls_with_other_values
from apprentice.tasks.episodes.notations import MARKS
from apprentice.tasks.episodes.record import Message
from apprentice.tasks.episodes.rendering import chat_format, conversation_ids, prompt_ids
from apprentice.tasks.episodes.thinking import THOUGHT, thinking_of

Ids = list[list[int]]
Generate = Callable[[Ids, int, Sequence[int], bool], Ids]
"""Takes prompts, the most new tokens, the place of each prompt's episode, and whether a thought is continued by the
answer; returns what the model writes."""
MARK = "mark-5b1d"
"""A thought that no template writes."""
ANSWERS: list[Message] = [{"role": "assistant", "content": text} for text in ("Yes", "no")]
HALF = "\ufffd"
"""What is decoded of a character whose last tokens are missing."""


class TurnStart(NamedTuple):
    """Where a turn begins."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    prompt: list[int]
    takes_text: bool = False
    """Whether a text without a call is an answer."""


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


def within_budget(
    generate: Generate,
    tokenizer: Any,
    starts: Sequence[TurnStart],
    budget: int,
    answer: int,
    others: Callable[[list[str]], list[str]] | None = None,
) -> Ids:
    """The turns, each with at most `budget` tokens of thought, and at most `answer` tokens after it.

    Args:
        others: Given, each turn goes on from what it returns in place of the turn's own thought.
    """
    prompts = [each.prompt for each in starts]
    written = generate(prompts, budget, range(len(prompts)), False) if budget else [[] for _ in prompts]
    names = [json.dumps(each.tools) for each in starts]  # of a batch few have tools of their own
    known = {
        name: ends_of_thoughts(tokenizer, each.tools) for name, each in dict(zip(names, starts, strict=True)).items()
    }
    ends = [known[name] for name in names]
    thoughts = [_thought(tokenizer, turn, each) for turn, each in zip(written, ends, strict=True)]
    if others is not None:
        turns = [forced_ids(tokenizer, *each) for each in zip(starts, others(thoughts), strict=True)]
    else:
        turns = [
            turn if turn and _has_ended(tokenizer, turn, marks) else forced_ids(tokenizer, place, thought)
            for place, turn, thought, marks in zip(starts, written, thoughts, ends, strict=True)
        ]
    last = chat_format(tokenizer).ends
    open_ = [place for place, turn in enumerate(turns) if not turn or turn[-1] not in last]
    rests = generate([prompts[place] + turns[place] for place in open_], answer, open_, True) if open_ else []
    for place, rest in zip(open_, rests, strict=True):
        turns[place] = turns[place] + rest
    return turns


def forced_ids(tokenizer: Any, start: TurnStart, thought: str) -> list[int]:
    """The ids that every call with this thought begins with, without a token that ends the turn. Where a text is an
    answer as well, they end with the block of the thought; a thought that is text has none, and a call is begun."""
    found = _in_common(tokenizer, start, thought)
    if found is None:  # the prompt opens the block of a thought, which a turn without one renders otherwise
        return tokenizer.encode(_after(tokenizer, start), add_special_tokens=False)
    return found


def ends_of_thoughts(tokenizer: Any, tools: list[dict[str, Any]]) -> tuple[str, ...]:
    """The texts that show that a model has ended its thought itself: what ends a thought, and what begins a call."""
    opening = [{"role": "system", "content": "system"}, {"role": "user", "content": "user"}]
    after = _after(tokenizer, TurnStart(opening, tools, prompt_ids(tokenizer, opening, tools)))
    added = set(tokenizer.get_added_vocab().values())
    ids = tokenizer.encode(after, add_special_tokens=False)
    name = min((at for tool in tools if (at := after.find(tool["function"]["name"])) >= 0), default=len(after))
    found = [token for token in (tokenizer.decode([each]) for each in ids if each in added) if after.find(token) < name]
    return tuple(dict.fromkeys((found[0], found[-1]))) if found else tuple(after.split()[:1])


def _after(tokenizer: Any, start: TurnStart) -> str:
    """What stands between a thought and the first argument of a call."""
    found = _in_common(tokenizer, start, MARK)
    assert found is not None, "a template that renders thoughts otherwise is refused before a run"
    return tokenizer.decode(found).partition(MARK)[2]


def _in_common(tokenizer: Any, start: TurnStart, thought: str) -> list[int] | None:
    """The ids that all calls with this thought begin with; None where their turn does not begin with the prompt."""
    extra = {THOUGHT: thought} if thought else {}
    turns = calls_with_other_values(start.tools)
    if not turns or (start.takes_text and _thinks_before_texts(tokenizer, start)):
        turns += ANSWERS
    rows = [conversation_ids(tokenizer, [*start.messages, turn | extra], start.tools) for turn in turns]
    if any(row[: len(start.prompt)] != start.prompt for row in rows):
        return None
    least, *others = sorted((row[len(start.prompt) :] for row in rows), key=len)
    shared = list(takewhile(lambda each: all(other[each[0]] == each[1] for other in others), enumerate(least)))
    ids, ends = [token for _, token in shared], chat_format(tokenizer).ends
    return ids[: next((at for at, token in enumerate(ids) if token in ends), len(ids))]


def _thinks_before_texts(tokenizer: Any, start: TurnStart) -> bool:
    """Whether an answer in words has a thought in a block of its own. Some templates leave such a thought out."""
    thinking = thinking_of(tokenizer)
    if thinking is None or thinking.mode != "native":
        return False
    return MARK in tokenizer.decode(conversation_ids(tokenizer, [*start.messages, ANSWERS[0] | {THOUGHT: MARK}], []))


def _thought(tokenizer: Any, turn: list[int], marks: Sequence[str]) -> str:
    """What stands before a turn's call, or before its end, without the marks of a block."""
    text = tokenizer.decode([token for token in turn if token not in chat_format(tokenizer).ends])
    until = min((at for mark in marks if (at := text.find(mark)) >= 0), default=len(text))
    return MARKS.sub("", text[:until].rstrip(HALF)).strip()


def _has_ended(tokenizer: Any, turn: list[int], marks: Sequence[str]) -> bool:
    """Whether a model has ended its thought, or the turn, by itself."""
    text = tokenizer.decode(turn)
    return turn[-1] in chat_format(tokenizer).ends or any(mark in text for mark in marks)
