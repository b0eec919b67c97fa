"""Rates how hard a task is for the model that GRPO is about to train, and chooses among several tasks.

In: the model's rates on a few dozen GRPO questions, with GRPO's sampling. Out: too easy, too hard or right, with the
interval of the accuracy and a sentence.
Why one half: a group teaches through reward differences, which are largest at 50% accuracy. Accuracy counts rewards of
1.0 only; with partial credit a task that is never solved could look half solved. The thresholds are those of GRPO's
signals.
"""

from collections.abc import Iterable, Sequence
from math import isclose
from typing import Any, Literal, NamedTuple

from apprentice.envs.reward import ROUNDING
from apprentice.tasks.analysis.diagnose import RULES
from apprentice.tasks.artifacts.types import Evaluation
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.reporting.safe_text import code, markdown_table
from apprentice.tasks.settings.signals import RewardSignals
from apprentice.tasks.statistics.intervals import Interval, percent
from apprentice.tasks.statistics.rates import by_question, evaluated_interval

Reading = Literal["too easy", "too hard", "right"]
READINGS: tuple[Reading, ...] = "too hard", "right", "too easy"
FORM = 0.5
"""Format compliance below which the model lacks the form of an answer rather than the skill."""
DEAD = 0.5
"""Expected share of groups with equal rewards at which the group size is too small."""
MEANS: dict[Reading, str] = {
    "too easy": "Most groups would have equal rewards and teach nothing. Make the task harder (environment.settings), "
    "add harder levels (grpo.auto_difficulty), or have further questions asked in their place (grpo.oversample).",
    "too hard": "Most groups would contain no right answer to learn from. Train SFT longer, make the task easier "
    "(environment.settings), add easier levels (grpo.auto_difficulty), or have further questions asked in their place "
    "(grpo.oversample).",
    "right": "There is something to learn, and enough right answers to learn from.",
}
FORMLESS = (
    "Valid calls alone (format compliance) are in {format_compliance:.0%} of the episodes: the model lacks the "
    "answer's form, or breaks off. Train SFT longer."
)


class Difficulty(NamedTuple):
    """The difficulty of one task for one model. Rates are 0.0 to 1.0; `ci` is the interval of the accuracy."""

    n: int
    """Questions."""
    accuracy: float
    ci: Interval
    format_compliance: float
    mean_score: float
    reading: Reading
    not_ruled_out: list[Reading]
    """Other readings within the interval."""


def difficulty(played: Evaluation, rules: RewardSignals = RULES) -> Difficulty:
    """Rates a task by an evaluation."""
    ci = evaluated_interval(played)
    reading = _reading(played.accuracy, rules)
    ends = [_reading(end, rules) for end in ci]
    others: list[Reading] = [each for each in READINGS if each != reading and each in ends]
    rates = played.accuracy, ci, played.format_compliance, played.mean_score
    return Difficulty(played.questions or played.n, *rates, reading, others)


def groups_that_differ(played: Iterable[EvaluatedEpisode], exact: bool) -> tuple[int, int]:
    """How many of the questions that were answered several times have answers of different rewards, and of how many.

    Args:
        exact: Whether GRPO's reward is 1.0 for a right answer and else 0.0; otherwise the environment's own reward.
    """

    def reward(record: EvaluatedEpisode) -> Any:
        return record.is_right if exact else (round(record.score, 6), record.scores)  # sums differ in the last bit

    rewards = by_question(played, reward).values()
    return sum(len(set(of_one)) > 1 for of_one in rewards), len(rewards)


def why_stopped(found: Difficulty, groups: int, generations: int) -> str:
    """Why GRPO does not start, where none of the groups differs."""
    what = "all right" if found.accuracy == 1.0 else "all wrong" if found.accuracy == 0.0 else "all the same"
    return (
        f"GRPO did not start: in none of {groups} groups of {generations} answers did the rewards differ ({what}), so "
        "it would have learned nothing (probe.on_hopeless)."
    )


def nearest_to_half(accuracies: Sequence[float]) -> int:
    """The index of the accuracy nearest to one half. Tasks are ordered from easiest to hardest.

    Among equals, prefers the easier task below one half and the harder one above.
    """

    def distance(index: int) -> tuple[float, int]:
        return round(abs(accuracies[index] - 0.5), 9), -index if accuracies[index] > 0.5 else index

    return min(range(len(accuracies)), key=distance)


def assessment(found: Difficulty) -> str:
    """The reading as a sentence with its number, and advice."""
    others = " or ".join(f'"{each}"' for each in found.not_ruled_out)
    doubt = f"; the interval does not rule out {others}" if others else ""
    is_formless = found.reading == "too hard" and found.format_compliance < FORM
    means = FORMLESS.format(format_compliance=found.format_compliance) if is_formless else MEANS[found.reading]
    return (
        f"**The task is {found.reading}**: before GRPO the SFT model solves {percent(found.accuracy, found.ci)} of "
        f"{found.n} questions (accuracy; probe.questions){doubt}. {means}"
    )


def dead_share(accuracy: float, generations: int) -> float:
    """Share of GRPO's groups whose rewards are all equal, where every question is solved at the same rate. Where
    questions differ, the share is larger."""
    return accuracy**generations + (1.0 - accuracy) ** generations


def advice_on_groups(found: Difficulty, generations: int, reward: str) -> str:
    """A sentence on the group size where half of the groups or more would teach nothing; empty otherwise.

    With partial credit, wrong answers of a group differ too, and the accuracy does not show it.
    """
    all_or_nothing = reward == "exact" or isclose(found.mean_score, found.accuracy, abs_tol=ROUNDING)
    expected = dead_share(found.accuracy, generations)
    if found.reading != "right" or not all_or_nothing or expected < DEAD:
        return ""
    larger = (generations * factor for factor in (2, 4))
    others = ", ".join(f"{dead_share(found.accuracy, size):.0%} of {size}" for size in larger)
    return (
        f"At this rate at least {expected:.0%} of the groups of {generations} completions have equal "
        f"rewards and teach nothing ({others}): raise grpo.num_generations, or have further questions asked in their "
        "place (grpo.oversample)."
    )


def label_differences(levels: Sequence[dict[str, Any]]) -> list[str]:
    """A label for each level: the settings that differ between levels, or all settings if none differ."""
    leaves = [dict(_leaves(settings)) for settings in levels]
    names = list(dict.fromkeys(name for each in leaves for name in each))
    differ = [name for name in names if len({str(each.get(name)) for each in leaves}) > 1] or names
    return [", ".join(f"{name} {each[name]}" for name in differ if name in each) or "by default" for each in leaves]


def rows_of(report: dict[str, Any]) -> list[dict[str, str]]:
    """One table row per task; among several the chosen one is marked.

    Args:
        report: The report's `probe`: the levels, each a `Difficulty` with its label, and the index of the chosen one.
    """
    rows = []
    for index, each in enumerate(report["rungs"]):
        mark = "→ " if index == report["chosen"] else ""
        level = {"rung": f"{mark}{index + 1}", "settings": each["called"]} if len(report["rungs"]) > 1 else {}
        rates = {
            "n": str(each["n"]),
            "accuracy": percent(each["accuracy"], each["ci"]),
            "format compliance": f"{each['format_compliance']:.1%}",
            "mean score": f"{each['mean_score']:.1%}",
            "the task is": each["reading"],
        }
        rows.append(level | rates)
    return rows


def difficulty_as_markdown(report: dict[str, Any]) -> str:
    rows = [row | ({"settings": code(row["settings"])} if "settings" in row else {}) for row in rows_of(report)]
    return f"{report['says']}\n\n{markdown_table(rows)}"


def _reading(accuracy: float, rules: RewardSignals) -> Reading:
    return "too easy" if accuracy >= rules.high else "too hard" if accuracy <= rules.low else "right"


def _leaves(settings: dict[str, Any]) -> list[tuple[str, Any]]:
    return [
        leaf
        for name, value in settings.items()
        for leaf in (_leaves(value) if isinstance(value, dict) else [(name, value)])
    ]
