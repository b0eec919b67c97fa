"""Judges a run's models: the verdict, the gate between challenger and champion, and the release.

`verdict` compares the models on the same questions, diagnoses GRPO's curves, and checks for contamination. In: the
models' `Evaluation`s, also regression ones, rollouts, the GRPO checkpoint. Out: `Verdict`: verdict.json. Nothing is
compared when training has seen more of the evaluation's questions than the recipe allows.

`gate` decides whether a trained model replaces the champion. In: the challenger and its baseline, evaluated on the
same questions and in the same regression evaluations. The baseline is the champion, or the untrained student if there
is no champion. Out: `Decision`: decision.json, with every rule, its finding, and whether it holds.
The recipe fixes the rules before training: at least the floor; better on one metric by a margin, with the interval
above zero, on questions that neither model has seen; no regression evaluation falls by more than its allowance; no
contamination.

`release` packages a trained model: its weights, and a card with its results and the gate's decision.
"""

import os
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.reward import ROUNDING
from apprentice.tasks.analysis.comparison import (
    compare,
    compare_all,
    contamination,
    per_question,
    rate,
    scored,
    seen_by,
    table,
    with_intervals,
)
from apprentice.tasks.analysis.diagnose import read_curves, read_signals, settled
from apprentice.tasks.analysis.ending import as_markdown, decided_by, floor_of, paid, read_verdict, unclean
from apprentice.tasks.analysis.exact_tests import cannot_pass
from apprentice.tasks.analysis.kinds import calibration, side_by_side, slices, worst
from apprentice.tasks.analysis.reward_hacking import reward_hacking, teacher_of
from apprentice.tasks.artifacts.lineage import node_of
from apprentice.tasks.artifacts.local import digest
from apprentice.tasks.artifacts.types import (
    CARD,
    RECORD,
    Checkpoint,
    Decision,
    Evaluation,
    ModelName,
    Release,
    Rollouts,
    Verdict,
    parent,
)
from apprentice.tasks.engine.stage import Drawn, StageContext, stage
from apprentice.tasks.episodes.record import EvaluatedEpisode, read_episodes, same_text
from apprentice.tasks.judgement.contents import (
    Comparison,
    Contamination,
    Difference,
    Floor,
    GateDecision,
    Judgement,
    RegressionEvaluation,
    Rule,
    made_rule,
    write,
)
from apprentice.tasks.judgement.rules import RuleId
from apprentice.tasks.judgement.run_models import Models
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
    evaluated = Models({name: read_episodes(context.fetch(evaluation)) for name, evaluation in evaluations.items()})
    guarded = {name: read_episodes(context.fetch(evaluation)) for name, evaluation in guards.items()}
    bought = context.fetch(rollouts) if rollouts else None
    played = rollouts is not None and not node_of(context.run.store, parent(rollouts), {}).is_of_a_dataset
    shared = Contamination(**contamination(evaluated.last, context.fetch(trained), bought, gate.max_overlap))
    counted, broke = scored(evaluated)
    episodes = Models(counted)
    compared = compare_all(episodes, guarded) if shared.clean else {"comparisons": [], "guards": []}
    comparisons = [Comparison(**each) for each in compared["comparisons"]]
    reading, signs = None, []
    if trained.stage == ModelName.GRPO:
        checkpoint = context.fetch(trained)
        rules = GrpoSignals.model_validate(read_signals(checkpoint)["rules"])
        over = paid(comparisons)
        reading = settled(read_curves(read_log(checkpoint), beta, rules), over.ci if over else None)
        began = episodes.sft or episodes.base
        signs = reward_hacking(began, episodes.last, teacher_of(bought) if bought and played else None)
    judgement = Judgement.model_validate(
        {
            "models": {name: with_intervals(records) for name, records in episodes.items()},
            "broken": broke,
            "comparisons": comparisons,
            "guards": compared["guards"],
            "contamination": shared,
            "grpo": reading,
            "signs": [sign._asdict() for sign in signs],
            "stopped": stopped,
            "token_accuracy": _token_accuracy(context, trained),
            "slices": slices(episodes),
            "failures": [record.model_dump() for record in worst(episodes)],
            "side_by_side": side_by_side(episodes),
            "teacher": calibration(bought, environment) if bought and played else None,
        }
    )
    write(context.out, judgement)
    announce.rows("models", "Held-out evaluation", table(judgement.models))
    if broke:
        announce.warn(broke)
    if reading:
        announce.markdown("diagnosis", f"**{reading.diagnosis}**: {reading.advice}", "Diagnosis of GRPO's curves")
    if not shared.clean:
        announce.warn(unclean(shared))
    return {"diagnosis": str(reading.diagnosis) if reading else "", "contaminated": not shared.clean}


def _token_accuracy(context: StageContext, trained: Checkpoint) -> float | None:
    """The share of its rows' tokens that the SFT model predicted in the end; None where GRPO trained it after that."""
    if trained.stage != ModelName.SFT:
        return None
    logged = [
        entry["mean_token_accuracy"] for entry in read_log(context.fetch(trained)) if "mean_token_accuracy" in entry
    ]
    return logged[-1] if logged else None


@stage(produces=Decision, version=3, title="Gate: challenger against {rival.stage}", drawn=Drawn("Gate"))
def gate(
    context: StageContext,
    spec: GateSpec,
    challenger: Checkpoint,
    rival: Checkpoint,
    evaluations: dict[str, Evaluation],
    guards: dict[str, Evaluation],
    allowances: dict[str, float],
    judged: Verdict,
    rolled_back: bool,
    champion_known: bool = True,
) -> dict[str, Any]:
    """Applies the rules.

    Args:
        evaluations: "challenger" and "rival".
        guards: Keyed `<guard>.challenger` and `<guard>.rival`.
        allowances: For each regression evaluation, the share by which it may fall.
        rolled_back: Whether the challenger was the champion before and was rolled back.
        champion_known: Whether the current champion could be looked up.
    """
    both, broke = scored({name: read_episodes(context.fetch(evaluations[name])) for name in ("challenger", "rival")})
    ours, theirs = both.values()
    seen = seen_by(context.fetch(challenger), ours) | seen_by(context.fetch(rival), ours)
    unseen = [[record for record in each if same_text(record.question) not in seen] for each in (theirs, ours)]
    asked, new = (len(per_question(records, spec.metric)) for records in (ours, unseen[1]))
    compared = Difference(**compare(unseen[0], unseen[1], spec.metric)) if new else None
    verdict = read_verdict(context.fetch(judged))
    learned_from = node_of(context.run.store, parent(judged), {}).inputs.get("rollouts")
    if learned_from is not None and learned_from.is_of_a_dataset:  # older code took it for a teacher's
        verdict = verdict.model_copy(update={"teacher": None})
    floor = _floor(spec, verdict, ours)
    guarded = _guarded(context, challenger, guards, allowances)
    rules = [
        _clean(verdict.contamination),
        _enough(spec, new, asked),
        *([made_rule(RuleId.FLOOR, floor.holds, floor.found, floor=f"{floor.at_least:.1%}")] if floor.at_least else []),
        *_better(spec, compared, new),
        *(rule for rule, _ in guarded),
    ]
    if rolled_back:
        rules.append(made_rule(RuleId.NOT_ROLLED_BACK, False, "It was the champion once and was rolled back."))
    if not champion_known:
        rules.append(made_rule(RuleId.CHAMPION_KNOWN, False, "The Hub, where it would be, was out of reach."))
    decision = GateDecision(
        rival=rival.stage,
        rival_revision=rival.revision,
        challenger_revision=challenger.revision,
        metric=spec.metric,
        decided_by=decided_by(spec, allowances),
        questions=asked,
        unseen_by_both=new,
        broken=broke,
        comparison=compared,
        floor=floor,
        guards=[row for _, row in guarded],
        rules=rules,
        promoted=all(rule.holds for rule in rules),
    )
    write(context.out, decision)
    announce.markdown("gate", as_markdown(decision), "The gate's verdict")
    delta = compared and compared.delta
    return {"promoted": decision.promoted, "metric": spec.metric, "delta": delta, "reasons": decision.reasons}


def _guarded(
    context: StageContext, challenger: Checkpoint, guards: dict[str, Evaluation], allowances: dict[str, float]
) -> list[tuple[Rule, RegressionEvaluation]]:
    return [
        _guard(
            guard,
            allowed,
            context.fetch(challenger),
            *(read_episodes(context.fetch(guards[f"{guard}.{who}"])) for who in ("rival", "challenger")),
        )
        for guard, allowed in allowances.items()
    ]


def _clean(shared: Contamination) -> Rule:
    found = f"{shared.shared_with_training} of {shared.questions} questions were seen in training."
    return made_rule(RuleId.NO_CONTAMINATION, shared.clean, found if shared.clean else unclean(shared))


def _enough(spec: GateSpec, unseen: int, questions: int) -> Rule:
    found = f"{unseen} of {questions} questions are new to both models; {spec.least_unseen:.0%} must be."
    return made_rule(RuleId.UNSEEN, unseen >= spec.least_unseen * questions, found)


def _floor(spec: GateSpec, verdict: Judgement, ours: list[EvaluatedEpisode]) -> Floor:
    """The bar that does not depend on a baseline: better than nothing is not yet good."""
    at_least, why = floor_of(spec, verdict)
    reached, metric = fmean(per_question(ours, spec.metric)), spec.metric.replace("_", " ")
    found = f"{metric} {reached:.1%}; the floor is {at_least:.1%} ({why})."
    return Floor(at_least=at_least, why=why, holds=reached >= at_least - ROUNDING, found=found)


def _better(spec: GateSpec, compared: Difference | None, questions: int = 0) -> list[Rule]:
    metric = spec.metric.replace("_", " ")
    margin = {"margin": _points(spec.margin)} if spec.margin else {}
    rules: dict[RuleId, dict[str, str]] = {
        RuleId.MARGIN: {"metric": metric, **margin},
        RuleId.INTERVAL: {},
        RuleId.EXACT_TEST: {"level": f"{spec.level:.2g}"},
    }
    if compared is None:
        none = "There was no question to compare them on."
        return [made_rule(rule, False, none, **stated) for rule, stated in rules.items()]
    low, high = compared.ci
    found = f"{_points(compared.delta)} ({_points(low)} to {_points(high)}), p = {compared.p_value:.2g}"
    if questions and (few := cannot_pass(questions, spec.level)):
        found += f"; {few}"
    margin_met = compared.delta >= spec.margin - ROUNDING and compared.delta > 0
    # with few changes the bootstrap is overconfident
    agrees = compared.delta > 0 and compared.p_value < spec.level
    held = (margin_met, low > 0, agrees)
    return [
        made_rule(rule, holds, f"{metric}: {found}", **stated)
        for (rule, stated), holds in zip(rules.items(), held, strict=True)
    ]


def _guard(
    guard: str, allowed: float, challenger: Path, before: list[EvaluatedEpisode], after: list[EvaluatedEpisode]
) -> tuple[Rule, RegressionEvaluation]:
    pair, _ = scored({"before": before, "after": after})
    before, after = pair.values()
    seen = len(seen_by(challenger, after))
    both = {"before": rate(before), "after": rate(after), "seen_in_training": seen}
    row = RegressionEvaluation(guard=guard, **both, **compare(before, after))
    low, high = row.ci
    found = f"{guard}: {_points(row.delta)} ({_points(low)} to {_points(high)}); {_points(-allowed)} is allowed."
    found += f" {seen} of its questions were trained on." if seen else ""
    return made_rule(RuleId.REGRESSION, row.delta >= -allowed - ROUNDING, found, evaluation=guard), row


def _points(share: float) -> str:
    return f"{100 * share:+.1f} points"


@stage(produces=Release, version=1, title="Release", drawn=Drawn("Release"))
def release(context: StageContext, trained: Checkpoint, judged: Verdict, decision: Decision) -> dict[str, Any]:
    """Links the checkpoint's files and the gate's decision; the card has the results."""
    source = context.fetch(trained)
    for file in source.iterdir():
        if file.name not in (CARD, RECORD):
            _link(file, context.out / file.name)
    shutil.copyfile(context.fetch(decision) / "decision.json", context.out / "decision.json")
    return {
        "parameters": trained.parameters,
        "stage": ModelName.CHAMPION,
        "weights": weights_of(source),
        "promoted": decision.promoted,
    }


def weights_of(checkpoint: Path) -> str:
    """Digest of a checkpoint's weights alone: a model that is trained again to the same weights has the same one."""
    return digest(checkpoint, "*.safetensors")


def _link(file: Path, to: Path) -> None:
    try:
        os.link(file, to)
    except OSError:
        shutil.copyfile(file, to)
