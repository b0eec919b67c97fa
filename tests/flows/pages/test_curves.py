"""Curves: what is drawn of a log, and what is said of it."""

from typing import Any

import pytest

from apprentice.flows.pages.curves import CELLS, HEIGHT, TOP, WIDTH, _band, _range, curve_of, curves_of, heat_of
from apprentice.tasks.grpo_training import GRPO
from apprentice.tasks.sft_training import SFT
from tests.flows.pages.hostile_report import LOG, WARNED


def test_training_and_held_out_points_and_the_warnings_about_each_curve():
    drawn = {each["title"]: each for each in curves_of(GRPO.curves, LOG, WARNED)}
    assert list(drawn) == ["reward", "groups without signal", "tokens a completion", "loss"], (
        "without what is not logged"
    )
    assert drawn["reward"]["points"][0] == (1, LOG[0]["reward"])
    assert drawn["reward"]["held_out"] == [(10, 0.2), (20, 0.4), (30, 0.6), (40, 0.8)]
    assert drawn["tokens a completion"]["warnings"] == ["Step 40: short. Read them."]
    assert drawn["loss"]["warnings"] == []


def test_the_environments_reward_is_drawn_where_several_streams_are_weighted():
    (reward,) = curves_of(GRPO.curves, [{"step": 1, "reward": 9.0, "own_reward": 0.5}], [])
    assert reward["points"] == [(1, 0.5)]


def test_a_curve_stays_in_its_box_and_its_band_holds_the_means():
    reward, *_ = (curve_of(each, "") for each in curves_of(GRPO.curves, LOG, []))
    points = [tuple(map(float, point.split(","))) for point in f"{reward['line']} {reward['band']}".split()]
    assert all(0 <= x <= WIDTH and TOP <= y <= HEIGHT for x, y in points)
    means = [float(point.split(",")[1]) for point in reward["mean"].split()]
    edges = [float(point.split(",")[1]) for point in reward["band"].split()]
    upper, lower = edges[: len(means)], edges[len(means) :][::-1]
    assert all(top <= middle <= bottom for top, middle, bottom in zip(upper, means, lower, strict=True))


def test_each_kind_of_question_has_a_row_of_cells_that_are_means_over_some_steps():
    over_time = {kind: {"asked": [(step, float(step)) for step in range(1, 101)], "rate": []} for kind in "ab"}
    drawn = heat_of(over_time, "asked", "Asked")
    assert (drawn["steps"], drawn["columns"], [row["kind"] for row in drawn["rows"]]) == ((1, 100), CELLS, ["a", "b"])
    cells = drawn["rows"][0]["cells"]
    assert len(cells) == CELLS
    assert cells[0] == (1.5, "a, steps 1 to 2")
    assert cells[-1] == (99.0, "a, steps 98 to 100")
    assert (drawn["full"], heat_of({"a": {"rate": [(1, 0.5)]}}, "rate", "")["full"]) == (99.0, 1.0)
    assert sum(value for value, _ in cells) / CELLS == pytest.approx(50.5, rel=0.02)
    few = {"a": {"asked": [(5, 0.5)], "rate": []}}
    assert heat_of(few, "asked", "Asked")["rows"][0]["cells"] == [(0.5, "a, steps 5 to 5")]


def test_a_log_of_one_step_or_of_equal_values_is_drawn():
    for log in ([{"step": 5, "loss": 0.0}], [{"step": step, "loss": 2.0} for step in (1, 2)]):
        (loss,) = curves_of(SFT.curves, log, [])
        assert "nan" not in curve_of(loss, "")["line"]


def test_the_band_of_a_curve_is_the_interval_of_five_logs_in_a_row():
    points = [(step, float(value)) for step, value in ((1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6))]
    half = 2.776 * 2.5**0.5 / 5**0.5
    assert [tuple(map(round_to_five, each)) for each in _band(points)] == [
        (5, 3.0, round_to_five(3 - half), round_to_five(3 + half)),
        (6, 4.0, round_to_five(4 - half), round_to_five(4 + half)),
    ]
    assert _band(points[:4]) == []


def round_to_five(value: float) -> float:
    return round(value, 5)


@pytest.mark.parametrize(
    ("low", "high", "ends"),
    [
        (0.0, 0.5, (0.0, 0.55)),
        (0.25, 0.5, (0.0, 0.525)),
        (0.3, 0.5, (0.28, 0.52)),
        (0.4, 0.9, (0.0, 1.0)),
        (0.5, 0.9, (0.46, 1.0)),
        (0.4, 0.8, (0.0, 0.84)),
        (0.5, 1.0, (0.0, 1.0)),
        (1.0, 3.0, (0.0, 3.2)),
        (-1.0, 1.0, (-1.2, 1.2)),
        (2.0, 2.0, (1.8, 2.2)),
        (0.0, 0.0, (0.0, 1.0)),
        (-4.0, -4.0, (-4.4, -3.6)),
    ],
)
def test_an_axis_has_room_begins_at_zero_where_that_is_near_and_a_share_ends_at_one(low: float, high: float, ends: Any):
    assert _range(low, high) == pytest.approx(ends)
