"""Runs the laptop recipe anew for seeds 0, 1 and 2 and prints the README's table of results.

In: nothing; stores of its own in a temporary folder. Out: two Markdown tables. Takes about a quarter of an hour on two
idle cores. The second command of each seed is the same run again, everything cached; the third examines the same three
models with greedy decoding.
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

ROOT = Path(__file__).parent.parent.parent
APPRENTICE = Path(sys.executable).parent / "apprentice"
RECIPE = ROOT / "deployments" / "recipes" / "laptop.yaml"


class Measured(NamedTuple):
    report: dict[str, Any]
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


def row(seed: int, decoding: str, report: dict[str, Any]) -> str:
    models = report["models"]
    cells = [str(seed), decoding]
    for name in ("base", "sft", "control", "grpo"):
        rates = ("format_compliance", "accuracy")
        cells += [f"{models[name][rate]:.1%}" if name in models else "–" for rate in rates]
    for change in (each for each in reversed(report["comparisons"]) if each["to"] == "grpo"):
        low, high = (100 * bound for bound in change["ci"])
        cells.append(
            f"{100 * change['delta_accuracy']:+.1f} pp ({low:+.1f} to {high:+.1f}), p = {change['p_value']:.1g}"
        )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    results, costs = [], []
    with tempfile.TemporaryDirectory() as folder:
        for seed in (0, 1, 2):
            first = run(Path(folder), seed)
            again = run(Path(folder), seed)
            assert {stage["state"] for stage in again.report["stages"]} == {"cached"}
            greedy = run(Path(folder), seed, "evaluate.decoding=greedy")
            results += [row(seed, "sampled", first.report), row(seed, "greedy", greedy.report)]
            minutes, rest = divmod(round(first.seconds), 60)
            costs.append(f"| {seed} | {minutes} min {rest} s | {first.memory_mb} MB | {again.seconds:.1f} s |")
            print(results[-2], results[-1], costs[-1], sep="\n", file=sys.stderr)
    rates = " | ".join(f"{name} format | accuracy" for name in ("base", "SFT", "SFT to its best", "GRPO"))
    print(f"| seed | decoding | {rates} | SFT → GRPO | SFT to its best → GRPO |")
    print("|" + " --- |" * 12)
    print("\n".join(results))
    print("\n| seed | first run | peak memory | again, all cached |\n|" + " --- |" * 4)
    print("\n".join(costs))


if __name__ == "__main__":
    main()
