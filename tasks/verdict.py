"""Compares a run's models on the same questions, reads the training's curves, and checks for contamination.

In: the models' `Evaluation`s, also regression ones, rollouts, the trained checkpoint. Out: `Verdict`: verdict.json.
Nothing is compared when training has seen more of the evaluation's questions than the recipe allows.
"""

from pathlib import Path
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.advice.ending import paid, unclean
from apprentice.tasks.analysis.broken_episodes import scored
from apprentice.tasks.analysis.comparison import compare_all, table
from apprentice.tasks.analysis.curve_signals import read_signals
from apprentice.tasks.analysis.diagnose import has_rewards, read_curves, settled
from apprentice.tasks.analysis.reward_hacking import reward_hacking, teacher_of
from apprentice.tasks.artifacts.provenance import parent
from apprentice.tasks.artifacts.types import Checkpoint, Evaluation, Rollouts, Verdict
from apprentice.tasks.engine.stage import Drawn, StageContext, stage
from apprentice.tasks.episodes.record import EvaluatedEpisode, read_episodes
from apprentice.tasks.files.question_lists import read_learned
from apprentice.tasks.judgement.contamination import contamination
from apprentice.tasks.judgement.contents import (
    Comparison,
    Contamination,
    VerdictContents,
    write,
)
from apprentice.tasks.judgement.rules import GateSpec
from apprentice.tasks.judgement.run_models import Models, must_pay
from apprentice.tasks.judgement.samples import side_by_side, worst
from apprentice.tasks.lineage.node import node_of
from apprentice.tasks.reporting import announce
from apprentice.tasks.settings.signals import RewardSignals
from apprentice.tasks.statistics.calibration import calibration
from apprentice.tasks.statistics.rates import with_intervals
from apprentice.tasks.statistics.slices import slices
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
    evaluated = Models({name: read_episodes(context.fetch(evaluation)) for name, evaluation in evaluations.items()})
    regression_records = {name: read_episodes(context.fetch(evaluation)) for name, evaluation in guards.items()}
    bought = context.fetch(rollouts) if rollouts else None
    checkpoint = context.fetch(trained)
    played = rollouts is not None and not node_of(context.run.store, parent(rollouts), {}).is_of_a_dataset
    repeated = _repeated(environment, evaluated.last, checkpoint)
    shared = Contamination(**contamination(evaluated.last, checkpoint, bought, gate.max_overlap, repeated))
    counted, broke = scored(evaluated)
    episodes = Models(counted)
    compared = compare_all(episodes, regression_records) if shared.clean else {"comparisons": [], "guards": []}
    comparisons = [Comparison(**each) for each in compared["comparisons"]]
    reading, signs = None, []
    if has_rewards(read_log(checkpoint)):
        rules = RewardSignals.model_validate(read_signals(checkpoint)["rules"])
        over = paid(comparisons)
        reading = settled(read_curves(read_log(checkpoint), beta, rules), over.ci if over else None)
        began = episodes.supervised or episodes.base
        signs = reward_hacking(began, episodes.last, teacher_of(bought) if bought and played else None)
    contents = VerdictContents.model_validate(
        {
            "models": {name: with_intervals(records) for name, records in episodes.items()},
            "broken": broke,
            "comparisons": comparisons,
            "guards": compared["guards"],
            "contamination": shared,
            "curves": reading,
            "signs": [sign._asdict() for sign in signs],
            "stopped": stopped,
            "token_accuracy": _token_accuracy(context, trained),
            "slices": slices(episodes),
            "failures": [record.model_dump() for record in worst(episodes)],
            "side_by_side": side_by_side(episodes),
            "teacher": calibration(bought, environment) if bought and played else None,
        }
    )
    write(context.out, contents)
    announce.rows("models", "Held-out evaluation", table(contents.models))
    if broke:
        announce.warn(broke)
    if reading:
        announce.markdown(
            "diagnosis", f"**{reading.diagnosis}**: {reading.advice}", "Diagnosis of the training's curves"
        )
    if not shared.clean:
        announce.warn(unclean(shared))
    return {"diagnosis": str(reading.diagnosis) if reading else "", "contaminated": not shared.clean}


def _repeated(environment: EnvironmentSpec, records: list[EvaluatedEpisode], checkpoint: Path) -> int:
    """How many questions there are, where evaluation and training are tries of the same few; 0 otherwise."""
    seeds = [record.seed for record in records] + [row["seed"] for row in read_learned(checkpoint)]
    return environment.questions or 0 if environment.repeats(seeds) else 0


def _token_accuracy(context: StageContext, trained: Checkpoint) -> float | None:
    """The share of its rows' tokens that the SFT model predicted in the end; None where another training followed."""
    if must_pay(trained.stage):
        return None
    logged = [
        entry["mean_token_accuracy"] for entry in read_log(context.fetch(trained)) if "mean_token_accuracy" in entry
    ]
    return logged[-1] if logged else None
