"""What a thought is worth: accuracy and tokens within parts of its budget, and of a majority of samples.

In: the episodes of one model on the same questions, within several budgets. Out: rows, each paired with no thought.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from statistics import fmean
from typing import Any

from apprentice.tasks.analysis.comparison import compare
from apprentice.tasks.episodes.record import EvaluatedEpisode, arguments_of
from apprentice.tasks.episodes.texts import same_text
from apprentice.tasks.episodes.thinking import CUT_OFF, THOUGHT
from apprentice.tasks.settings.spec import SWAPPED, VOTE
from apprentice.tasks.statistics.intervals import clustered_interval, interval_of, percent
from apprentice.tasks.statistics.rates import by_question, rate

NUMBER = re.compile(r"([+-]?)(0|[1-9]\d*)(?:\.(\d*?)0*)?", re.ASCII)
"""A text that is a number as a whole. With a zero ahead it may be a code, in which that counts."""
COLUMNS = ("budget of thought", "accuracy", "tokens an answer", "to no thought")


def worth_of_thoughts(played: Mapping[str, list[EvaluatedEpisode]], whole: list[EvaluatedEpisode]) -> dict[str, Any]:
    """What report.json has: a row a budget, and that of the vote; empty where nothing was evaluated for it.

    Args:
        played: The episodes by budget, and those of the vote.
        whole: The same model's episodes with its whole budget.
    """
    found: dict[str, Any] = {}
    if budgets := {float(name): records for name, records in played.items() if name not in (VOTE, SWAPPED)}:
        found["budgets"] = budget_rows(budgets | {1.0: whole})
    if SWAPPED in played:
        found[SWAPPED] = swapped_row(played[SWAPPED], whole)
    return found | ({VOTE: vote_row(played[VOTE])} if VOTE in played else {})


def tokens_an_answer(records: Sequence[EvaluatedEpisode]) -> float:
    """Tokens that the model wrote for an answer, as a mean; 0 where they are not known."""
    return fmean(record.completion_tokens for record in records)


def tokens_of_thinkers(played: Mapping[str, Sequence[EvaluatedEpisode]]) -> dict[str, float]:
    """Tokens an answer of each model; empty where none of them thinks, or nobody's tokens are known."""
    messages = (message for records in played.values() for record in records for message in record.messages)
    found = {name: tokens_an_answer(records) for name, records in played.items() if records}
    return found if any(map(is_thought, messages)) and any(found.values()) else {}


def is_thought(message: Mapping[str, Any]) -> bool:
    """Whether a message has a thought, with or without an end."""
    return bool(message.get(THOUGHT) or message.get(CUT_OFF))


def shown_tokens(tokens: float | None) -> str:
    """Tokens an answer as people read them."""
    return f"{tokens:.1f}" if tokens else "–"


def budget_rows(played: Mapping[float, list[EvaluatedEpisode]]) -> list[dict[str, Any]]:
    """One row a budget, by its share: accuracy, tokens an answer, the share of answers that thought, and the difference
    to the smallest budget with its interval. Raises ValueError where the questions are not the same."""
    shares = sorted(played)
    return [
        {
            "budget": share,
            "accuracy": found["accuracy"],
            "ci": found["ci"],
            "tokens": tokens_an_answer(played[share]),
            "thought": fmean(any(each.get(THOUGHT) for each in record.messages) for record in played[share]),
            "difference": None if share == shares[0] else compare(played[shares[0]], played[share]),
        }
        for share in shares
        for found in [rate(played[share])]
    ]


def swapped_row(swapped: list[EvaluatedEpisode], whole: list[EvaluatedEpisode]) -> dict[str, Any]:
    """How many answers stay the same with another question's thought: where most do, thoughts do not matter.

    Raises ValueError where the questions are not the first ones of `whole`.
    """
    own = [record for record in whole if record.sample == 0][: len(swapped)]
    if [record.question for record in swapped] != [record.question for record in own]:
        raise ValueError("the answers with other thoughts are of other questions")
    pairs = [(_handed_in(one), _handed_in(other)) for one, other in zip(own, swapped, strict=True)]
    stays = fmean(one == other and bool(one) for one, other in pairs)
    right = fmean(record.is_right for record in swapped)
    tokens = tokens_an_answer(swapped)
    return {"n": len(own), "stays": stays, "ci": interval_of(stays, len(own)), "accuracy": right, "tokens": tokens}


def vote_row(records: list[EvaluatedEpisode]) -> dict[str, Any]:
    """The accuracy of the most frequent answer to each question, and the tokens of all of its samples. Of answers that
    are as frequent the one that was given first counts. Spellings of one answer are counted together."""
    questions = by_question(records, lambda record: record)
    right = [float(_majority(samples).is_right) for samples in questions.values()]
    return {
        "samples": 1 + max(record.sample for record in records),
        "accuracy": fmean(right),
        "ci": clustered_interval([[each] for each in right]),
        "one": fmean(record.is_right for record in records),
        "tokens": sum(record.completion_tokens for record in records) / len(questions),
    }


def shown_rows(thoughts: Mapping[str, Any]) -> list[dict[str, str]]:
    """The rows as people read them."""
    rows = []
    for each in thoughts.get("budgets", []):
        paired = each["difference"]
        low, high = paired["ci"] if paired else (0.0, 0.0)
        gain = f"{100 * paired['delta']:+.1f} pp ({100 * low:+.1f} to {100 * high:+.1f})" if paired else "–"
        rows.append((f"{each['budget']:.0%}", percent(each["accuracy"], each["ci"]), f"{each['tokens']:.1f}", gain))
    if swapped := thoughts.get(SWAPPED):
        stays = f"{percent(swapped['stays'], swapped['ci'])} of {swapped['n']} answers stay the same"
        rows.append(
            ("another question's thought", f"{swapped['accuracy']:.1%}", shown_tokens(swapped.get("tokens")), stays)
        )
    if vote := thoughts.get("vote"):
        voted, accuracy = f"majority of {vote['samples']} samples", percent(vote["accuracy"], vote["ci"])
        rows.append((voted, accuracy, f"{vote['tokens']:.1f}", f"one sample: {vote['one']:.1%}"))
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


def _majority(samples: list[EvaluatedEpisode]) -> EvaluatedEpisode:
    given = [each for each in samples if _handed_in(each)] or samples
    (most, _), *_ = Counter(map(_handed_in, given)).most_common(1)
    return next(each for each in given if _handed_in(each) == most)


def _handed_in(record: EvaluatedEpisode) -> str:
    """What an episode came to, in one spelling: its last text, or its last call; empty without one."""
    calls = [call for message in record.messages for call in message.get("tool_calls") or []]
    if record.last_text or not calls:
        return _in_one_spelling(record.last_text)
    return json.dumps([calls[-1]["function"]["name"], _in_one_spelling(arguments_of(calls[-1]))], sort_keys=True)


def _in_one_spelling(value: Any) -> Any:
    """The value, at any depth without what makes it no other answer: case, space, a last full stop, a number's form."""
    if isinstance(value, list):
        return [_in_one_spelling(each) for each in value]
    if isinstance(value, dict):
        return {name: _in_one_spelling(each) for name, each in value.items()}
    if isinstance(value, bool) or value is None:
        return value
    text = same_text(f"{Decimal(repr(value)):f}" if isinstance(value, float) else str(value))
    text = text.removesuffix(".").rstrip() or text
    if not (found := NUMBER.fullmatch(text)):
        return text
    sign, whole, part = found.groups(default="")
    number = f"{whole}.{part}" if part else whole
    return f"-{number}" if sign == "-" and number != "0" else number
