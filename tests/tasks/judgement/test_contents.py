"""The files of a judgement are read as they were written, by this code or by another version of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from apprentice.tasks.judgement.contents import (
    Diagnosis,
    GateDecision,
    RulesOfGate,
    VerdictContents,
    read_decision,
    read_verdict,
    write,
)
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.statistics.differences import PairedTest

RATES = {"n": 4, "format_compliance": 1.0, "accuracy": 0.5, "mean_score": 0.5, "ci": {"accuracy": [0.1, 0.9]}}
PAIR = {"delta": 0.5, "ci": [0.1, 0.9], "p_value": 0.5, "test": "McNemar, exact", "won": 2, "lost": 0}
BOTH = {"before": {"n": 4, "accuracy": 0.5, "ci": [0.1, 0.9]}, "after": {"n": 4, "accuracy": 0.5, "ci": [0.1, 0.9]}}
VERDICT: dict[str, Any] = {
    "models": {"base": RATES, "sft": RATES | {"samples": 1}},
    "broken": "",
    "comparisons": [
        {"from": "base", "to": "sft", "delta_accuracy": 0.5, "metric": "accuracy", **PAIR, "p_holm": 0.5},
    ],
    "guards": [{"guard": "sums", **BOTH, "metric": "accuracy", **PAIR, "p_holm": 0.5}],
    "contamination": {"questions": 4, "shared_with_training": 0, "clean": True},
    "grpo": {"reward_initial": 0.1, "dead_groups": 0.0, "diagnosis": "flat", "advice": "…"},
    "signs": [{"kind": "length", "said": "It got longer.", "places": [3]}],
    "slices": [{"trait": "terms", "kind": "2", "n": 4, "models": {"base": {"accuracy": 0.5, "ci": [0.1, 0.9]}}}],
    "teacher": None,
}
DECISION: dict[str, Any] = {
    "rival": "base",
    "metric": "accuracy",
    "decided_by": {"gate": {"metric": "accuracy", "margin": 0.0}, "guards": {"sums": 0.05}, "has_floor": True},
    "comparison": {"metric": "accuracy", **PAIR, "questions_for_5_points": None},
    "floor": {"at_least": 0.45, "why": "gate.at_least", "holds": True, "found": "…"},
    "guards": [{"guard": "sums", **BOTH, "seen_in_training": 1, "metric": "accuracy", **PAIR}],
    "rules": [{"rule": "no contamination", "holds": True, "found": "…"}],
    "promoted": True,
}
NEWER = {"of_another_version": [1, {"a": "b"}]}


@pytest.mark.parametrize("more", [{}, NEWER], ids=["as it is", "with a field of another version"])
@pytest.mark.parametrize(
    ("name", "read", "file"), [("verdict.json", read_verdict, VERDICT), ("decision.json", read_decision, DECISION)]
)
def test_a_file_is_written_again_byte_by_byte(tmp_path: Path, name: str, read: Any, file: Any, more: dict[str, Any]):
    text = json.dumps(file | more, indent=2)
    (tmp_path / name).write_text(text)
    write(tmp_path, read(tmp_path))
    assert (tmp_path / name).read_text() == text


def test_what_older_code_did_not_write_has_a_default_and_stays_unwritten():
    old = {"rules": [{"rule": "accuracy better by +2.0 points", "holds": False, "found": "…"}], "promoted": False}
    decision = GateDecision.model_validate(old)
    assert (decision.floor, decision.comparison, decision.is_below_the_floor) == (None, None, False)
    assert decision.decided_by != RulesOfGate(gate={}, guards={}, has_floor=True)
    assert decision.reasons == ["…"]
    assert decision.as_json() == old
    verdict = VerdictContents.model_validate({"models": {"base": RATES}, "contamination": {"clean": True}})
    assert (verdict.stopped, verdict.signs, verdict.teacher, verdict.curves) == ("", [], None, None)


def test_words_that_this_code_does_not_know_are_kept_as_they_are():
    other = {"grpo": {"diagnosis": "wandered"}, "comparisons": [{"from": "a", "to": "b", **PAIR, "test": "sign"}]}
    verdict = VerdictContents.model_validate(VERDICT | other)
    assert verdict.curves
    assert (verdict.curves.diagnosis, verdict.comparisons[0].test) == ("wandered", "sign")
    known = VerdictContents.model_validate(VERDICT)
    assert known.curves
    assert known.curves.diagnosis is Diagnosis.FLAT
    assert known.comparisons[0].test is PairedTest.MCNEMAR


@pytest.mark.parametrize("without", ["contamination", "clean"])
def test_a_verdict_that_does_not_say_whether_it_is_contaminated_is_not_read(tmp_path: Path, without: str):
    broken = {**VERDICT, "contamination": {}} if without == "clean" else {"models": {}}
    (tmp_path / "verdict.json").write_text(json.dumps(broken))
    with pytest.raises(Stop, match=r"verdict\.json cannot be read: contamination.*\n.*version of apprentice"):
        read_verdict(tmp_path)
