"""The sentences of a report, each from the figures that it is said of; at their bounds."""

from typing import Any

import pytest

from apprentice.flows.pages.report_view import _bought, _duration, _power, _says, _stage_rows, view_of
from apprentice.tasks.judgement.contents import Curves, Diagnosis, VerdictContents
from tests.flows.pages.hostile_report import report


def stage(seconds: float, state: str = "ran", **given: Any) -> dict[str, Any]:
    own = {"title": "SFT", "pool": "", "worker": "", "attempts": 1, "counts": {}, "key": "0123456789abcdef"}
    return own | {"seconds": seconds, "state": state} | given


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ([60, 59.4], "119 s"),
        ([60, 60], "2 min"),
        ([5399], "90 min"),
        ([5400], "1.5 h"),
        ([36_000], "10.0 h"),
    ],
)
def test_a_duration_is_told_in_the_unit_that_suits_it(seconds: list[float], words: str):
    assert _duration([stage(each) for each in seconds]) == words


def test_how_many_stages_were_cached_is_told_where_some_were():
    assert _duration([stage(10), stage(1, "cached"), stage(1, "cached")]) == "12 s, 2 of 3 stages cached"


GRPO = Curves(reward_initial=0.25, reward_final=0.5, delta=0.25, diagnosis=Diagnosis.LEARNING)


def drawn(title: str, values: list[float], held_out: list[float] | None = None, warnings: Any = ()) -> dict[str, Any]:
    points, held = ([*enumerate(each, 1)] for each in (values, held_out or []))
    return {"title": title, "points": points, "held_out": held, "warnings": list(warnings)}


@pytest.mark.parametrize(
    ("grpo", "curve", "words"),
    [
        (None, drawn("loss", [4.0, 2.0]), "3 at first, 3 at the end (means of 2 logs)."),
        (None, drawn("loss", [4.0] * 5 + [3.0] + [1.0] * 5), "4 at first, 1 at the end (means of 5 logs)."),
        (None, drawn("loss", [4.0]), "4."),
        (None, drawn("loss", [4.0], [3.5, 3.0]), "4. Held out: 3 at the end."),
        (None, drawn("loss", [], [3.0]), "3. Held out: 3 at the end."),
        (None, drawn("loss", [4.0], warnings=["It fell.", "Look."]), "4. It fell. Look."),
        (None, drawn("reward", [0.5]), "0.5."),
        (GRPO, drawn("entropy", [0.5]), "0.5."),
        (
            GRPO,
            drawn("reward", [0.5], warnings=["Look."]),
            "Training reward: 25.0% in the first five logs, 50.0% in the last five: +25.0 pp. Look.",
        ),
    ],
)
def test_a_curve_is_told_by_its_ends_and_grpo_s_reward_by_its_gain(grpo: Any, curve: dict[str, Any], words: str):
    assert _says(grpo, curve) == words


def test_what_was_bought_is_told_by_its_share_the_commonest_cause_first():
    parts = _bought({"episodes": 10, "kept": 5, "causes": {"lost": 2, "wrong": 3}})
    assert [(part["what"], part["number"], part["share"]) for part in parts] == [
        ("kept", 5, 0.5),
        ("wrong", 3, 0.3),
        ("lost", 2, 0.2),
    ]
    assert [part["share"] for part in _bought({"episodes": 1, "kept": 1, "causes": {}})] == [1.0]
    assert [part["share"] for part in _bought({"episodes": 0, "kept": 0, "causes": {}})] == [0.0]
    assert _bought(None) == []


def test_the_power_is_that_of_the_last_comparison_and_nothing_is_said_without_one():
    rates: dict[str, Any] = {"format_compliance": 1.0, "accuracy": 0.5, "ci": {}}
    pair = {"from": "base", "to": "sft", "delta": 0.1, "ci": (0.0, 0.2)}

    def power(*needed: int | None) -> str:
        models = {"base": rates | {"n": 1}, "sft": rates | {"n": 4}}
        comparisons = [pair | {"questions_for_5_points": each} for each in needed]
        content = {"models": models, "comparisons": comparisons, "contamination": {"clean": True}}
        return _power(VerdictContents.model_validate(content))

    assert power(7, 9).startswith("Power: 9 questions show")
    assert "; 4 were asked" in power(7, 9)
    assert power() == ""
    assert power(None) == ""


def test_columns_of_stages_that_tell_nothing_are_left_out():
    (row,) = _stage_rows([stage(1.25)], priced=True)
    assert row == {"stage": "SFT", "state": "ran", "seconds": "1.2", "key": "`0123456789ab`"}
    counts = {"episodes": 1234, "prompt_tokens": 5000, "completion_tokens": 60, "cost_usd": 0.5, "retries": 2}
    counts |= {"reconnects": 3, "waited_s": 4.4, "device_s": 5.55}
    far = stage(2, pool="gpu", worker="w1", attempts=3, counts=counts)
    assert _stage_rows([stage(1), far], priced=True)[1] == {
        "stage": "SFT",
        "state": "ran",
        "seconds": "2.0",
        "pool, worker": "gpu, w1",
        "begun": "3",
        "episodes": "1,234",
        "tokens read + written": "5,000 + 60",
        "USD": "0.5000",
        "retries, reconnects": "2, 3",
        "waited s": "4",
        "device s": "5.5",
        "key": "`0123456789ab`",
    }
    assert "USD" not in _stage_rows([far], priced=False)[0]
    assert "begun" not in _stage_rows([stage(2, "cached", attempts=3)], priced=False)[0]


@pytest.fixture(scope="module")
def old_report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A report in which nothing is said of tokens."""
    return report(tmp_path_factory.mktemp("report"))


KNOWN = {"tokens": {"base": 5.25, "sft": 60.0, "grpo": 0.0}, "guard_tokens": {"sums": [12.0, 34.0]}}
UNKNOWN = {"tokens": dict.fromkeys(KNOWN["tokens"], 0.0), "guard_tokens": {"sums": [0.0, 0.0]}}
SHOWN = ["5.2", "60.0", "–", ""]  # the last one's are not known, and the teacher's are of another tokenizer
REPORTS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "of older code": ({}, set()),
    "of a student that answers at once": (KNOWN | {"thinks": False}, {"model_rows"}),
    "of one that thinks": (KNOWN | {"thinks": True}, {"model_rows", "rate_rows", "guard_rows"}),
    "of one that thinks, and whose tokens nobody counted": (UNKNOWN | {"thinks": True}, set()),
}


@pytest.mark.parametrize(("given", "tables"), REPORTS.values(), ids=REPORTS)
def test_tokens_stand_beside_accuracies_where_a_student_thinks(
    old_report: dict[str, Any], given: dict[str, Any], tables: set[str]
):
    view = view_of(old_report | given)
    cells = {
        name: [[value for column, value in row.items() if column.startswith("tokens ")] for row in view[name]]
        for name in ("model_rows", "rate_rows", "guard_rows")
    }
    assert {name for name, rows in cells.items() if any(map(any, rows))} == tables
    if "model_rows" in tables:
        assert cells["model_rows"] == [[each] for each in SHOWN[:-1]]
    if "rate_rows" in tables:
        assert cells["rate_rows"] == [[each] for each in SHOWN]
        assert cells["guard_rows"] == [["12.0", "34.0"]]
