"""The graph of a run: what was made from what, what was cached, how many episodes went along."""

from apprentice.flows.boxes import BOXES
from apprentice.flows.pages.run_graph import placed, run_graph
from apprentice.tasks.reporting.announce import StageRun
from tests.flows.pages.hostile_report import made

LINEAGE = [
    made("questions", "q", {}),
    made("collect", "c", {}, episodes=1500),
    made("filter_rollouts", "k", {"rollouts": "c", "questions": "q"}, kept=1342),
    made("sft", "s", {"kept": "k"}),
    made("probe_questions", "p", {"questions": "q"}),
    made("evaluate", "e", {"checkpoint": "s", "questions": "p"}, n=16),
    made("evaluate", "f", {"checkpoint": "s", "questions": "q"}, n=1000),
    made("evaluate", "h", {"checkpoint": "s", "questions": "q"}, n=1000),
    made("verdict", "v", {"evaluations.base": "f", "evaluations.sft": "h", "rollouts": "c"}),
]
STAGES = [
    StageRun("collect", "cached", 0.1, "c" * 20)._asdict(),
    StageRun("sft", "ran", 12.5, "s" * 20)._asdict(),
    StageRun("evaluate", "ran", 3.0, "f" * 20)._asdict(),
    StageRun("evaluate", "cached", 0.0, "h" * 20)._asdict(),
]


SHOWN = ("Questions", "Teacher", "SFT", "Evaluate")
"""Of these, this run did not even look at the questions: what they led to was there."""


def test_a_box_tells_what_ran_how_long_and_what_was_cached():
    boxes = run_graph(LINEAGE, STAGES, BOXES)["boxes"]
    assert {name: (box.title, box.did) for name, box in boxes.items() if name in SHOWN} == {
        "Questions": ("Questions", "cached"),
        "Teacher": ("Teacher", "cached"),
        "SFT": ("SFT", "12.5 s"),
        "Evaluate": ("Evaluate ×2", "3.0 s, 1 cached"),
    }


def test_arrows_carry_counts_and_skip_what_a_longer_way_says():
    arrows = {(source, to): (number, what) for source, to, number, what in run_graph(LINEAGE, STAGES, BOXES)["arrows"]}
    assert arrows[("Teacher", "Filter")] == ("1,500", "episodes")
    assert arrows[("Filter", "SFT")] == ("1,342", "kept")
    assert arrows[("Evaluate", "Verdict")] == ("2,000", "answers")
    assert ("Teacher", "Verdict") not in arrows
    assert ("SFT", "Probe") in arrows, "the probe's evaluation is a box of its own"


def test_the_way_to_the_model_is_the_first_row_and_what_looks_at_it_stands_beside():
    boxes = run_graph(LINEAGE, STAGES, BOXES)["boxes"]
    assert {name: box.layer for name, box in boxes.items()} == {
        "Questions": 0,
        "Teacher": 0,
        "Filter": 1,
        "SFT": 2,
        "Evaluate": 3,
        "Probe": 3,
        "Verdict": 4,
    }
    rows = {name: box.row for name, box in boxes.items()}
    assert rows == dict.fromkeys(("Teacher", "Filter", "SFT", "Evaluate", "Verdict"), 0) | {"Questions": 1, "Probe": 1}


def test_boxes_do_not_lie_on_one_another_lying_or_upright():
    for upright in (False, True):
        drawn = placed(run_graph(LINEAGE, STAGES, BOXES), upright)
        corners = [(each["x"], each["y"]) for each in drawn["boxes"]]
        assert len(set(corners)) == len(corners)
        assert all(x <= drawn["width"] and y <= drawn["height"] for x, y in corners)
        assert upright == (drawn["height"] > drawn["width"])
