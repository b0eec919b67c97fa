"""Says how a run ended, and what to change first: the one place that words it for terminal, page, card and Prefect.

In: a verdict, the gate's decision, the recipe as a run records it. Out: `Ending`. Every sentence is a reading of
figures that the verdict and the decision hold; the held-out questions decide, the curves of the training only explain.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from apprentice.tasks.advice.behaviour import Behaviour
from apprentice.tasks.advice.causes import Finding, causes
from apprentice.tasks.advice.course import Evidence
from apprentice.tasks.advice.remedies import Remedy, gentler
from apprentice.tasks.artifacts.types import ModelName
from apprentice.tasks.judgement.contents import (
    Comparison,
    Contamination,
    GateDecision,
    Rates,
    RulesOfGate,
    VerdictContents,
)
from apprentice.tasks.judgement.contents import read_decision as read_decision  # part of this module's interface
from apprentice.tasks.judgement.contents import read_verdict as read_verdict
from apprentice.tasks.judgement.model_names import NAMES, named
from apprentice.tasks.judgement.rules import GateSpec, RuleId
from apprentice.tasks.judgement.run_models import Models, must_pay
from apprentice.tasks.reporting.safe_text import code, markdown_table, points

WITHOUT_TEACHER = 0.2
"""The floor where no teacher's rate is known."""


def unclean(shared: Contamination) -> str:
    """The reason why nothing is compared, with advice."""
    return (
        f"Nothing was compared: training has seen {shared.shared_with_training} of the {shared.questions} "
        f"questions by text ({shared.share:.1%}; gate.max_overlap allows {shared.limit:.1%}) and "
        f"{shared.shared_seeds} by seed. Move windows.evaluate or widen the task (environment.settings)."
    )


def decided_by(spec: GateSpec, allowances: dict[str, float]) -> RulesOfGate:
    """The rules as a decision records them."""
    return RulesOfGate(gate=spec.in_key(), guards=allowances, has_floor=True)


def floor_of(spec: GateSpec, verdict: VerdictContents) -> tuple[float, str]:
    """What the gate's metric must reach at least, and where that number comes from."""
    if spec.at_least is not None:
        return spec.at_least, "gate.at_least"
    if verdict.teacher is None:
        return WITHOUT_TEACHER, "gate.at_least, by default"
    return verdict.teacher.accuracy / 2, f"half of the teacher's {verdict.teacher.accuracy:.1%}"


def baseline_of(decision: GateDecision) -> str:
    """The model that the challenger was compared with."""
    return NAMES.get(decision.rival, "the model that it began from")


def as_markdown(decision: GateDecision) -> str:
    """The decision as Markdown: promoted or not, and every rule with its finding."""
    allowed = decision.decided_by.guards
    idle = {
        each.guard: f" It was at {each.before.accuracy:.1%}: it could not fall by more."
        for each in decision.guards
        if each.before.accuracy <= allowed.get(each.guard, 0.0)
    }
    rows = [
        {
            "rule": rule.wording,
            "holds": "yes" if rule.holds else "**no**",
            "found": rule.found + idle.get(rule.stated.get("evaluation", ""), ""),
        }
        for rule in decision.rules
    ]
    outcome = "Promoted" if decision.promoted else "Not promoted"
    champion = "" if decision.rival == ModelName.CHAMPION else "; there was no champion"
    return f"**{outcome}**, compared with {baseline_of(decision)}{champion}.\n\n{markdown_table(rows)}"


State = Literal["promoted", "not promoted", "stopped early"]
NEARLY_ALL = 0.95
"""The accuracy from which on a promoted model leaves a training little to gain, so that nothing has to be changed."""
SHOWN = 4
"""Settings that a comparison of runs names; its table has them all."""
ENOUGH = 0.05
"""The difference that an evaluation is expected to show, see `questions_for_5_points`."""


class Advice(NamedTuple):
    """What to change first: one field of the recipe."""

    field: str
    value: str
    """The value to try, with the present one; empty where only a person can choose it."""
    why: str
    cause: str = ""
    """The cause in the table of causes; empty for a rule of the gate."""
    costs: str = ""
    changes: dict[str, Any] = {}  # noqa: RUF012  # never changed
    """The recipe's fields with their new values; empty where only a person can choose."""

    def sentence(self) -> str:
        costs = f" It costs {self.costs}." if self.costs else ""
        return f"Change first: {code(self.field + (f': {self.value}' if self.value else ''))}. {self.why}{costs}"


NOTHING_LEFT = "Nothing is left to try: each remedy for what this run shows was followed, and did not help."


class Ending(NamedTuple):
    """How a run ended, in sentences; those that do not apply are empty."""

    state: State
    reached: str
    """What the last model does, its interval, and whether that is above the floor."""
    better: str
    """Whether it is better than its baseline, by how much, and whether that is more than noise."""
    paid: str
    """Whether the last training paid, over the best SFT where that was measured."""
    unmet: str
    """The first rule of the gate that does not hold, where neither floor nor comparison says it."""
    signs: str
    """Signs that the training learned the reward's weakness instead of the task."""
    advised: list[Advice]
    """What to change, the main cause first."""
    exhausted: bool = False
    """Whether every remedy was tried in vain."""

    @property
    def change(self) -> Advice | None:
        """What to change first; None where nothing has to be."""
        return self.advised[0] if self.advised else None

    @property
    def headline(self) -> str:
        return f"{self.state.capitalize()}: {self.reached}"

    @property
    def reasons(self) -> str:
        return " ".join(filter(None, (self.better, self.paid, self.unmet, self.signs)))

    @property
    def next(self) -> str:
        nothing = NOTHING_LEFT if self.exhausted else "Nothing needs to be changed."
        return self.change.sentence() if self.change else nothing

    def sentence(self) -> str:
        return " ".join(filter(None, (self.headline, self.reasons, self.next)))

    def as_json(self) -> dict[str, Any]:
        """What report.json keeps of it."""
        words = {"headline": self.headline, "reasons": self.reasons, "next": self.next}
        advised = [each._asdict() for each in self.advised]
        return {"state": self.state, **words, "change": advised[0] if advised else None, "advised": advised}


def ending(
    verdict: VerdictContents,
    decision: GateDecision,
    recipe: Mapping[str, Any],
    evidence: Evidence | None = None,
    in_vain: Collection[str] = (),
) -> Ending:
    """Read the figures of a run that is over.

    Args:
        recipe: As a run records it; {} where it is not known. Only the values to try are taken from it.
        evidence: What the run knows of its causes; by default what its verdict says.
        in_vain: Fields whose change did not help in an earlier run of the recipe. No cause names them again.
    """
    advised, exhausted = _advised(verdict, decision, evidence or evidence_in(verdict, decision, recipe), in_vain)
    return Ending(
        state_of(verdict, decision),
        _reached(verdict, decision),
        _better(decision),
        verdict.stopped or _paid(verdict),
        _unmet(decision),
        " ".join(["Look at its episodes.", *(sign.said for sign in verdict.signs)]) if verdict.signs else "",
        advised,
        exhausted,
    )


def evidence_in(verdict: VerdictContents, decision: GateDecision, recipe: Mapping[str, Any]) -> Evidence:
    """What a verdict says of the causes: rates, the curves' reading, the gain of the last training by reward."""
    models, gain = verdict.models, paid(verdict.comparisons)
    found, needed = decision.comparison, decision.comparison and decision.comparison.questions_for_5_points
    is_small = found is not None and found.ci[0] <= 0 <= found.ci[1] and 0 < found.delta < ENOUGH
    asks_more = is_small and not decision.is_below_the_floor and not decision.promoted
    return Evidence(
        recipe=recipe,
        training=models.last_name,
        start=_rates_alone(models.supervised) if gain and models.supervised else None,
        end=_rates_alone(models.last),
        habits=None,
        learning=None,
        teacher=verdict.teacher.accuracy if verdict.teacher else None,
        floor=decision.floor.at_least if decision.floor else None,
        gain=gain.ci if gain else None,
        diagnosis=verdict.curves.diagnosis if verdict.curves else "",
        equal_groups=verdict.curves.dead_groups if verdict.curves else None,
        did_not_start=bool(verdict.stopped),
        questions=needed if asks_more and needed and needed > decision.unseen_by_both else None,
    )


def _rates_alone(model: Rates) -> Behaviour:
    """What a model's rates say of its behaviour: its accuracy, and how many of its episodes have a fault."""
    return Behaviour(model.n, right=model.accuracy, no_first_call=1.0 - model.format_compliance)


def state_of(verdict: VerdictContents, decision: GateDecision) -> State:
    """How the run ended; a run that stopped early and was promoted all the same is called promoted."""
    return "promoted" if decision.promoted else "stopped early" if verdict.stopped else "not promoted"


def paid(comparisons: Iterable[Comparison]) -> Comparison | None:
    """The comparison that decides whether the last training paid: with its control, or with its start.

    None where no training had to pay: SFT alone teaches the form."""
    found = [each for each in comparisons if must_pay(each.to)]
    last = Models({each.to: each for each in found}).last_name if found else None
    return next((each for each in found if each.to == last), None)


def compared(ends: Iterable[Comparison], settings: list[dict[str, str]]) -> str:
    """Which of several runs ended better, by how much, whether that is more than noise, and which settings differ.

    Args:
        ends: For each further run, its last model compared with the first run's. None if they are the same model.
        settings: The settings that differ: `setting`, and for each run its value.
    """
    said = [_better_of(each) for each in ends] or ["The runs ended with the same model."]
    differ = [
        f"{code(row['setting'])} ({', '.join(list(row.values())[1:])})"
        for row in settings
        if row["setting"] != "environment.code"
    ]
    more = f" and {len(differ) - SHOWN} more" if len(differ) > SHOWN else ""
    what = f"Their recipes differ in {', '.join(differ[:SHOWN])}{more}." if differ else "Their recipes are the same."
    return " ".join([*said, what])


def tries_of(shared: Contamination) -> str:
    """What an evaluation asked where there are so few questions that training asked the same ones."""
    few = "the one task" if shared.repeated == 1 else f"the {shared.repeated:,} tasks"
    return f"tries of {few} that it was trained on"


def _better_of(each: Comparison) -> str:
    low, high = each.ci
    by = f"{points(abs(each.delta))} ({points(low)} to {points(high)} for {each.to})"
    if low <= 0 <= high:
        return f"{each.from_} and {each.to} cannot be told apart: {points(each.delta)} is within the noise."
    better, worse = (each.to, each.from_) if low > 0 else (each.from_, each.to)
    return f"{better} is better than {worse} by {by}, more than noise."


def _reached(verdict: VerdictContents, decision: GateDecision) -> str:
    model, floor = verdict.models.last, decision.floor
    low, high = model.ci["accuracy"]
    unseen = "unseen questions" if verdict.contamination.clean else "questions that training has partly seen"
    unseen = tries_of(verdict.contamination) if verdict.contamination.repeated else unseen
    reached = f"{model.accuracy:.1%} of {model.n:,} {unseen} ({low:.1%} to {high:.1%})"
    said = f"{named(verdict.models.last_name)} answers {reached}"
    if floor is None:
        return f"{said}."
    if not floor.at_least:
        return f"{said}; no floor is set (gate.at_least)."
    metric = "" if decision.metric == "accuracy" else f" {decision.metric.replace('_', ' ')}"
    where = "above" if floor.holds else "below"
    return f"{said}, {where} the floor of {floor.at_least:.1%}{metric} ({floor.why})."


def _better(decision: GateDecision) -> str:
    found, metric = decision.comparison, decision.metric.replace("_", " ")
    if found is None:
        return "It could not be compared: no question was new to both models."
    low, high = found.ci
    by = f"{points(found.delta)} {metric} ({points(low)} to {points(high)})"
    how = "better" if low > 0 else "worse" if high < 0 else "not shown to be better"
    return f"It is {how} than {baseline_of(decision)}: {by}."


def _paid(verdict: VerdictContents) -> str:
    found = paid(verdict.comparisons)
    if found is None:
        return ""
    low, high = found.ci
    by = f"{points(found.delta)} over {named(found.from_)} ({points(low)} to {points(high)})"
    how = "paid" if low > 0 else "made it worse" if high < 0 else "did not pay"
    return f"{named(found.to)} {how}: {by}."


SAID = (RuleId.FLOOR, RuleId.MARGIN, RuleId.INTERVAL, RuleId.EXACT_TEST)
"""Rules whose figures stand in the sentences on the floor and on the baseline."""


def _unmet(decision: GateDecision) -> str:
    """The first rule that does not hold, where the other sentences do not say so."""
    others = [rule for rule in decision.unmet if rule.id not in SAID]
    if others:
        return others[0].found
    margins = (rule.stated.get("margin") for rule in decision.unmet if rule.id == RuleId.MARGIN)
    margin, found = next(margins, None), decision.comparison
    return f"The gate asks for {margin}." if margin and found and found.ci[0] > 0 else ""


def _advised(
    verdict: VerdictContents, decision: GateDecision, evidence: Evidence, in_vain: Collection[str]
) -> tuple[list[Advice], bool]:
    """What to change, the first thing first, and whether all that could be was changed in vain."""
    if not verdict.contamination.clean:
        return [Advice("windows.evaluate.start", "", "The questions must be ones that training has not seen.")], False
    unmet = {rule.id for rule in decision.unmet}
    if RuleId.UNSEEN in unmet:
        return [
            Advice("windows.evaluate.start", "", "The champion has been trained on most of these questions.")
        ], False
    below = decision.is_below_the_floor or bool(verdict.stopped)
    if RuleId.REGRESSION in unmet and not below:
        lower = gentler(evidence.recipe, f"{evidence.training}.learning_rate")
        return [_advice(lower, "Another skill fell by more than it may.")], False
    found, gain = decision.comparison, paid(verdict.comparisons)
    unclear = not decision.promoted and found is not None and found.ci[0] <= 0 <= found.ci[1]
    lost = gain is not None and gain.ci[1] < 0
    nearly_all = decision.promoted and not (verdict.stopped or lost) and verdict.models.last.accuracy >= NEARLY_ALL
    if nearly_all or not (below or unclear or (gain and gain.ci[0] <= 0)):
        return [], False
    left: dict[str, Finding] = {}
    for each in causes(evidence):
        if each.remedy.name not in in_vain:
            left.setdefault(each.remedy.name, each)
    return [_advice(each.remedy, each.evidence, each.cause) for each in left.values()], not left


def _advice(remedy: Remedy, why: str, cause: str = "") -> Advice:
    return Advice(remedy.name, remedy.value, why, str(cause), remedy.costs, remedy.changes)
