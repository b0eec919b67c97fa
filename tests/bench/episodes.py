"""Where GRPO stops paying: the laptop recipe with more and more of the teacher's episodes.

In: nothing; a store of its own in a temporary folder. Out: a Markdown table, and docs/episodes.png. Takes about half an
hour. SFT makes as many steps with any number of episodes. Seeds and words are those on which the recipe was tuned; as
times do not matter, both seeds run at once.
"""

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import NamedTuple

from tests.bench.laptop import ROOT, run

SEEDS = (12, 13)
EPISODES = (24, 48, 96, 192, 384)
STEPS = 240 * 48
"""Epochs × episodes, as in the recipe; at least 40 epochs."""
PICTURE = ROOT / "docs" / "episodes.png"


class Point(NamedTuple):
    seed: int
    episodes: int
    sft: float
    grpo: float


def measure(folder: Path, seed: int, episodes: int) -> Point:
    """Sampled accuracies on the tuning words."""
    sets = (
        f"windows.collect.size={episodes}",
        "windows.evaluate.start=250000000",
        f"sft.epochs={max(40, STEPS // episodes)}",
        "guards=[]",
    )
    models = run(folder, seed, *sets).report["models"]
    point = Point(seed, episodes, models["sft"]["accuracy"], models["grpo"]["accuracy"])
    print(point, file=sys.stderr)
    return point


def draw(points: list[Point], to: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for style, seed in zip("-:", SEEDS, strict=True):
        own = [point for point in points if point.seed == seed]
        given = [point.episodes for point in own]
        axes.plot(given, [100 * point.grpo for point in own], f"o{style}", color="C0", label=f"SFT + GRPO, seed {seed}")
        axes.plot(given, [100 * point.sft for point in own], f"s{style}", color="C1", label=f"SFT, seed {seed}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(EPISODES, [str(each) for each in EPISODES])
    axes.set(xlabel="the teacher's episodes", ylabel="accuracy on unseen words, %", ylim=(0, 100))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(to, dpi=130)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(SEEDS)) as pool:
        given = [(episodes, seed) for episodes, seed in product(EPISODES, SEEDS)]
        points = list(pool.map(lambda each: measure(Path(folder), each[1], each[0]), given))
    draw(points, PICTURE)
    print("| episodes | seed | SFT | SFT + GRPO | gain |\n|" + " --- |" * 5)
    for each in points:
        gain = 100 * (each.grpo - each.sft)
        print(f"| {each.episodes} | {each.seed} | {each.sft:.1%} | {each.grpo:.1%} | {gain:+.1f} pp |")


if __name__ == "__main__":
    main()
