"""HTML pages that need nothing but themselves: their looks, their one script, their pictures.

In: a template and its data, or Markdown. Out: HTML, with a policy that forbids all that is not the page's own.

The curves of a training as data for the report, and as the geometry of small SVG pictures.

The graph of a run: which stage made what from what, with seconds, cache hits and counts on the arrows. In: the report's
lineage and its log of stages. Out: boxes and arrows with coordinates, once lying and once upright.
"""

import base64
import hashlib
import json
from collections import defaultdict
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from apprentice.tasks.analysis.diagnose import ENDS, Signal, value_of
from apprentice.tasks.collect import collect, collect_shard
from apprentice.tasks.dataset import take_rollouts
from apprentice.tasks.engine.stage import Drawn
from apprentice.tasks.evaluate import evaluate, evaluate_endpoint
from apprentice.tasks.grpo import grpo
from apprentice.tasks.judge import gate, release, verdict
from apprentice.tasks.questions import (
    ASKED,
    PROBED,
    exam,
    fresh_questions,
    probe_questions,
    questions,
    rung_questions,
)
from apprentice.tasks.rescore import rescore
from apprentice.tasks.sft import filter_rollouts, lengths, mix_rollouts, sft, tried_questions
from apprentice.tasks.student import student


def as_script(data: Any) -> Markup:
    """JSON that ends no `<script>` element and begins no comment."""
    return Markup(json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"))


def as_view_page(shown: list[dict[str, Any]]) -> str:
    """The page of a server that has the episodes: each of `shown` has a source, its episodes and its ref."""
    title = f"{sum(each['episodes'] for each in shown):,} episodes"
    return templates(autoescape=True).get_template("view.html.j2").render(**looks("'self'"), title=title, shown=shown)


def as_html_page(markdown: str, title: str) -> str:
    """Markdown as a page of the same looks."""
    return (
        templates(autoescape=True)
        .get_template("page.html.j2")
        .render(**looks("'none'"), title=title, body=from_markdown(markdown))
    )


def from_markdown(text: str) -> Markup:
    """Markdown as HTML; tables scroll by themselves where the screen is narrow."""
    from markdown_it import MarkdownIt

    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    scroll = '<div class="scroll" role="group" tabindex="0" aria-label="Table"><table>'
    return Markup(body.replace("<table>", scroll).replace("</table>", "</table></div>"))


def looks(connect: str) -> dict[str, Any]:
    """Style, script, and the policy that lets this script run, no other, and loads nothing.

    `connect`: whom the script may ask: 'none', or 'self' where a server has the episodes.
    """
    script, css = _file("page.js"), _file("page.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'; "
    policy += f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    return {"script": Markup(script), "css": Markup(css), "policy": policy}


def data_uri(picture: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}"


@cache
def _file(name: str) -> str:
    return (files("apprentice.flows.pages") / name).read_text()


def templates(autoescape: bool, functions: tuple[Any, ...] = ()) -> Environment:
    loader = PackageLoader("apprentice.flows", "pages")
    made = Environment(loader=loader, undefined=StrictUndefined, autoescape=autoescape)
    made.globals |= {each.__name__: each for each in functions} | {"as_json": json.dumps}
    return made


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 340, 170, 46, 8, 10, 24
CELLS = 40
"""The most cells in a row of a picture by kind."""
SHOWN: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "GRPO": {
        "reward": ("reward", ()),
        "frac_reward_zero_std": ("groups without signal", ("saturated", "no_signal")),
        "entropy": ("entropy", ("entropy",)),
        "completions/mean_length": ("tokens a completion", ("length",)),
        "loss": ("loss", ("nan",)),
    },
    "SFT": {"loss": ("loss", ("nan",)), "mean_token_accuracy": ("token accuracy", ()), "entropy": ("entropy", ())},
}
"""By kind of training: the metrics that are drawn, the title of each, the signals that are about it."""


def curves_of(stage: str, log: list[dict[str, Any]], signals: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The metrics of a training: title, training's and held-out points (step, value), warnings about it."""
    found = []
    for metric, (title, kinds) in SHOWN.get(stage, SHOWN["SFT"]).items():
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


STAGES = {
    each.name: each.drawn
    for each in (
        *(questions, exam, fresh_questions, rung_questions, probe_questions, tried_questions),
        *(collect, collect_shard, rescore, take_rollouts, filter_rollouts, mix_rollouts, student, lengths),
        *(sft, grpo, evaluate, evaluate_endpoint, verdict, gate, release),
    )
}
WIDE, HIGH = 86, 46
LYING, UPRIGHT = (142, 62), (116, 76)
"""From one box to the next, along the layers and across them."""


class Box(NamedTuple):
    """One or several stages of the same kind."""

    title: str
    seconds: float
    runs: int
    cached: int
    layer: int
    row: int

    @property
    def did(self) -> str:
        """Its outcome in this run."""
        if self.cached == self.runs:
            return "cached"
        return f"{self.seconds:.1f} s" + (f", {self.cached} cached" if self.cached else "")


def run_graph(lineage: list[dict[str, Any]], stages: list[dict[str, Any]]) -> dict[str, Any]:
    """Boxes by name, and arrows (from, to, number, what) without those that a longer way makes needless."""
    group_of = _groups(lineage)
    drawn = {each.box: each for each in [*STAGES.values()][::-1]}  # the first stage of a box draws it
    logged: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    by_key: dict[str, str] = {row["key"]: group_of[row["revision"]] for row in lineage}
    for stage in stages:
        name: str = stage["name"]
        logged[by_key.get(stage["key"], _drawn(name).box)].append(stage)
    made_from: dict[str, set[str]] = {name: set() for name in [*group_of.values(), *logged]}
    for row in lineage:
        group = group_of[row["revision"]]
        made_from[group] |= {group_of[each] for each in row["inputs"].values() if each in group_of} - {group}
    layers = _layers(made_from)
    rows: defaultdict[int, int] = defaultdict(int)
    boxes = {}
    aside = {name for name in made_from if drawn.get(name, _drawn(name)).is_aside}
    for name in sorted(made_from, key=lambda name: (name in aside, layers[name])):
        beside = max(rows[layers[name]], int(name in aside))
        rows[layers[name]] = beside + 1
        ran = logged[name]
        cached, runs = sum(each["state"] == "cached" for each in ran), max(len(ran), 1)
        cached = cached if ran else runs  # made by an earlier run
        title = name + (f" ×{runs}" if runs > 1 and name != ASKED.box else "")
        boxes[name] = Box(title, sum(each["seconds"] for each in ran), runs, cached, layers[name], beside)
    arrows = [
        (source, to, *_carried(source, drawn.get(source), group_of, lineage))
        for to, sources in made_from.items()
        for source in sources
        if not any(source in _before(other, made_from) for other in sources - {source})
    ]
    return {"boxes": boxes, "arrows": sorted(arrows)}


def placed(graph: dict[str, Any], upright: bool) -> dict[str, Any]:
    """The graph with coordinates: boxes, and for each arrow its path and the place of its number."""
    along, across = UPRIGHT if upright else LYING
    depth = 1 + max(box.layer for box in graph["boxes"].values())
    breadth = 1 + max(box.row for box in graph["boxes"].values())

    def corner(name: str) -> tuple[int, int]:
        box = graph["boxes"][name]
        return (box.row * along, box.layer * across) if upright else (box.layer * along, box.row * across)

    arrows = []
    for source, to, number, what in graph["arrows"]:
        (x, y), (u, v) = corner(source), corner(to)
        if upright:
            x, y, u = x + WIDE // 2, y + HIGH, u + WIDE // 2
            path = f"M{x},{y} C{x},{y + 18} {u},{v - 18} {u},{v - 3}"
        else:
            x, y, v = x + WIDE, y + HIGH // 2, v + HIGH // 2
            path = f"M{x},{y} C{x + 22},{y} {u - 22},{v} {u - 3},{v}"
        arrows.append({"path": path, "x": (x + u) // 2, "y": (y + v) // 2, "number": number, "what": what})
    boxes = [
        {"x": corner(name)[0], "y": corner(name)[1], "box": box, "name": name} for name, box in graph["boxes"].items()
    ]
    columns, rows = (breadth, depth) if upright else (depth, breadth)
    width, height = columns * along - (along - WIDE), rows * across - (across - HIGH)
    return {"arrows": arrows, "boxes": boxes, "width": width, "height": height}


def _groups(lineage: list[dict[str, Any]]) -> dict[str, str]:
    """The box of each revision: its stage; an evaluation of probe questions belongs to the probe."""
    stage_of = {row["revision"]: row["stage"] for row in lineage}
    groups = {}
    for row in lineage:
        asked = stage_of.get(row["inputs"].get("questions", ""), "")
        probes = row["stage"] == evaluate.name and asked == probe_questions.name
        groups[row["revision"]] = (PROBED if probes else _drawn(row["stage"])).box
    return groups


def _drawn(stage: str) -> Drawn:
    """How a stage is drawn; one that this code does not have, by its name."""
    return STAGES.get(stage, Drawn(stage))


def _layers(made_from: dict[str, set[str]]) -> dict[str, int]:
    """The length of the longest way to each box."""
    layers: dict[str, int] = {}

    def layer(name: str) -> int:
        if name not in layers:
            layers[name] = 0  # a circle ends here
            layers[name] = 1 + max(map(layer, made_from[name]), default=-1)
        return layers[name]

    for name in made_from:
        layer(name)
    return layers


def _before(name: str, made_from: dict[str, set[str]]) -> set[str]:
    """Everything that a box was made from, directly or not."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = made_from[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def _carried(
    source: str, drawn: Drawn | None, group_of: dict[str, str], lineage: list[dict[str, Any]]
) -> tuple[str, str]:
    """The label of an arrow: a number and its noun; empty if there is nothing to count."""
    counted, what = (drawn.counted, drawn.what) if drawn else ("", "")
    numbers = [
        row["counts"][counted] for row in lineage if group_of[row["revision"]] == source and counted in row["counts"]
    ]
    return (f"{sum(numbers):,}", what) if numbers else ("", "")
