"""Compares the models on the same questions, diagnoses GRPO's curves, and checks for contamination.

In: the models' `Evaluation`s, also regression ones, rollouts, the GRPO checkpoint. Out: `Verdict`: verdict.json.
Nothing is compared when training has seen more of the evaluation's questions than the recipe allows.
"""

import json
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.analysis.comparison import compare_all, contamination, scored, table, with_intervals
from apprentice.tasks.analysis.diagnose import read_curves, read_signals, settled
from apprentice.tasks.analysis.ending import READING, paid, unclean
from apprentice.tasks.analysis.reward_hacking import reward_hacking, teacher_of
from apprentice.tasks.analysis.slices import calibration, side_by_side, slices, worst
from apprentice.tasks.artifacts.types import Checkpoint, Evaluation, ModelName, Rollouts, Verdict
from apprentice.tasks.engine.stage import Drawn, StageContext, stage
from apprentice.tasks.episodes.record import read_episodes
from apprentice.tasks.reporting import announce
from apprentice.tasks.settings.spec import GateSpec
from apprentice.tasks.settings.training import GrpoSignals
from apprentice.tasks.training.trainer import read_log


@stage(produces=Verdict, version=4, title="Comparison and diagnosis", drawn=Drawn("Verdict"))
def verdict(
    context: StageContext,
    gate: GateSpec,
    evaluations: dict[str, Evaluation],
    guards: dict[str, Evaluation],
    environment: EnvironmentSpec,
    rollouts: Rollouts | None,
    trained: Checkpoint,
    beta: float,
    stopped: str = "",
) -> dict[str, Any]:
    """Rates with intervals, paired differences of consecutive models, slices, failures, regression evaluations, the
    diagnosis.

    Args:
        evaluations: base, sft, grpo, in this order, without those that the recipe leaves out; the last one is of
            `trained`.
        guards: Keyed `<guard>.<model>`: the model whose skills are protected, then the one after training.
        stopped: Why GRPO did not start, where the probe found nothing to learn; else empty.
    """
    episodes = {name: read_episodes(context.fetch(evaluation)) for name, evaluation in evaluations.items()}
    guarded = {name: read_episodes(context.fetch(evaluation)) for name, evaluation in guards.items()}
    bought = context.fetch(rollouts) if rollouts else None
    shared = contamination(episodes[[*episodes][-1]], context.fetch(trained), bought, gate.max_overlap)
    episodes, broke = scored(episodes)
    compared = compare_all(episodes, guarded) if shared["clean"] else {"comparisons": [], "guards": []}
    reading, signs = None, []
    if trained.stage == ModelName.GRPO:
        checkpoint = context.fetch(trained)
        rules = GrpoSignals.model_validate(read_signals(checkpoint)["rules"])
        over = paid(compared["comparisons"])
        reading = settled(read_curves(read_log(checkpoint), beta, rules), over["ci"] if over else None)._asdict()
        began = episodes.get(ModelName.SFT) or next(iter(episodes.values()))
        signs = reward_hacking(began, episodes[ModelName.GRPO], teacher_of(bought) if bought else None)
    report = {
        "models": {name: with_intervals(records) for name, records in episodes.items()},
        "broken": broke,
        **compared,
        "contamination": shared,
        READING: reading,
        "signs": [sign._asdict() for sign in signs],
        "stopped": stopped,
        "token_accuracy": _token_accuracy(context, trained),
        "slices": slices(episodes),
        "failures": [record.model_dump() for record in worst(episodes)],
        "side_by_side": side_by_side(episodes),
        "teacher": calibration(bought, environment) if bought else None,
    }
    (context.out / "verdict.json").write_text(json.dumps(report, indent=2))
    announce.rows("models", "Held-out evaluation", table(report["models"]))
    if broke:
        announce.warn(broke)
    if reading:
        announce.markdown("diagnosis", f"**{reading['diagnosis']}**: {reading['advice']}", "Diagnosis of GRPO's curves")
    if not shared["clean"]:
        announce.warn(unclean(shared))
    return {"diagnosis": reading["diagnosis"] if reading else "", "contaminated": not shared["clean"]}


def _token_accuracy(context: StageContext, trained: Checkpoint) -> float | None:
    """The share of its rows' tokens that the SFT model predicted in the end; None where GRPO trained it after that."""
    if trained.stage != ModelName.SFT:
        return None
    logged = [
        entry["mean_token_accuracy"] for entry in read_log(context.fetch(trained)) if "mean_token_accuracy" in entry
    ]
    return logged[-1] if logged else None
