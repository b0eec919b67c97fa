"""The graph of a run: which stage made what from what, with seconds, cache hits and counts on the arrows.

In: the report's lineage and its log of stages. Out: boxes and arrows with coordinates, once lying and once upright.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from apprentice.tasks.engine.stage import Drawn
from apprentice.tasks.questions import PROBED, QUESTIONS_BOX

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


def run_graph(
    lineage: list[dict[str, Any]], stages: list[dict[str, Any]], boxes: Mapping[str, Drawn]
) -> dict[str, Any]:
    """Boxes by name, and arrows (from, to, number, what) without those that a longer way makes needless.

    Args:
        boxes: How each stage is drawn, by its name; one without an entry is drawn by its name.
    """
    group_of = _groups(lineage, boxes)
    drawn = {each.box: each for each in [*boxes.values()][::-1]}  # the first stage of a box draws it
    logged: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    by_key: dict[str, str] = {row["key"]: group_of[row["revision"]] for row in lineage}
    for stage in stages:
        name: str = stage["name"]
        logged[by_key.get(stage["key"], boxes.get(name, Drawn(name)).box)].append(stage)
    made_from: dict[str, set[str]] = {name: set() for name in [*group_of.values(), *logged]}
    for row in lineage:
        group = group_of[row["revision"]]
        made_from[group] |= {group_of[each] for each in row["inputs"].values() if each in group_of} - {group}
    layers = _layers(made_from)
    rows: defaultdict[int, int] = defaultdict(int)
    found: dict[str, Box] = {}
    aside = {name for name in made_from if drawn.get(name, boxes.get(name, Drawn(name))).is_aside}
    for name in sorted(made_from, key=lambda name: (name in aside, layers[name])):
        beside = max(rows[layers[name]], int(name in aside))
        rows[layers[name]] = beside + 1
        ran = logged[name]
        cached, runs = sum(each["state"] == "cached" for each in ran), max(len(ran), 1)
        cached = cached if ran else runs  # made by an earlier run
        title = name + (f" ×{runs}" if runs > 1 and name != QUESTIONS_BOX.box else "")
        found[name] = Box(title, sum(each["seconds"] for each in ran), runs, cached, layers[name], beside)
    arrows = [
        (source, to, *_carried(source, drawn.get(source), group_of, lineage))
        for to, sources in made_from.items()
        for source in sources
        if not any(source in _before(other, made_from) for other in sources - {source})
    ]
    return {"boxes": found, "arrows": sorted(arrows)}


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


def _groups(lineage: list[dict[str, Any]], boxes: Mapping[str, Drawn]) -> dict[str, str]:
    """The box of each revision: its stage; an evaluation of probe questions belongs to the probe."""
    stage_of = {row["revision"]: row["stage"] for row in lineage}
    groups = {}
    for row in lineage:
        question_stage = stage_of.get(row["inputs"].get("questions", ""), "")
        probes = row["stage"] == "evaluate" and question_stage == "probe_questions"
        groups[row["revision"]] = (PROBED if probes else boxes.get(row["stage"], Drawn(row["stage"]))).box
    return groups


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
