"""What a challenger needs to take the champion's place; every rule can refuse it."""

import json
from typing import Any

import pytest

from apprentice.tasks.advice.ending import as_markdown, read_decision
from apprentice.tasks.artifacts.types import BaseStudent, Decision, GrpoCheckpoint, Release, Verdict
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.gate import _better, gate
from apprentice.tasks.judgement.contents import Difference, GateDecision
from apprentice.tasks.judgement.rules import GateSpec
from apprentice.tasks.statistics.differences import level_of
from tests.tasks.evaluations import episode, episodes, evaluation, learned, published

CLEAN = {
    "clean": True,
    "questions": 100,
    "shared_with_training": 0,
    "shared_seeds": 0,
    "share": 0.0,
    "limit": 0.0,
}
BETTER = [1.0] * 70 + [0.0] * 30
WORSE = [1.0] * 50 + [0.0] * 50
AGREES = "exact test agrees (p below 0.05)"
EVERY_WAY = ["accuracy better", "interval above zero", AGREES]


class Case:
    """A challenger and a champion in a real store; a test says what each got right."""

    def __init__(self, context: StageContext):
        self.context = context
        self.store = context.run.store

    def decide(
        self,
        challenger: list[EvaluatedEpisode],
        champion: list[EvaluatedEpisode],
        spec: GateSpec | None = None,
        regressions: dict[str, tuple[list[EvaluatedEpisode], list[EvaluatedEpisode]]] | None = None,
        allowed: float = 0.05,
        learned_by: dict[str, str] | None = None,
        shared: dict[str, Any] = CLEAN,
        rolled_back: bool = False,
        rival: Release | BaseStudent | None = None,
        teacher: dict[str, Any] | None = None,
        **given: Any,
    ) -> dict[str, Any]:
        """The decision; `regressions`: by name, the champion's episodes and the challenger's."""
        seen = {"challenger": "", "champion": ""} | (learned_by or {})
        trained = self.checkpoint(GrpoCheckpoint, "grpo", seen["challenger"])
        counts = {"weights": "-", "promoted": True, "parameters": 1, "stage": "champion"}
        rival = rival or published(self.store, Release, "r" * 20, {"learned.jsonl": seen["champion"]}, counts)
        text = json.dumps({"contamination": shared, "teacher": teacher})
        judged = published(
            self.store, Verdict, "v" * 20, {"verdict.json": text}, {"diagnosis": "", "contaminated": False}
        )
        both = {
            "challenger": evaluation(self.store, "ec" * 10, challenger),
            "rival": evaluation(self.store, "er" * 10, champion),
        }
        played = {}
        for name, (rival_records, challenger_records) in (regressions or {}).items():
            played[f"{name}.rival"] = evaluation(self.store, f"{name}r".ljust(20, "0"), rival_records)
            played[f"{name}.challenger"] = evaluation(self.store, f"{name}c".ljust(20, "0"), challenger_records)
        allowances = dict.fromkeys(regressions or {}, allowed)
        self.counts = gate.body(
            self.context, spec or GateSpec(), trained, rival, both, played, allowances, judged, rolled_back, **given
        )
        Decision(repository="a/b", revision="c", key="d", **self.counts)
        return read_decision(self.context.out).as_json()

    def checkpoint(self, kind: Any, stage: str, rows: str) -> Any:
        counts = {"parameters": 1, "stage": stage}
        return published(self.store, kind, stage.ljust(20, "0"), {"learned.jsonl": rows}, counts)


@pytest.fixture
def case(context: StageContext) -> Case:
    return Case(context)


def shown(decision: dict[str, Any]) -> str:
    return as_markdown(GateDecision.model_validate(decision))


def refused(decision: dict[str, Any]) -> list[str]:
    return [rule["rule"] for rule in decision["rules"] if not rule["holds"]]


def test_a_better_model_is_promoted(case: Case):
    decision = case.decide(episodes(BETTER), episodes(WORSE))
    assert decision["promoted"]
    assert decision["comparison"]["delta"] == pytest.approx(0.2)
    assert case.counts["reasons"] == []
    assert "**Promoted**" in shown(decision)


def test_an_equal_model_is_not_and_neither_is_a_worse_one(case: Case):
    assert refused(case.decide(episodes(WORSE), episodes(WORSE))) == EVERY_WAY
    assert refused(case.decide(episodes(WORSE), episodes(BETTER))) == EVERY_WAY


def test_better_by_chance_is_not_better(case: Case):
    """Three questions of a hundred more, one of them lost: the interval reaches below zero."""
    before = [1.0] * 50 + [0.0] * 50
    after = [0.0] + [1.0] * 52 + [0.0] * 47
    decision = case.decide(episodes(after), episodes(before))
    assert refused(decision) == ["interval above zero", AGREES]
    assert "+2.0 points" in case.counts["reasons"][0]


def test_a_handful_of_changes_is_not_enough_however_sure_the_bootstrap_is(case: Case):
    """Four won and none lost: no resample is below zero, and chance does it once in eight times."""
    before, after = [1.0] * 400 + [0.0] * 600, [1.0] * 404 + [0.0] * 596
    decision = case.decide(episodes(after), episodes(before))
    assert decision["comparison"]["ci"][0] > 0
    assert refused(decision) == [AGREES]
    assert refused(case.decide(episodes([1.0]), episodes([0.0]))) == [AGREES]


@pytest.mark.parametrize(
    ("questions", "level", "said"),
    [
        (5, 0.05, "with 5 questions p is at least 0.062, and only 6 or more can reach it"),
        (13, level_of(20), "only 14 or more can reach it"),
        (17, level_of(100), "only 18 or more can reach it"),
        (6, 0.05, ""),
        (18, level_of(100), ""),
    ],
)
def test_a_gate_that_so_few_questions_cannot_open_says_how_many_can(
    case: Case, questions: int, level: float, said: str
):
    decision = case.decide(episodes([1.0] * questions), episodes([0.0] * questions), GateSpec(level=level))
    assert decision["promoted"] is not bool(said)
    assert said in " ".join(case.counts["reasons"])


@pytest.mark.parametrize("number", [1, 19, 20, 100])
@pytest.mark.parametrize("metric", ["accuracy", "mean_score"])
def test_the_gate_of_a_late_round_opens_with_samples_and_with_scores(case: Case, number: int, metric: Any):
    rewards = [0.9 if metric == "mean_score" else float(n % 4 > 0) for n in range(400)]
    ours = [episode(n, reward, sample=n % 4, question=f"Q {n // 4}?") for n, reward in enumerate(rewards)]
    rival_records = [record.model_copy(update={"reward": 0.0}) for record in ours]
    assert case.decide(ours, rival_records, GateSpec(level=level_of(number), metric=metric))["promoted"]


@pytest.mark.parametrize(("after", "allowed"), [(75, 0.05), (77, 0.03), (70, 0.1)])
def test_a_fall_by_just_what_is_allowed_is_allowed(case: Case, after: int, allowed: float):
    """0.75 - 0.8 is -0.050000000000000044."""
    before, now = (episodes([1.0] * right + [0.0] * (100 - right)) for right in (80, after))
    decision = case.decide(episodes(BETTER), episodes(WORSE), regressions={"sums": (before, now)}, allowed=allowed)
    assert decision["promoted"], case.counts["reasons"]


@pytest.mark.parametrize("margin", [0.07, 0.29, 0.57])
def test_a_gain_of_just_the_margin_is_enough(case: Case, margin: float):
    better, worse = ([1.0] * right + [0.0] * (100 - right) for right in (30 + round(100 * margin), 30))
    assert case.decide(episodes(better), episodes(worse), GateSpec(margin=margin))["promoted"]


def test_samples_of_one_question_are_one_question(case: Case):
    def sampled(rewards: list[float]) -> list[EvaluatedEpisode]:
        return [episode(n, reward, sample=n % 4, question=f"Q {n // 4}?") for n, reward in enumerate(rewards)]

    decision = case.decide(sampled([1.0] * 80), sampled([0.0] * 80))
    assert (decision["questions"], decision["unseen_by_both"]) == (20, 20)


@pytest.mark.parametrize(
    ("given", "teacher", "floor", "why"),
    [
        (None, 0.9, 0.45, "half of the teacher's 90.0%"),
        (None, None, 0.2, "gate.at_least, by default"),
        (0.3, 0.9, 0.3, "gate.at_least"),
        (0.1, 0.9, 0.1, "gate.at_least"),
        (0.0, 0.9, 0.0, "gate.at_least"),
    ],
)
def test_whoever_is_below_the_floor_is_refused_however_much_better_than_nothing(
    case: Case, given: float | None, teacher: float | None, floor: float, why: str
):
    """Fifteen of a hundred are right, and none were before."""
    weak = [1.0] * 15 + [0.0] * 85
    rates = None if teacher is None else {"accuracy": teacher}
    decision = case.decide(episodes(weak), episodes([0.0] * 100), GateSpec(at_least=given), teacher=rates)
    assert decision["floor"] | {"found": ""} == {"at_least": floor, "why": why, "holds": floor <= 0.15, "found": ""}
    assert refused(decision) == ([] if floor <= 0.15 else [f"at least {floor:.1%}"])
    assert (f"accuracy 15.0%; the floor is {floor:.1%}" in " ".join(case.counts["reasons"])) is (floor > 0.15)


def test_the_floor_is_one_for_the_deciding_metric(case: Case):
    half = episodes([0.5] * 100)
    assert case.decide(half, episodes([0.1] * 100), GateSpec(metric="mean_score", at_least=0.5))["promoted"]
    assert refused(case.decide(half, episodes([0.1] * 100), GateSpec(metric="mean_score", at_least=0.51))) == [
        "at least 51.0%"
    ]


def test_better_by_less_than_the_margin_is_not_enough(case: Case):
    decision = case.decide(episodes(BETTER), episodes(WORSE), GateSpec(margin=0.25))
    assert refused(decision) == ["accuracy better by +25.0 points"]


def test_only_the_metric_that_was_written_down_before_counts(case: Case):
    scores = [0.9] * 100
    assert not case.decide(episodes(scores), episodes([0.1] * 100))["promoted"]
    assert case.decide(episodes(scores), episodes([0.1] * 100), GateSpec(metric="mean_score"))["promoted"]


def test_a_regression_evaluation_that_falls_by_more_than_its_allowance_refuses_a_better_model(case: Case):
    fell = {"sums": (episodes([1.0] * 60 + [0.0] * 40), episodes([1.0] * 53 + [0.0] * 47))}
    decision = case.decide(episodes(BETTER), episodes(WORSE), regressions=fell, allowed=0.05)
    assert refused(decision) == ["guard rail sums"]
    assert "sums: -7.0 points" in case.counts["reasons"][0]
    assert case.decide(episodes(BETTER), episodes(WORSE), regressions=fell, allowed=0.08)["promoted"]


def test_questions_that_either_model_has_seen_do_not_decide(case: Case):
    """The challenger is better only on what it has seen; on the rest the champion is."""
    champion = [0.0] * 40 + [1.0] * 60
    challenger = [1.0] * 40 + [0.0] * 30 + [1.0] * 30
    seen = learned(*(("grpo", place, f"QUESTION {place}?") for place in range(40)))
    decision = case.decide(episodes(challenger), episodes(champion), learned_by={"challenger": seen})
    assert decision["unseen_by_both"] == 60
    assert decision["comparison"]["delta"] == pytest.approx(-0.5)
    assert not decision["promoted"]


def test_too_few_questions_that_neither_has_seen_decide_nothing(case: Case):
    seen = learned(*(("sft", place, f"Question {place}?") for place in range(51)))
    decision = case.decide(episodes(BETTER), episodes(WORSE), learned_by={"champion": seen})
    assert "enough questions that neither has seen" in refused(decision)
    everything = learned(*(("sft", place, f"Question {place}?") for place in range(100)))
    decision = case.decide(episodes(BETTER), episodes(WORSE), learned_by={"champion": everything})
    assert decision["comparison"] is None
    assert case.counts["delta"] is None


def test_contamination_refuses_a_better_model(case: Case):
    unclean = CLEAN | {"clean": False, "shared_with_training": 3, "share": 0.03}
    decision = case.decide(episodes(BETTER), episodes(WORSE), shared=unclean)
    assert refused(decision) == ["no contamination"]
    assert "seen 3 of the 100 questions" in case.counts["reasons"][0]


def test_tries_of_the_same_few_tasks_are_compared_and_claim_nothing_of_others(case: Case):
    repeated = CLEAN | {"shared_with_training": 3, "repeated": 3}
    everything = learned(*(("grpo", place, f"question {place}?") for place in range(100)))
    decision = case.decide(episodes(BETTER), episodes(WORSE), shared=repeated, learned_by={"champion": everything})
    assert refused(decision) == []
    assert "unseen questions" not in json.dumps(decision)
    assert "tries of the 3 tasks that it was trained on: nothing is claimed of other questions." in shown(decision)


def test_a_champion_that_was_rolled_back_is_not_promoted_again_by_itself(case: Case):
    assert refused(case.decide(episodes(BETTER), episodes(WORSE), rolled_back=True)) == ["not rolled back"]


def test_nobody_is_promoted_while_the_champion_is_unknown(case: Case):
    decision = case.decide(episodes(BETTER), episodes(WORSE), champion_known=False)
    assert refused(decision) == ["the champion is known"]
    assert not decision["promoted"]
    assert not case.counts["promoted"]


def test_without_a_champion_the_untrained_student_is_the_rival(case: Case):
    base = case.checkpoint(BaseStudent, "base", "")
    decision = case.decide(episodes(BETTER), episodes(WORSE), rival=base)
    assert decision["promoted"]
    assert (decision["rival"], decision["rival_revision"]) == ("base", base.revision)
    assert "the untrained student; there was no champion" in shown(decision)


def test_a_rival_that_was_asked_fewer_questions_is_compared_on_these(case: Case):
    base = case.checkpoint(BaseStudent, "base", "")
    decision = case.decide(episodes([1.0] * 20 + [0.0] * 80), episodes([0.0] * 30), rival=base)
    assert (decision["questions"], decision["unseen_by_both"]) == (30, 30)
    assert decision["comparison"]["delta"] == pytest.approx(2 / 3)


def test_a_regression_evaluation_that_could_not_fall_is_said_to_be_one(case: Case):
    never = episodes([0.0] * 60)
    decision = case.decide(episodes(BETTER), episodes(WORSE), regressions={"sums": (never, never)}, allowed=0.05)
    assert decision["promoted"]
    assert "It was at 0.0%: it could not fall by more." in shown(decision)
    once = episodes([1.0] * 60)
    held = case.decide(episodes(BETTER), episodes(WORSE), regressions={"sums": (once, once)}, allowed=0.05)
    assert "could not fall" not in shown(held)


def test_a_gate_of_many_rounds_is_stricter_than_a_single_one(case: Case):
    better = [1.0] * 58 + [0.0] * 42  # eight questions more: p = 0.008
    assert case.decide(episodes(better), episodes(WORSE))["promoted"]
    decision = case.decide(episodes(better), episodes(WORSE), spec=GateSpec(level=0.0024))
    assert refused(decision) == ["exact test agrees (p below 0.0024)"]


@pytest.mark.parametrize(
    ("delta", "low", "p_value", "held"),
    [
        (0.03, 0.01, 0.04, [True, True, True]),
        (0.02, 0.001, 0.049, [True, True, True]),
        (0.019, 0.001, 0.049, [False, True, True]),
        (0.03, 0.0, 0.04, [True, False, True]),
        (0.03, 0.01, 0.05, [True, True, False]),
        (-0.03, -0.04, 0.04, [False, False, False]),
    ],
)
def test_a_margin_may_be_met_exactly_and_chance_must_be_beaten(
    delta: float, low: float, p_value: float, held: list[bool]
):
    compared = Difference(delta=delta, ci=(low, 2 * delta), p_value=p_value)
    assert [rule.holds for rule in _better(GateSpec(margin=0.02, level=0.05), compared)] == held


def test_equal_models_are_not_better_without_a_margin_either():
    rules = _better(GateSpec(margin=0.0), Difference(delta=0.0, ci=(0.0, 0.0), p_value=0.0))
    assert not any(rule.holds for rule in rules)


def test_a_regression_evaluation_may_fall_by_its_allowance_exactly(case: Case):
    before, after = episodes([1.0] * 75 + [0.0] * 25), episodes([1.0] * 50 + [0.0] * 50)
    for allowed, holds in ((0.25, True), (0.24, False)):
        decided = case.decide(episodes(BETTER), episodes(WORSE), regressions={"sums": (before, after)}, allowed=allowed)
        assert {rule["rule"]: rule["holds"] for rule in decided["rules"]}["guard rail sums"] is holds
