"""Where GRPO stops paying: the laptop recipe with 100 to 3,000 bought episodes, SFT alone against SFT + GRPO.

In: nothing; a store of its own in a temporary folder. Out: a Markdown table, and docs/episodes.png. Takes about half an
hour on two idle cores. GRPO's questions, its steps and the evaluation are the same for every number of episodes.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.laptop import ROOT, run

EPOCHS = {100: 240, 300: 60, 1000: 40, 3000: 25}
"""Epochs of SFT by bought episodes. 100 episodes need as many steps as 300 to be learned."""
DECODINGS = ("sampled", "greedy")


class Point(NamedTuple):
    """The accuracies after one number of episodes, with one decoding."""

    episodes: int
    decoding: str
    sft: float
    grpo: float
    low: float
    """Lower end of the difference's 95% interval."""
    high: float

    def row(self) -> str:
        gained = f"{100 * (self.grpo - self.sft):+.1f} pp ({100 * self.low:+.1f} to {100 * self.high:+.1f})"
        return f"| {self.episodes:,} | {self.decoding} | {self.sft:.1%} | {self.grpo:.1%} | {gained} |"


def point(episodes: int, decoding: str, report: dict[str, Any]) -> Point:
    models = report["models"]
    change = next(each for each in report["comparisons"] if (each["from"], each["to"]) == ("sft", "grpo"))
    return Point(episodes, decoding, models["sft"]["accuracy"], models["grpo"]["accuracy"], *change["ci"])


def measure(folder: Path, seed: int, episodes: int) -> list[Point]:
    """One training, evaluated with both decodings; the second run of the recipe finds the training in the store."""
    sets = (f"windows.collect.size={episodes}", f"sft.epochs={EPOCHS[episodes]}")
    return [
        point(episodes, decoding, run(folder, seed, *sets, f"evaluate.decoding={decoding}").report)
        for decoding in DECODINGS
    ]


def draw(points: list[Point], picture: Path) -> None:
    """Accuracy against bought episodes, one panel for each decoding."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(DECODINGS), figsize=(9, 3.6), sharey=True, layout="constrained")
    for panel, decoding in zip(panels, DECODINGS, strict=True):
        shown = [each for each in points if each.decoding == decoding]
        bought = [each.episodes for each in shown]
        panel.plot(bought, [each.sft for each in shown], marker="o", label="SFT")
        panel.plot(bought, [each.grpo for each in shown], marker="s", label="SFT + GRPO")
        panel.set_xscale("log")
        panel.set_xticks(bought, [f"{each:,}" for each in bought], minor=False)
        panel.set_xticks([], minor=True)
        panel.set_ylim(0, 1)
        panel.yaxis.set_major_formatter("{x:.0%}")
        panel.set_title(decoding)
        panel.set_xlabel("teacher's episodes bought")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("accuracy, unseen words")
    panels[0].legend()
    figure.savefig(picture, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "episodes.png")
    parser.add_argument("--episodes", type=int, nargs="+", choices=EPOCHS, default=list(EPOCHS))
    given = parser.parse_args()
    points: list[Point] = []
    with tempfile.TemporaryDirectory() as folder:
        for episodes in given.episodes:
            points += measure(Path(folder), given.seed, episodes)
            print(*(each.row() for each in points[-len(DECODINGS) :]), sep="\n", file=sys.stderr)
    draw(points, given.picture)
    print("| episodes bought | decoding | SFT | SFT + GRPO | difference (95% interval) |\n|" + " --- |" * 5)
    print("\n".join(each.row() for each in points))


if __name__ == "__main__":
    main()
