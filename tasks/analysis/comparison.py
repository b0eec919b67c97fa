"""Compares models on the same questions: rates with intervals, paired differences, corrected for multiple comparisons.

In: evaluated episodes of several models. Out: dictionaries for reports, and rows for tables.

Decides how questions count on which the environment failed.

Checks whether a model was trained on the questions it is evaluated on, by seed and by text.
"""

import itertools
import json
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from apprentice.tasks.analysis.statistics import holm, mean_interval, paired_difference, pass_at_k, rate_interval
from apprentice.tasks.artifacts.types import ModelName
from apprentice.tasks.episodes.record import LEARNED, EvaluatedEpisode, read_learned, same_text
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.safe_text import points
from apprentice.tasks.settings.training import TRAININGS


def check_broken(broken: int, of: int, max_failed: float, last: str) -> None:
    """Raises Stop when the environment failed on a larger share of episodes than `max_failed`."""
    if broken > max(max_failed * of, min(1, of - 1)):
        raise Stop(
            f"The environment or the model's endpoint failed on {broken} of {of} episodes, each time again; the "
            f"last one: {last}",
            "Fix that server, exclude the questions that it cannot score (environment.settings), or raise this stage's "
            "max_failed. Then run again.",
        )


def scored(episodes: dict[str, list[EvaluatedEpisode]]) -> tuple[dict[str, list[EvaluatedEpisode]], str]:
    """The episodes of each model without the questions that failed for all models, and a note for the report."""
    left_out = broken_for_all(episodes.values())
    kept = {
        name: [record for record in records if record.place - record.sample not in left_out]
        for name, records in episodes.items()
    }
    broke = {name: sum(bool(record.broken) for record in records) for name, records in episodes.items()}
    if not any(broke.values()):
        return kept, ""
    return kept, (
        f"The environment failed on episodes: {', '.join(f'{number} of {name}' for name, number in broke.items())}. "
        f"Questions on which it failed for every model are left out ({len(left_out)}); any other such episode counts "
        "as not right."
    )


def broken_for_all(models: Iterable[list[EvaluatedEpisode]]) -> set[int]:
    """Questions, by the place of their first sample, on which the environment failed in every sample of every model."""
    by_model = []
    for records in models:
        answered = {record.place - record.sample for record in records if not record.broken}
        by_model.append({record.place - record.sample for record in records} - answered)
    return set.intersection(*by_model) if by_model else set()


LABELS: dict[str, str] = {ModelName.CONTROL: "SFT to its best"}
"""What people read in place of a model's name."""


NAMES: dict[str, str] = {
    ModelName.BASE: "the untrained student",
    ModelName.SFT: "SFT",
    ModelName.GRPO: "GRPO",
    ModelName.CHAMPION: "the champion",
    "teacher": "Teacher",
}


def compare_all(
    episodes: dict[str, list[EvaluatedEpisode]], guarded: dict[str, list[EvaluatedEpisode]]
) -> dict[str, list[dict[str, Any]]]:
    """Compares consecutive models on the held-out questions, and before with after in regression evaluations;
    Holm-corrected over all comparisons. With a control, GRPO is compared with it and with its starting SFT."""
    comparisons = []
    beyond = [(ModelName.SFT, ModelName.GRPO)] if ModelName.CONTROL in episodes else []
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


def seen_by(checkpoint: Path, records: list[EvaluatedEpisode]) -> set[str]:
    """The evaluated questions that a checkpoint was trained on, normalized by `same_text`."""
    return {same_text(row["question"]) for row in read_learned(checkpoint)} & {same_text(r.question) for r in records}


def count_seen(checkpoint: Path, records: list[EvaluatedEpisode]) -> int | None:
    """The number of evaluated questions that a checkpoint was trained on; None for an external model."""
    if not (checkpoint / LEARNED).exists() and (checkpoint / "source.json").exists():
        return None
    return len(seen_by(checkpoint, records))


def contamination(
    records: list[EvaluatedEpisode], checkpoint: Path, rollouts: Path | None, limit: float
) -> dict[str, Any]:
    """The overlap between an evaluation and the training of one checkpoint.

    Args:
        rollouts: The folder of the collected rollouts, including those that the filter dropped; None without any.
        limit: Maximum share of the questions that training may have used.
    """
    examined = {same_text(record.question) for record in records}
    seeds = {record.seed for record in records}
    learned = read_learned(checkpoint)
    shared = {same_text(row["question"]) for row in learned} & examined
    shared_seeds = seeds & {row["seed"] for row in learned}
    texts: set[str] = set()
    with (rollouts / "rollouts.jsonl").open() if rollouts else nullcontext(()) as lines:
        for row in map(json.loads, lines):
            shared_seeds |= seeds & {row["seed"]}
            texts |= examined & {same_text(message["content"]) for message in row["messages"][1:2]}
    return {
        "questions": len(examined),
        "learned_from": {stage: sum(row["stage"] == stage for row in learned) for stage in TRAININGS},
        "shared_with_training": len(shared),
        "shared_with_rollouts": len(texts),
        "shared_seeds": len(shared_seeds),
        "share": len(shared) / len(examined),
        "limit": limit,
        "clean": len(shared) <= limit * len(examined) and not shared_seeds,
    }
