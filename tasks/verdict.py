"""Compares the models on the same questions and reads GRPO's curves.

In: the three `Evaluation`s and the GRPO checkpoint. Out: `Verdict`: verdict.json.
"""

import itertools
import json
from pathlib import Path
from typing import Any

from apprentice.tasks import announce
from apprentice.tasks.artifacts import Evaluation, GrpoCheckpoint, Verdict
from apprentice.tasks.diagnose import read_curves
from apprentice.tasks.stage import Bench, stage
from apprentice.tasks.statistics import mean_interval, paired_difference, wilson
from apprentice.tasks.training import read_log


@stage(gives=Verdict, version=1, title="Comparison and diagnosis")
def verdict(
    bench: Bench, base: Evaluation, sft: Evaluation, grpo: Evaluation, trained: GrpoCheckpoint, beta: float
) -> dict[str, Any]:
    """Rates with intervals, neighbours' paired differences, the diagnosis."""
    episodes = {evaluation.model: read_episodes(bench.fetch(evaluation)) for evaluation in (base, sft, grpo)}
    models = {name: with_intervals(records) for name, records in episodes.items()}
    names = list(episodes)
    comparisons = [compare(one, other, episodes) for one, other in itertools.pairwise(names)]
    reading = read_curves(read_log(bench.fetch(trained)), beta)._asdict()
    report = {"models": models, "comparisons": comparisons, "grpo": reading}
    (bench.out / "verdict.json").write_text(json.dumps(report, indent=2))
    announce.table("models", "Held-out evaluation", table(models))
    announce.markdown("diagnosis", f"**{reading['diagnosis']}**: {reading['advice']}", "What GRPO's curves say")
    return {"diagnosis": reading["diagnosis"]}


def read_episodes(folder: Path) -> list[dict[str, Any]]:
    """An evaluation's episodes, in the order of the questions."""
    with (folder / "episodes.jsonl").open() as file:
        return [json.loads(line) for line in file]


def with_intervals(records: list[dict[str, Any]]) -> dict[str, Any]:
    """n, and each rate with its 95% interval."""
    n = len(records)
    valid = sum(record["valid"] for record in records)
    right = sum(record["reward"] == 1.0 for record in records)
    scores = [record["reward"] for record in records]
    return {
        "n": n,
        "format_compliance": valid / n,
        "accuracy": right / n,
        "mean_score": sum(scores) / n,
        "ci": {
            "format_compliance": wilson(valid, n),
            "accuracy": wilson(right, n),
            "mean_score": mean_interval(scores),
        },
    }


def compare(one: str, other: str, episodes: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The difference in accuracy from one model to the other, question by question."""
    if [record["question"] for record in episodes[one]] != [record["question"] for record in episodes[other]]:
        raise ValueError(f"{one} and {other} were not asked the same questions")
    before, after = ([record["reward"] == 1.0 for record in episodes[name]] for name in (one, other))
    return {"from": one, "to": other} | paired_difference(before, after)


def table(models: dict[str, Any]) -> list[dict[str, str]]:
    """A row a model: the three rates with their intervals."""
    rates = ("format_compliance", "accuracy", "mean_score")
    return [
        {"model": name, "n": str(model["n"])}
        | {rate.replace("_", " "): _percent(model[rate], model["ci"][rate]) for rate in rates}
        for name, model in models.items()
    ]


def _percent(rate: float, ci: tuple[float, float]) -> str:
    return f"{rate:.1%} ({ci[0]:.1%} to {ci[1]:.1%})"
