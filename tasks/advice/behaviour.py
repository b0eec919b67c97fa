"""How a model's episodes end, and where the values of its calls come from.

In: a model's evaluated episodes, the tools' schemas, and what the teacher's kept episodes have in common. Out:
`Behaviour`, in shares of the episodes.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from apprentice.tasks.episodes.episode import problems
from apprentice.tasks.episodes.record import EvaluatedEpisode, Message, arguments_of, turns_of
from apprentice.tasks.episodes.thinking import CUT_OFF
from apprentice.tasks.files.json_lines import read_rows

ALWAYS = 0.95
"""The share of the teacher's calls from which a habit counts as one."""
FEWEST = 10
"""Calls of the teacher that a habit is read from, at least."""
LEAST_CHARACTERS = 2
"""Of a value that counts as copied: a single letter or digit stands in nearly every text."""
BEGUN, ENDED = "<tool_call>", "</tool_call>"
QUESTION = "the question"
"""The place of what the environment asks; a reply's place is its tool's name."""

Call = tuple[str, dict[str, Any]]
Argument = tuple[str, str]
"""A tool, and the name of one of its arguments."""
TextsByPlace = dict[str, str]
"""The texts that a model has read, by place."""
Schemas = list[dict[str, Any]]


class Habits(NamedTuple):
    """What the teacher's kept episodes have in common."""

    episodes: int
    turns: float
    """Calls of an episode, on average."""
    next_tool: dict[str, str]
    """The tool that most often follows each tool."""
    copied: dict[Argument, str]
    """The arguments whose values stand in the question or in an earlier reply, each with the place that has nearly all
    of them: the question, or the tool that replied. Empty where it is now this place and now that one."""
    constant: float
    """The share of the most frequent last call."""


class Behaviour(NamedTuple):
    """Shares of a model's episodes; by default nothing is known of them. They overlap: an episode may have an invented
    value and break off."""

    episodes: int
    right: float = 0.0
    no_first_call: float = 0.0
    """The first turn has no valid call."""
    broke_off: float = 0.0
    """A turn without a call after one or more with a valid call."""
    broke_off_after: str = ""
    """The last call of most of these; empty without any."""
    missing: str = ""
    """What the teacher calls then; empty where it ends there, too."""
    cut: float = 0.0
    """The last turn reached the limit of tokens, outside of its thought."""
    thought_cut: float = 0.0
    """The last turn's thought reached its own limit."""
    invented: float = 0.0
    """A value that the teacher copies, and that the model has read nowhere."""
    invented_in: str = ""
    """The argument of most of these, such as "refund.order"."""
    misplaced: float = 0.0
    """A value that the model has read, but not where the teacher takes it from: of another turn."""
    misplaced_in: str = ""
    taken_from: str = ""
    """The place where the teacher finds what stands in `misplaced_in`."""
    ill_chosen: float = 0.0
    """A wrong end whose last call takes each value from where the teacher takes it, and so the wrong one there."""
    constant: float = 0.0
    """The most frequent last call."""
    constant_call: str = ""
    paid_for_stopping: float | None = None
    """The mean reward of the episodes that broke off; None without any."""
    paid_for_wrong: float | None = None
    """The mean reward of those that came to a wrong end; None without any."""


def habits_of(kept: Path) -> Habits | None:
    """Reads the rows of kept rollouts; None where no row has a call."""
    rows = [row["messages"] for row in read_rows(kept / "kept.jsonl")]
    called = [[call for call, _ in calls_of(messages)] for messages in rows]
    if not any(called):
        return None
    follows: dict[str, Counter[str]] = {}
    found: dict[Argument, list[tuple[str, ...]]] = {}
    for calls, messages in zip(called, rows, strict=True):
        for (tool, _), after in zip(calls, [*(name for name, _ in calls[1:]), ""], strict=True):
            follows.setdefault(tool, Counter())[after] += 1
        for argument, value, seen in _values(messages):
            found.setdefault(argument, []).append(_places(value, seen))
    last = Counter(_as_text(calls[-1]) for calls in called if calls)
    often = {name: each for name, each in found.items() if len(each) >= FEWEST}
    return Habits(
        len(rows),
        fmean(map(len, called)),
        {tool: counted.most_common(1)[0][0] for tool, counted in follows.items()},
        {name: _usual(each) for name, each in often.items() if fmean(map(bool, each)) >= ALWAYS},
        last.most_common(1)[0][1] / sum(last.values()),
    )


def behaviour(
    records: Sequence[EvaluatedEpisode],
    schemas: Callable[[int], Schemas],
    habits: Habits | None,
    max_new_tokens: int,
    thought_tokens: int = 0,
) -> Behaviour:
    """Reads a model's episodes; those on which the environment failed are left out.

    Args:
        schemas: The tools of a seed's question.
        habits: None where no teacher's episodes are known; nothing then counts as invented or missing.
        max_new_tokens: The most tokens of a turn, beside its thought.
        thought_tokens: The most tokens of a thought, which come on top; 0 for a student that answers at once.
    """
    played = [record for record in records if not record.broken]
    thought_cut = [_thought_cut(each, thought_tokens) for each in played]
    cut = [
        _cut(each, max_new_tokens + thought_tokens) or within for each, within in zip(played, thought_cut, strict=True)
    ]
    broke = [each for each, is_cut in zip(played, cut, strict=True) if each.broke_off_after and not is_cut]
    after = _most(each.broke_off_after for each in broke)
    wrong = [each for each in played if not each.is_right and not each.broke_off_after and _calls(each)]
    invented = [found for each in played if (found := _invented(each, habits))]
    misplaced = [found for each in played if (found := _misplaced(each, habits))]
    [(argument, place), *_] = [each for each, _ in Counter(misplaced).most_common(1)] or [("", "")]
    calls = Counter(_as_text(_calls(each)[-1]) for each in played if _calls(each))
    constant, times = calls.most_common(1)[0] if calls else ("", 0)

    def share(number: int) -> float:
        return number / max(len(played), 1)

    return Behaviour(
        episodes=len(played),
        right=share(sum(each.is_right for each in played)),
        no_first_call=share(sum(_lacks_form(each, schemas(each.seed)) for each in played)),
        broke_off=share(len(broke)),
        broke_off_after=after,
        missing=habits.next_tool.get(after, "") if habits else "",
        cut=share(sum(cut) - sum(thought_cut)),
        thought_cut=share(sum(thought_cut)),
        invented=share(len(invented)),
        invented_in=_most(invented),
        misplaced=share(len(misplaced)),
        misplaced_in=argument,
        taken_from=place,
        ill_chosen=share(sum(_ill_chosen(each, habits) for each in wrong)),
        constant=share(times),
        constant_call=constant,
        paid_for_stopping=_mean_reward(broke),
        paid_for_wrong=_mean_reward(wrong),
    )


def calls_of(messages: Iterable[Message]) -> list[tuple[Call, TextsByPlace]]:
    """Name and arguments of each call, with all that was told before it."""
    found, seen = [], TextsByPlace()
    for message in messages:
        if message["role"] in ("user", "tool"):
            place = str(message.get("name") or "") if message["role"] == "tool" else QUESTION
            seen = seen | {place: f"{seen.get(place, '')}\n{message['content']}"}
        for call in message.get("tool_calls") or []:
            read = arguments_of(call)
            found.append(((call["function"]["name"], read if isinstance(read, dict) else {}), seen))
    return found


def stands_in(value: str, text: str) -> bool:
    """Whether a text holds a value as a word of its own."""
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) is not None


def _values(messages: Iterable[Message]) -> Iterable[tuple[Argument, str, TextsByPlace]]:
    """Each value that can have been copied: its argument, the value as text, and what was told before."""
    for (tool, arguments), seen in calls_of(messages):
        for name, value in arguments.items():
            if isinstance(value, str | int | float) and len(str(value)) >= LEAST_CHARACTERS:
                yield (tool, name), str(value), seen


def _places(value: str, seen: TextsByPlace) -> tuple[str, ...]:
    return tuple(place for place, text in seen.items() if stands_in(value, text))


def _usual(found: Sequence[tuple[str, ...]]) -> str:
    """The place that holds nearly all values; empty without one."""
    place, times = Counter(place for each in found for place in each).most_common(1)[0]
    return place if times >= ALWAYS * len(found) else ""


def _invented(record: EvaluatedEpisode, habits: Habits | None) -> str:
    """The first argument whose value the teacher copies and the model made up; empty without one."""
    copied = habits.copied if habits else {}
    found = (
        ".".join(argument)
        for argument, value, seen in _values(record.messages)
        if argument in copied and not _places(value, seen)
    )
    return next(found, "")


def _misplaced(record: EvaluatedEpisode, habits: Habits | None) -> tuple[str, str] | None:
    """The first argument whose value the model copied from elsewhere, and the place where the teacher finds it."""
    copied = habits.copied if habits else {}
    found = (
        (".".join(argument), copied[argument])
        for argument, value, seen in _values(record.messages)
        if copied.get(argument) and (places := _places(value, seen)) and copied[argument] not in places
    )
    return next(found, None)


def _ill_chosen(record: EvaluatedEpisode, habits: Habits | None) -> bool:
    """Whether an episode that ended wrong, without a fault, has only values of the right places in its last call."""
    if habits is None or record.causes or habits.next_tool.get(_calls(record)[-1][0]) != "":
        return False
    tool, arguments = _calls(record)[-1]
    each_is_copied = bool(arguments) and all((tool, name) in habits.copied for name in arguments)
    return each_is_copied and not _invented(record, habits) and not _misplaced(record, habits)


def _cut(record: EvaluatedEpisode, most: int) -> bool:
    """Whether the last turn reached its limit outside of its thought. `most`: with the tokens of the thought."""
    last = _last_turn(record)
    if last is None or last.get("tool_calls") or last.get(CUT_OFF):
        return False
    text = str(last.get("content") or "")
    alone = record.turns == 1 and record.completion_tokens >= most
    return alone or (text.rfind(BEGUN) > text.rfind(ENDED))


def _thought_cut(record: EvaluatedEpisode, most: int) -> bool:
    """Whether the last turn's thought reached its limit; not where the model ended that turn itself before."""
    ended_itself = record.turns == 1 and 0 < record.completion_tokens < most
    last = _last_turn(record)
    return last is not None and bool(last.get(CUT_OFF)) and not ended_itself


def _last_turn(record: EvaluatedEpisode) -> Message | None:
    """The model's last message; None where it wrote none."""
    turns = turns_of(record.messages)
    return turns[-1] if turns else None


def _lacks_form(record: EvaluatedEpisode, tools: Schemas) -> bool:
    """Whether the first turn is no valid call, nor a text that the environment has scored."""
    nothing = {"role": "assistant", "content": ""}
    first = next((each for each in record.messages if each["role"] == "assistant"), nothing)
    return bool(problems(first, tools)) and not (record.last_text and record.turns == 1)


def _calls(record: EvaluatedEpisode) -> list[Call]:
    return [call for call, _ in calls_of(record.messages)]


def _as_text(call: Call) -> str:
    return f"{call[0]}({', '.join(map(str, call[1].values()))})"


def _most(names: Iterable[str]) -> str:
    counted = Counter(names).most_common(1)
    return counted[0][0] if counted else ""


def _mean_reward(records: Sequence[EvaluatedEpisode]) -> float | None:
    return fmean(each.score for each in records) if records else None
