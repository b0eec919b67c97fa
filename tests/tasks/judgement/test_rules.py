"""A rule is known by its id, whatever its text: the id is found in every text that a gate has ever written."""

import json
from typing import Any

import pytest

from apprentice.tasks.advice.ending import ending
from apprentice.tasks.artifacts.types import GrpoCheckpoint, Release, Verdict
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.gate import gate
from apprentice.tasks.judgement import rules
from apprentice.tasks.judgement.contents import GateDecision, Rule, VerdictContents, made_rule, read_decision
from apprentice.tasks.judgement.rules import WORDINGS, GateSpec, RuleId, identified
from tests.tasks.evaluations import episodes, evaluation, published

WRITTEN = [
    ("no contamination", RuleId.NO_CONTAMINATION, {}),
    ("enough questions that neither has seen", RuleId.UNSEEN, {}),
    ("at least 45.0%", RuleId.FLOOR, {"floor": "45.0%"}),
    ("accuracy better", RuleId.MARGIN, {"metric": "accuracy"}),
    ("mean score better by +2.0 points", RuleId.MARGIN, {"metric": "mean score", "margin": "+2.0 points"}),
    ("accuracy better by +0.0 points", RuleId.MARGIN, {"metric": "accuracy", "margin": "+0.0 points"}),
    ("interval above zero", RuleId.INTERVAL, {}),
    ("exact test agrees (p below 0.05)", RuleId.EXACT_TEST, {"level": "0.05"}),
    ("exact test agrees (p below 0.0024)", RuleId.EXACT_TEST, {"level": "0.0024"}),
    ("guard rail sums", RuleId.REGRESSION, {"evaluation": "sums"}),
    ("guard rail better-sums", RuleId.REGRESSION, {"evaluation": "better-sums"}),
    ("not rolled back", RuleId.NOT_ROLLED_BACK, {}),
    ("the champion is known", RuleId.CHAMPION_KNOWN, {}),
]
"""Every text that a gate of any version has written. A text is added here, none is taken away."""


@pytest.mark.parametrize(("text", "rule", "stated"), WRITTEN)
def test_the_id_of_every_text_that_was_ever_written_is_found(text: str, rule: RuleId, stated: dict[str, str]):
    assert identified(text) == (rule, stated)
    assert Rule.model_validate({"rule": text, "holds": True, "found": ""}).id == rule


def test_every_rule_has_a_text_in_the_list_above_and_every_wording_has_one():
    assert {rule for _, rule, _ in WRITTEN} == WORDINGS.keys() == set(RuleId) - {RuleId.OTHER}
    fits = {
        wording: [text for text, _, _ in WRITTEN if rules._pattern(wording).fullmatch(text)] for wording in all_of()
    }
    assert all(fits.values()), fits


def all_of() -> list[str]:
    return [each for wordings in WORDINGS.values() for each in wordings]


@pytest.mark.parametrize("text", ["better", "guard rail", "at least", "the interval lies above zero", ""])
def test_a_text_that_no_gate_of_this_code_writes_is_another_rule(text: str):
    assert identified(text) == (RuleId.OTHER, {})


# --- the gate ---------------------------------------------------------------------------------------------------------

GATES: dict[str, tuple[GateSpec, bool, bool]] = {
    "by default": (GateSpec(), False, True),
    "a margin and a floor": (GateSpec(margin=0.1, at_least=0.5, metric="mean_score"), False, True),
    "no floor": (GateSpec(at_least=0.0, level=0.0024), False, True),
    "rolled back, and the champion unknown": (GateSpec(), True, False),
}


@pytest.fixture
def decided(context: StageContext) -> Any:
    """The decision of a gate on two models, one right on 60 of a hundred questions and one on 50."""

    def run(spec: GateSpec, rolled_back: bool, champion_known: bool) -> tuple[GateDecision, dict[str, Any]]:
        store = context.run.store
        challenger_records, rival_records = (episodes([1.0] * right + [0.0] * (100 - right)) for right in (60, 50))
        learned = {"learned.jsonl": ""}
        trained = published(store, GrpoCheckpoint, "g" * 20, learned, {"parameters": 1, "stage": "grpo"})
        champion = {"weights": "-", "promoted": True, "parameters": 1, "stage": "champion"}
        rival = published(store, Release, "r" * 20, learned, champion)
        text = json.dumps({"contamination": {"clean": True}})
        counts = {"diagnosis": "", "contaminated": False}
        judged = published(store, Verdict, "v" * 20, {"verdict.json": text}, counts)
        both = {
            "challenger": evaluation(store, "ec" * 10, challenger_records),
            "rival": evaluation(store, "er" * 10, rival_records),
        }
        regression_evaluations = {f"sums.{who}": each for who, each in both.items()}
        gate.body(
            context,
            spec,
            trained,
            rival,
            both,
            regression_evaluations,
            {"sums": 0.05},
            judged,
            rolled_back,
            champion_known,
        )
        return read_decision(context.out), json.loads((context.out / "decision.json").read_text())

    return run


@pytest.mark.parametrize("given", GATES.values(), ids=GATES)
def test_what_a_gate_writes_has_texts_and_no_ids_and_is_read_with_them(decided, given: Any):
    decision, file = decided(*given)
    assert [list(rule) for rule in file["rules"]] == [["rule", "holds", "found"]] * len(file["rules"])
    assert RuleId.OTHER not in {rule.id for rule in decision.rules}
    for rule in decision.rules:
        assert made_rule(rule.id, rule.holds, rule.found, **rule.stated) == rule


def test_these_gates_write_every_rule_that_there_is(decided):
    written = {rule.id for given in GATES.values() for rule in decided(*given)[0].rules}
    assert written == WORDINGS.keys()


OTHERS = {
    RuleId.REGRESSION: "regression evaluation {evaluation} holds",
    RuleId.UNSEEN: "new questions",
    RuleId.FLOOR: "floor {floor}",
    RuleId.INTERVAL: "lower end positive",
    RuleId.EXACT_TEST: "p < {level}",
}


@pytest.mark.parametrize("unmet", OTHERS)
def test_another_wording_changes_no_advice_and_files_of_the_older_one_are_still_read(
    unmet: RuleId, monkeypatch: pytest.MonkeyPatch
):
    stated = {"evaluation": "sums"} if unmet == RuleId.REGRESSION else {}
    stated |= {"floor": "45.0%"} if unmet == RuleId.FLOOR else {"level": "0.05"} if unmet == RuleId.EXACT_TEST else {}
    older = made_rule(unmet, False, "It is not so.", **stated)
    monkeypatch.setitem(WORDINGS, unmet, (OTHERS[unmet], *WORDINGS[unmet]))
    newer = made_rule(unmet, False, "It is not so.", **stated)
    assert newer.rule != older.rule
    advices = [advice(rule.as_json()) for rule in (older, newer)]
    assert advices[0] == advices[1]


def advice(rule: dict[str, Any]) -> tuple[str, Any]:
    """What is said of a run that is better by far, and refused by one rule."""
    rates = {"n": 100, "accuracy": 0.8, "format_compliance": 1.0, "ci": {"accuracy": (0.7, 0.9)}}
    verdict = {"models": {"base": rates, "sft": rates}, "contamination": {"clean": True}}
    comparison = {"delta": 0.3, "ci": (0.2, 0.4)}
    decision = {"rival": "base", "promoted": False, "comparison": comparison, "rules": [rule]}
    found = ending(VerdictContents.model_validate(verdict), GateDecision.model_validate(decision), {})
    return found.reasons, found.change


def test_a_regression_evaluation_named_like_another_rule_is_advised_on_as_what_it_is():
    reasons, change = advice(made_rule(RuleId.REGRESSION, False, "It fell.", evaluation="better-sums").as_json())
    assert reasons.endswith("It fell.")
    assert change.field == "sft.learning_rate"
