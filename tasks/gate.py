"""The gate: decides whether a trained model replaces the champion.

In: the challenger and its baseline, evaluated on the same questions and in the same regression evaluations. The
baseline is the champion, or the untrained student if there is no champion. Out: `Decision`: decision.json, with every
rule, its finding, and whether it holds.
The recipe fixes the rules before training: at least the floor; better on one metric by a margin, with the interval
above zero, on questions that neither model has seen; no regression evaluation falls by more than its allowance; no
contamination.
"""

from pathlib import Path
from statistics import fmean
from typing import Any

from apprentice.envs.reward import ROUNDING
from apprentice.tasks.advice.ending import as_markdown, decided_by, floor_of, read_verdict, tries_of, unclean
from apprentice.tasks.analysis.broken_episodes import scored
from apprentice.tasks.analysis.comparison import compare, in_both
from apprentice.tasks.artifacts.provenance import parent
from apprentice.tasks.artifacts.types import Checkpoint, Decision, Evaluation, Verdict
from apprentice.tasks.engine.stage import Drawn, StageContext, stage
from apprentice.tasks.episodes.record import EvaluatedEpisode, read_episodes
from apprentice.tasks.episodes.texts import same_text
from apprentice.tasks.judgement.contamination import seen_by
from apprentice.tasks.judgement.contents import (
    Contamination,
    Difference,
    Floor,
    GateDecision,
    RegressionEvaluation,
    Rule,
    VerdictContents,
    made_rule,
    write,
)
from apprentice.tasks.judgement.rules import GateSpec, RuleId
from apprentice.tasks.lineage.node import node_of
from apprentice.tasks.reporting import announce
from apprentice.tasks.statistics.exact_tests import cannot_pass
from apprentice.tasks.statistics.rates import per_question, rate


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
    challenger_records, rival_records = both.values()
    verdict = read_verdict(context.fetch(judged))
    repeated = verdict.contamination.repeated
    checkpoints = [] if repeated else [challenger, rival]
    seen = {text for each in checkpoints for text in seen_by(context.fetch(each), challenger_records)}
    common = in_both(rival_records, challenger_records)
    unseen = [[record for record in each if same_text(record.question) not in seen] for each in common]
    question_count, new = (len(per_question(records, spec.metric)) for records in (common[1], unseen[1]))
    compared = Difference(**compare(unseen[0], unseen[1], spec.metric)) if new else None
    learned_from = node_of(context.run.store, parent(judged), {}).inputs.get("rollouts")
    if learned_from is not None and learned_from.is_of_a_dataset:  # older code took it for a teacher's
        verdict = verdict.model_copy(update={"teacher": None})
    floor = _floor(spec, verdict, challenger_records)
    played = {name: context.fetch(evaluation) for name, evaluation in guards.items()}
    regressions = [
        _regression(name, allowed, context.fetch(challenger), played[f"{name}.rival"], played[f"{name}.challenger"])
        for name, allowed in allowances.items()
    ]
    rules = [
        _clean(verdict.contamination),
        *([] if repeated else [_enough(spec, new, question_count)]),
        *([made_rule(RuleId.FLOOR, floor.holds, floor.found, floor=f"{floor.at_least:.1%}")] if floor.at_least else []),
        *_better(spec, compared, new),
        *(rule for rule, _ in regressions),
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
        questions=question_count,
        unseen_by_both=new,
        broken=broke,
        comparison=compared,
        floor=floor,
        guards=[row for _, row in regressions],
        rules=rules,
        promoted=all(rule.holds for rule in rules),
    )
    write(context.out, decision)
    announce.markdown("gate", as_markdown(decision), "The gate's decision")
    delta = compared and compared.delta
    return {"promoted": decision.promoted, "metric": spec.metric, "delta": delta, "reasons": decision.reasons}


def _clean(shared: Contamination) -> Rule:
    found = f"{shared.shared_with_training} of {shared.questions} questions were seen in training."
    if shared.repeated:
        found = f"{tries_of(shared)}: nothing is claimed of other questions."
    return made_rule(RuleId.NO_CONTAMINATION, shared.clean, found if shared.clean else unclean(shared))


def _enough(spec: GateSpec, unseen: int, questions: int) -> Rule:
    found = f"{unseen} of {questions} questions are new to both models; {spec.least_unseen:.0%} must be."
    return made_rule(RuleId.UNSEEN, unseen >= spec.least_unseen * questions, found)


def _floor(spec: GateSpec, verdict: VerdictContents, ours: list[EvaluatedEpisode]) -> Floor:
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


def _regression(
    regression: str, allowed: float, challenger: Path, rival_played: Path, challenger_played: Path
) -> tuple[Rule, RegressionEvaluation]:
    pair, _ = scored({"before": read_episodes(rival_played), "after": read_episodes(challenger_played)})
    before, after = pair.values()
    seen = len(seen_by(challenger, after))
    both = {"before": rate(before), "after": rate(after), "seen_in_training": seen}
    row = RegressionEvaluation(guard=regression, **both, **compare(before, after))
    low, high = row.ci
    found = f"{regression}: {_points(row.delta)} ({_points(low)} to {_points(high)}); {_points(-allowed)} is allowed."
    found += f" {seen} of its questions were trained on." if seen else ""
    return made_rule(RuleId.REGRESSION, row.delta >= -allowed - ROUNDING, found, evaluation=regression), row


def _points(share: float) -> str:
    return f"{100 * share:+.1f} points"
