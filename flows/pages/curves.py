"""The curves of a training as data for the report, and as the geometry of small SVG pictures.

In: a training's log and its signals. Out: points, rows of a table, paths.
"""

from itertools import pairwise
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from apprentice.tasks.analysis.curve_signals import Signal, value_of
from apprentice.tasks.analysis.diagnose import ENDS

if TYPE_CHECKING:
    from apprentice.tasks.training.method import Curve

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 340, 170, 46, 8, 10, 24
CELLS = 40
"""The most cells in a row of a picture by kind."""


def curves_of(
    drawn: "dict[str, Curve]", log: list[dict[str, Any]], signals: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The metrics of a training: title, training's and held-out points (step, value), warnings about it."""
    found = []
    for metric, (title, kinds) in drawn.items():
        trained = [(entry["step"], value) for entry in log if (value := value_of(entry, metric)) is not None]
        held_out = [(entry["step"], entry[name]) for entry in log if (name := _held_out(entry, metric))]
        if trained or held_out:
            warnings = [Signal(**each).message() for each in signals if each["kind"] in kinds]
            found.append({"title": title, "points": trained, "held_out": held_out, "warnings": warnings})
    return found


def curve_of(drawn: dict[str, Any], says: str) -> dict[str, Any]:
    """One curve as paths: the line, of `reward` the mean of five logs with its 95% band, held-out dots, the axes."""
    points, held_out = drawn["points"], drawn["held_out"]
    band = _band(points) if drawn["title"] == "reward" and len(points) > ENDS else []
    values = [value for _, value in [*points, *held_out]]
    steps = [step for step, _ in [*points, *held_out]]
    low, high = _range(min(values), max(values))
    first, last = min(steps), max(steps)

    def at(step: float, value: float) -> str:
        x = LEFT + (WIDTH - LEFT - RIGHT) * ((step - first) / (last - first) if last > first else 0.5)
        y = TOP + (HEIGHT - TOP - BOTTOM) * (1 - (min(max(value, low), high) - low) / (high - low))
        return f"{x:.1f},{y:.1f}"

    upper, lower = [at(step, top) for step, _, _, top in band], [at(step, bottom) for step, _, bottom, _ in band]
    return {
        "title": drawn["title"],
        "says": says,
        "line": " ".join(at(*point) for point in points),
        "mean": " ".join(at(step, middle) for step, middle, _, _ in band),
        "band": " ".join([*upper, *reversed(lower)]),
        "held_out": [at(*point).split(",") for point in held_out],
        "ticks": [(at(first, value).split(",")[1], f"{value:.3g}") for value in (low, (low + high) / 2, high)],
        "steps": (first, last),
    }


def heat_of(over_time: dict[str, dict[str, list[tuple[int, float]]]], name: str, title: str) -> dict[str, Any]:
    """`asked` or `rate` of each kind of question as a row of cells, each the mean over some steps.

    Args:
        over_time: As `kinds_over_time` gives it.
    """
    steps = [step for step, _ in next(iter(over_time.values()))[name]]
    columns = min(len(steps), CELLS)
    edges = [len(steps) * column // columns for column in range(columns + 1)]
    rows = []
    for kind, of_kind in over_time.items():
        values = [value for _, value in of_kind[name]]
        cells = [mean(values[begin:end]) for begin, end in pairwise(edges)]
        captions = [f"{kind}, steps {steps[begin]} to {steps[end - 1]}" for begin, end in pairwise(edges)]
        rows.append({"kind": kind, "cells": list(zip(cells, captions, strict=True))})
    most = max(value for row in rows for value, _ in row["cells"])
    full = 1.0 if name == "rate" else most or 1.0  # of many kinds, none has a large share
    return {"title": title, "rows": rows, "columns": columns, "full": full, "steps": (steps[0], steps[-1])}


def curve_rows(curves: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"curve": each["title"], "of": of, "step": step, "value": value}
        for each in curves
        for of, points in (("training", each["points"]), ("held out", each["held_out"]))
        for step, value in points
    ]


def kind_over_time_rows(over_time: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"kind": kind, "step": step, "share of the questions": share, "success rate": rate}
        for kind, of_kind in over_time.items()
        for (step, share), (_, rate) in zip(of_kind["asked"], of_kind["rate"], strict=True)
    ]


def _held_out(entry: dict[str, Any], metric: str) -> str | None:
    """The name under which an entry has a metric of the held-out rows, if it has."""
    return next((name for name in entry if name.startswith("eval_") and name.endswith(f"_{metric}")), None)


def _band(points: list[tuple[int, float]]) -> list[tuple[int, float, float, float]]:
    """Step, mean and 95% interval of each five logs in a row, from their spread (Student's t with 4 degrees)."""
    found = []
    for end in range(ENDS, len(points) + 1):
        values = [value for _, value in points[end - ENDS : end]]
        half = 2.776 * stdev(values) / ENDS**0.5
        found.append((points[end - 1][0], mean(values), mean(values) - half, mean(values) + half))
    return found


def _range(low: float, high: float) -> tuple[float, float]:
    """The ends of the axis: a little room, from zero where that is near; for shares no more than 0 to 1."""
    room = 0.1 * (high - low) or 0.1 * abs(high) or 1.0
    bottom = 0.0 if 0 <= low <= 0.5 * high else low - room
    return bottom, 1.0 if low >= 0 and 0.8 < high <= 1 else high + room
