"""Compares the models on the same questions, reads GRPO's curves, and says what the comparison rests on.

In: the models' `Evaluation`s, those on the guard rails, rollouts, the GRPO checkpoint. Out: `Verdict`: verdict.json.
What training has seen more of than the recipe allows is not compared at all.
"""

import itertools
import json
from pathlib import Path
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks import announce
from apprentice.tasks.artifacts import Evaluation, GrpoCheckpoint, Rollouts, Verdict
from apprentice.tasks.broken import scored
from apprentice.tasks.calibration import calibration
from apprentice.tasks.contamination import contamination
from apprentice.tasks.diagnose import read_curves
from apprentice.tasks.evaluate import read_episodes
from apprentice.tasks.record import Examined
from apprentice.tasks.signal_specs import GrpoSignals
from apprentice.tasks.signals import read_signals
from apprentice.tasks.slices import side_by_side, slices, worst
from apprentice.tasks.specs import GateSpec
from apprentice.tasks.stage import Bench, stage
from apprentice.tasks.statistics import holm, mean_interval, paired_difference, pass_at_k, rate_interval
from apprentice.tasks.training import read_log


@stage(gives=Verdict, version=3, title="Comparison and diagnosis")
def verdict(
    bench: Bench,
    gate: GateSpec,
    evaluations: dict[str, Evaluation],
    guards: dict[str, Evaluation],
    environment: EnvironmentSpec,
    rollouts: Rollouts,
    trained: GrpoCheckpoint,
    beta: float,
) -> dict[str, Any]:
    """Rates with intervals, neighbours' paired differences, slices, failures, guard rails, the diagnosis.

    Args:
        evaluations: base, sft, grpo, in this order.
        guards: By `<guard>.<model>`, the model before training and the one after, in this order.
    """
    episodes = {name: read_episodes(bench.fetch(evaluation)) for name, evaluation in evaluations.items()}
    guarded = {name: read_episodes(bench.fetch(evaluation)) for name, evaluation in guards.items()}
    bought = bench.fetch(rollouts)
    shared = contamination(episodes["grpo"], bench.fetch(trained), bought, gate.max_overlap)
    episodes, broke = scored(episodes)
    compared = compare_all(episodes, guarded) if shared["clean"] else {"comparisons": [], "guards": []}
    rules = GrpoSignals.model_validate(read_signals(bench.fetch(trained))["rules"])
    reading = read_curves(read_log(bench.fetch(trained)), beta, rules)._asdict()
    report = {
        "models": {name: with_intervals(records) for name, records in episodes.items()},
        "broken": broke,
        **compared,
        "contamination": shared,
        "grpo": reading,
        "slices": slices(episodes),
        "failures": [record.model_dump() for record in worst(episodes)],
        "side_by_side": side_by_side(episodes),
        "teacher": calibration(bought, environment),
    }
    (bench.out / "verdict.json").write_text(json.dumps(report, indent=2))
    announce.table("models", "Held-out evaluation", table(report["models"]))
    if broke:
        announce.warn(broke)
    announce.markdown("diagnosis", f"**{reading['diagnosis']}**: {reading['advice']}", "What GRPO's curves say")
    if not shared["clean"]:
        announce.warn(unclean(shared))
    return {"diagnosis": reading["diagnosis"], "contaminated": not shared["clean"]}


def read_verdict(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "verdict.json").read_text())


def unclean(shared: dict[str, Any]) -> str:
    """Why nothing is compared, and what to do."""
    return (
        f"Nothing was compared: training has seen {shared['shared_with_training']} of the {shared['questions']} "
        f"questions by text ({shared['share']:.1%}; gate.max_overlap allows {shared['limit']:.1%}) and "
        f"{shared['shared_seeds']} by seed. Move windows.evaluate, or make the task wider (environment.settings)."
    )


def compare_all(
    episodes: dict[str, list[Examined]], guarded: dict[str, list[Examined]]
) -> dict[str, list[dict[str, Any]]]:
    """Neighbours on the held-out questions and the guard rails before and after; Holm's correction over all."""
    comparisons = []
    for one, other in itertools.pairwise(episodes):
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
    """Gives each comparison its p_holm, corrected for all of them."""
    for each, p in zip(comparisons, holm([each["p_value"] for each in comparisons]), strict=True):
        each["p_holm"] = p


def compare(before: list[Examined], after: list[Examined], metric: str = "accuracy") -> dict[str, Any]:
    """The paired difference of a metric on the same questions. Raises ValueError when they are not the same."""
    if [record.question for record in before] != [record.question for record in after]:
        raise ValueError("the two models were not asked the same questions")
    return {"metric": metric} | paired_difference(per_question(before, metric), per_question(after, metric))


def per_question(records: list[Examined], metric: str) -> list[float]:
    """One value a question: the mean of its samples."""
    values: dict[int, list[float]] = {}
    for record in records:
        value = {"accuracy": record.is_right, "format_compliance": record.valid, "mean_score": record.score}[metric]
        values.setdefault(record.place - record.sample, []).append(float(value))
    return [sum(samples) / len(samples) for samples in values.values()]


def rate(records: list[Examined], metric: str = "accuracy") -> dict[str, Any]:
    """A rate with its interval, and the number of questions."""
    values = per_question(records, metric)
    return {"n": len(values), metric: sum(values) / len(values), "ci": rate_interval(values)}


def with_intervals(records: list[Examined]) -> dict[str, Any]:
    """n, each rate with its 95% interval, and pass@k where questions were answered several times."""
    scores = per_question(records, "mean_score")
    found = {metric: rate(records, metric) for metric in ("format_compliance", "accuracy")}
    return {
        "n": len(scores),
        **{metric: found[metric][metric] for metric in found},
        "mean_score": sum(scores) / len(scores),
        "ci": {metric: found[metric]["ci"] for metric in found} | {"mean_score": mean_interval(scores)},
        **_passes(records),
    }


def _passes(records: list[Examined]) -> dict[str, Any]:
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
    """A row a model: the three rates with their intervals."""
    rates = ("format_compliance", "accuracy", "mean_score")
    return [
        {"model": name, "n": str(model["n"])}
        | {rate.replace("_", " "): percent(model[rate], model["ci"][rate]) for rate in rates}
        for name, model in models.items()
    ]


def percent(rate: float, ci: tuple[float, float] | list[float]) -> str:
    """A rate with its interval, for people."""
    return f"{rate:.1%} ({ci[0]:.1%} to {ci[1]:.1%})"
