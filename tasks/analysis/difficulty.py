"""Says how hard a task is for a model that GRPO is about to train on it, and which of several tasks suits it best.

In: the model's rates on a few dozen of GRPO's questions, sampled as GRPO samples. Out: too easy, too hard or right,
with the interval behind it, and words.
Why one half: a group teaches by its differences, and a group of a model that is right half of the time differs most.
Right means reward 1.0: partial credit would call a task half solved that is never solved. The limits are those by which
GRPO's curves are read.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from apprentice.tasks.analysis.comparison import percent
from apprentice.tasks.analysis.diagnose import RULES
from apprentice.tasks.analysis.statistics import Interval, wilson
from apprentice.tasks.artifacts.types import Evaluation
from apprentice.tasks.reporting.markdown import code, markdown_table
from apprentice.tasks.settings.signals import GrpoSignals

Reading = Literal["too easy", "too hard", "right"]
READINGS: tuple[Reading, ...] = "too hard", "right", "too easy"
FORM = 0.5
"""Share of valid episodes below which it is the form of an answer that is missing, and not the skill."""
MEANS: dict[Reading, str] = {
    "too easy": "Most groups would score all the same and teach nothing. Make the task harder (environment.settings), "
    "or give harder ones to choose from (grpo.auto_difficulty).",
    "too hard": "Most groups would have nothing right to learn from. Train SFT longer, make the task easier "
    "(environment.settings), or give easier ones to choose from (grpo.auto_difficulty).",
    "right": "There is something to learn, and enough is right to learn it from.",
}
FORMLESS = "Most episodes have no valid call: it is the form that is missing. Train SFT longer."


class Difficulty(NamedTuple):
    """One task, as hard as a model finds it. Rates are shares of 1.0; `ci` is Wilson's of the accuracy."""

    n: int
    accuracy: float
    ci: Interval
    format_compliance: float
    mean_score: float
    reading: Reading
    not_ruled_out: list[Reading]
    """Other readings that the interval reaches."""


def difficulty(played: Evaluation, rules: GrpoSignals = RULES) -> Difficulty:
    """What an evaluation with one sample a question says of its task."""
    ci = wilson(round(played.accuracy * played.n), played.n)
    reading = _reading(played.accuracy, rules)
    ends = [_reading(end, rules) for end in ci]
    others: list[Reading] = []
    for each in READINGS:
        if each != reading and each in ends:
            others.append(each)
    rates = played.accuracy, ci, played.format_compliance, played.mean_score
    return Difficulty(played.n, *rates, reading, others)


def nearest_to_half(accuracies: Sequence[float]) -> int:
    """The place of the one nearest to one half, of tasks in order, the easiest first.

    Of equals the easier one where too little is right, and the harder one where too much is.
    """

    def distance(place: int) -> tuple[float, int]:
        return round(abs(accuracies[place] - 0.5), 9), -place if accuracies[place] > 0.5 else place

    return min(range(len(accuracies)), key=distance)


def judgement(found: Difficulty) -> str:
    """A sentence with the number behind it, and what follows."""
    others = " or ".join(f'"{each}"' for each in found.not_ruled_out)
    doubt = f"; so few do not rule out {others}" if others else ""
    means = FORMLESS if found.reading == "too hard" and found.format_compliance < FORM else MEANS[found.reading]
    return (
        f"**The task is {found.reading}**: before GRPO the SFT model solves {percent(found.accuracy, found.ci)} of "
        f"{found.n} questions of it{doubt}. {means}"
    )


def label_differences(ladder: Sequence[dict[str, Any]]) -> list[str]:
    """Each rung's settings in words: what is not the same in all of them, or all of it where nothing differs."""
    leaves = [dict(_leaves(settings)) for settings in ladder]
    names = list(dict.fromkeys(name for each in leaves for name in each))
    differ = [name for name in names if len({str(each.get(name)) for each in leaves}) > 1] or names
    return [", ".join(f"{name} {each[name]}" for name in differ if name in each) or "by default" for each in leaves]


def rows_of(report: dict[str, Any]) -> list[dict[str, str]]:
    """A row a task, for people; of several the chosen one is marked.

    Args:
        report: The report's `probe`: rungs, each a `Difficulty` with what it is called, and which was chosen.
    """
    rows = []
    for place, each in enumerate(report["rungs"]):
        mark = "→ " if place == report["chosen"] else ""
        rung = {"rung": f"{mark}{place + 1}", "settings": each["called"]} if len(report["rungs"]) > 1 else {}
        rates = {
            "n": str(each["n"]),
            "accuracy": percent(each["accuracy"], each["ci"]),
            "format compliance": f"{each['format_compliance']:.1%}",
            "mean score": f"{each['mean_score']:.1%}",
            "the task is": each["reading"],
        }
        rows.append(rung | rates)
    return rows


def difficulty_as_markdown(report: dict[str, Any]) -> str:
    """What the probe says, and the rows as a table."""
    rows = [row | ({"settings": code(row["settings"])} if "settings" in row else {}) for row in rows_of(report)]
    return f"{report['says']}\n\n{markdown_table(rows)}"


def _reading(accuracy: float, rules: GrpoSignals) -> Reading:
    return "too easy" if accuracy >= rules.high else "too hard" if accuracy <= rules.low else "right"


def _leaves(settings: dict[str, Any]) -> list[tuple[str, Any]]:
    """The innermost settings, each by its own name."""
    return [
        leaf
        for name, value in settings.items()
        for leaf in (_leaves(value) if isinstance(value, dict) else [(name, value)])
    ]
