"""Compares models on the same questions: rates with intervals, paired differences, corrected for multiple comparisons.

In: evaluated episodes of several models. Out: dictionaries for reports, and rows for tables.
"""

import itertools
from typing import Any

from apprentice.tasks.analysis.broken import scored
from apprentice.tasks.analysis.statistics import holm, mean_interval, paired_difference, pass_at_k, rate_interval
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.reporting.text import points

LABELS = {"control": "SFT to its best"}
"""What people read in place of a model's name."""


NAMES = {
    "base": "the untrained student",
    "sft": "SFT",
    "grpo": "GRPO",
    "champion": "the champion",
    "teacher": "Teacher",
}


def compare_all(
    episodes: dict[str, list[EvaluatedEpisode]], guarded: dict[str, list[EvaluatedEpisode]]
) -> dict[str, list[dict[str, Any]]]:
    """Compares consecutive models on the held-out questions, and before with after on the guard rails; Holm-corrected
    over all comparisons. With a control, GRPO is compared with it and with the SFT that it started from."""
    comparisons = []
    beyond = [("sft", "grpo")] if "control" in episodes else []
    for one, other in [*itertools.pairwise(episodes), *beyond]:
        compared = compare(episodes[one], episodes[other])
        comparisons.append({"from": one, "to": other, "delta_accuracy": compared["delta"]} | compared)
    guards = []
    for name, places in itertools.groupby(guarded, key=lambda each: each.rpartition(".")[0]):
        pair, _ = scored({place: guarded[place] for place in places})
        before, after = pair.values()
        both = {"before": rate(before), "after": rate(after)}
        guards.append({"guard": name} | both | compare(before, after))
    correct([*comparisons, *guards])
    return {"comparisons": comparisons, "guards": guards}


def correct(comparisons: list[dict[str, Any]]) -> None:
    """Adds p_holm to each comparison, corrected over all of them. In place."""
    for each, p in zip(comparisons, holm([each["p_value"] for each in comparisons]), strict=True):
        each["p_holm"] = p


def compare(before: list[EvaluatedEpisode], after: list[EvaluatedEpisode], metric: str = "accuracy") -> dict[str, Any]:
    """The paired difference of a metric. Raises ValueError when the questions are not the same."""
    if [record.question for record in before] != [record.question for record in after]:
        raise ValueError("the two models were not asked the same questions")
    return {"metric": metric} | paired_difference(per_question(before, metric), per_question(after, metric))


def per_question(records: list[EvaluatedEpisode], metric: str) -> list[float]:
    """One value per question: the mean over its samples."""
    values: dict[int, list[float]] = {}
    for record in records:
        value = {"accuracy": record.is_right, "format_compliance": record.valid, "mean_score": record.score}[metric]
        values.setdefault(record.place - record.sample, []).append(float(value))
    return [sum(samples) / len(samples) for samples in values.values()]


def rate(records: list[EvaluatedEpisode], metric: str = "accuracy") -> dict[str, Any]:
    """A rate with its 95% interval, and the number of questions."""
    values = per_question(records, metric)
    return {"n": len(values), metric: sum(values) / len(values), "ci": rate_interval(values)}


def with_intervals(records: list[EvaluatedEpisode]) -> dict[str, Any]:
    """n, each rate with its 95% interval, and pass@k if questions have several samples."""
    scores = per_question(records, "mean_score")
    found = {metric: rate(records, metric) for metric in ("format_compliance", "accuracy")}
    return {
        "n": len(scores),
        **{metric: found[metric][metric] for metric in found},
        "mean_score": sum(scores) / len(scores),
        "ci": {metric: found[metric]["ci"] for metric in found} | {"mean_score": mean_interval(scores)},
        **_passes(records),
    }


def _passes(records: list[EvaluatedEpisode]) -> dict[str, Any]:
    samples = 1 + max(record.sample for record in records)
    if samples == 1:
        return {}
    right = [round(samples * value) for value in per_question(records, "accuracy")]
    rows = []
    for k in range(1, samples + 1):
        passed = [pass_at_k(each, samples, k) for each in right]
        rows.append({"k": k, "pass_at_k": sum(passed) / len(passed), "ci": mean_interval(passed)})
    return {"samples": samples, "pass_at_k": rows}


def table(models: dict[str, Any]) -> list[dict[str, str]]:
    """One row per model: the three rates with their intervals."""
    rates = ("format_compliance", "accuracy", "mean_score")
    return [
        {"model": label(name), "n": str(model["n"])}
        | {rate.replace("_", " "): percent(model[rate], model["ci"][rate]) for rate in rates}
        for name, model in models.items()
    ]


def percent(rate: float, ci: tuple[float, float] | list[float]) -> str:
    """A rate with its interval as text."""
    return f"{rate:.1%} ({ci[0]:.1%} to {ci[1]:.1%})"


def comparison_rows(comparisons: list[dict[str, Any]]) -> list[dict[str, str]]:
    """One row per pair of models, differences in percentage points."""
    return [{"from": label(each["from"]), "to": label(each["to"]), **difference_cells(each)} for each in comparisons]


def label(model: str) -> str:
    return LABELS.get(model, model)


def named(model: str) -> str:
    """The name of a model in a sentence."""
    return NAMES.get(model, label(model))


def difference_cells(each: dict[str, Any]) -> dict[str, str]:
    """The cells of a paired difference: delta, interval, p and corrected p."""
    return {
        each["metric"].replace("_", " "): points(each["delta"]),
        "95% interval": f"{points(each['ci'][0])} to {points(each['ci'][1])}",
        "p (McNemar)" if each["test"].startswith("McNemar") else "p (permutation)": f"{each['p_value']:.2g}",
        "p (Holm)": f"{each['p_holm']:.2g}",
    }
