"""Runs the recipe of `number` with seeds that it was not tuned on: the student against the teacher that taught it.

In: nothing; stores of its own in a temporary folder. Out: a Markdown table, then one line of JSON. Each seed is a whole
run, whose champion then answers the same unseen questions as the teacher, by `apprentice evaluate`. `--seeds 30` runs
one.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
APPRENTICE = str(Path(sys.executable).parent / "apprentice")
RECIPE = str(ROOT / "deployments" / "recipes" / "number-laptop.yaml")
SEEDS = (33, 34, 35)


def said(folder: Path, *command: str) -> str:
    """What the command printed; its last line is its result."""
    return subprocess.run([APPRENTICE, *command], cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout


def measured(folder: Path, seed: int) -> dict[str, Any]:
    """One seed's row."""
    folder.mkdir()
    given = [RECIPE, "--set", f"seed={seed}"]
    began = time.perf_counter()
    page = said(folder, "run", *given).strip().splitlines()[-1]
    seconds = time.perf_counter() - began
    report = json.loads((folder / page / "report.json").read_text())
    shown = said(folder, "evaluate", *given, "--model", "teacher", "--model", "champion", "--json")
    found = json.loads(shown.strip().splitlines()[-1])
    (against,) = found["comparisons"]
    return {
        "seed": seed,
        "teacher": found["models"]["teacher"]["accuracy"],
        "sft": report["models"]["sft"]["accuracy"],
        "grpo": found["models"]["champion"]["accuracy"],
        "over_teacher": against["delta"],
        "ci": against["ci"],
        "questions": found["models"]["teacher"]["n"],
        "seconds": round(seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    rows = []
    with tempfile.TemporaryDirectory() as home:
        for seed in parser.parse_args().seeds:
            rows.append(measured(Path(home) / str(seed), seed))
            print(rows[-1], file=sys.stderr, flush=True)
    print("| seed | teacher | SFT | SFT + GRPO | over the teacher | run |\n|" + " --- |" * 6)
    for row in rows:
        rates = " | ".join(f"{row[name]:.1%}" for name in ("teacher", "sft", "grpo"))
        low, high = (f"{100 * bound:+.1f}" for bound in row["ci"])
        minutes, rest = divmod(row["seconds"], 60)
        gain = f"{100 * row['over_teacher']:+.1f} pp ({low} to {high})"
        print(f"| {row['seed']} | {rates} | {gain} | {minutes} min {rest} s |")
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
