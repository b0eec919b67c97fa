"""Runs the laptop recipe anew for seeds 20, 21 and 22 and prints the README's table of results.

In: nothing; stores of its own in a temporary folder. Out: two Markdown tables. Takes about half an hour on two idle
cores. Each seed is run, run again with everything cached, and evaluated greedily. SFT is also trained for more epochs
on the same episodes, and with its best epoch chosen on held-out rows: GRPO must beat the best of the three.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from apprentice.tasks.analysis.comparison import compare
from apprentice.tasks.episodes.record import EvaluatedEpisode, read_episodes

ROOT = Path(__file__).parent.parent.parent
APPRENTICE = Path(sys.executable).parent / "apprentice"
RECIPE = ROOT / "deployments" / "recipes" / "laptop.yaml"
SEEDS = (20, 21, 22)
"""Not among those on which the recipe was tuned."""
EPOCHS = 1920
QUICK = ("grpo.max_steps=1", "guards=[]", "probe.questions=0")
LONGER = (f"sft.epochs={EPOCHS}", *QUICK)
"""SFT with eight times the epochs of the recipe: as long as SFT + GRPO."""
BEST = ("sft.control=true", *QUICK)
"""SFT with a tenth of the rows held out, and of its epochs that with the lowest loss on them."""


Report = dict[str, Any]


class Measured(NamedTuple):
    report: Report
    seconds: float
    memory_mb: int


def run(folder: Path, seed: int, *overrides: str) -> Measured:
    """One `apprentice run` as a process: its report, wall time, and the peak memory of all its processes together."""
    sets = [part for each in (f"seed={seed}", *overrides) for part in ("--set", each)]
    started = time.perf_counter()
    process = subprocess.Popen(
        [str(APPRENTICE), "run", str(RECIPE), *sets], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    peak = 0

    def watch() -> None:
        nonlocal peak
        while process.poll() is None:
            peak = max(peak, _memory(process.pid))
            time.sleep(0.5)

    watcher = threading.Thread(target=watch)
    watcher.start()
    out, _ = process.communicate()
    seconds = time.perf_counter() - started
    watcher.join()
    if process.returncode:
        raise SystemExit(f"seed {seed} ended with {process.returncode}:\n{out}")
    report = json.loads((Path(out.strip().splitlines()[-1]) / "report.json").read_text())
    return Measured(report, seconds, peak // 2**20)


def _memory(pid: int) -> int:
    """Proportional memory of a process and all below it, in bytes: what is shared counts once."""
    total = 0
    try:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            total += process.memory_full_info().pss
    except psutil.Error:  # a process ended between being listed and being asked
        return total
    return total


def episodes(folder: Path, report: Report, model: str) -> list[EvaluatedEpisode]:
    """The evaluation's episodes of a model."""
    (judged,) = (row["inputs"] for row in report["lineage"] if row["stage"] == "verdict")
    (snapshot,) = folder.glob(f"artifacts/datasets/*/*/snapshots/{judged[f'evaluations.{model}']}")
    return read_episodes(snapshot)


def row(folder: Path, seed: int, decoding: str, ours: Report, longer: Report, best: Report) -> str:
    """Accuracies, and GRPO against the best SFT: as the recipe has it, with more epochs, or its best epoch."""
    alone = [(ours, "sft"), (longer, "sft"), (best, "control")]
    rates = [report["models"][model]["accuracy"] for report, model in alone]
    report, model = alone[rates.index(max(rates))]
    change = compare(episodes(folder, report, model), episodes(folder, ours, "grpo"))
    difference = "{:+.1f} pp ({:+.1f} to {:+.1f})".format(*(100 * value for value in (change["delta"], *change["ci"])))
    shown = [f"{rate:.1%}" for rate in (*rates, ours["models"]["grpo"]["accuracy"])]
    return "| " + " | ".join([str(seed), decoding, *shown, difference]) + " |"


def main() -> None:
    results, costs = [], []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for seed in SEEDS:
            first = run(home, seed)
            again = run(home, seed)
            assert {stage["state"] for stage in again.report["stages"]} == {"cached"}
            for decoding in ("sampled", "greedy"):
                decoded = f"evaluate.decoding={decoding}"
                reports = [run(home, seed, *sets, decoded).report for sets in ((), LONGER, BEST)]
                results.append(row(home, seed, decoding, *reports))
                print(results[-1], file=sys.stderr)
            minutes, rest = divmod(round(first.seconds), 60)
            costs.append(f"| {seed} | {minutes} min {rest} s | {first.memory_mb} MB | {again.seconds:.1f} s |")
            print(costs[-1], file=sys.stderr)
    print(f"| seed | decoding | SFT | SFT, {EPOCHS} epochs | SFT, best epoch | SFT + GRPO | over the best SFT |")
    print("|" + " --- |" * 7)
    print("\n".join(results))
    print("\n| seed | first run | peak memory | again, all cached |\n|" + " --- |" * 4)
    print("\n".join(costs))


if __name__ == "__main__":
    main()
