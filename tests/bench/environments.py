"""Runs the laptop variant of every environment's recipe, and shows that each moves its own reward.

In: nothing; a store of its own in a temporary folder. Out: a Markdown table, then one line of JSON with its figures:
the accuracy of all models on the same held-out questions, and GRPO's difference from SFT, which these recipes train to
its best, with its 95% interval. `--only wordle catch` runs some; `--seed 1` other weights and, in training, other
questions.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from apprentice.envs.catalog import CATALOGUE

ROOT = Path(__file__).parent.parent.parent
APPRENTICE = Path(sys.executable).parent / "apprentice"
RECIPES = ROOT / "deployments" / "recipes"
LABELS = {"base": "untrained", "sft": "best SFT", "grpo": "SFT + GRPO"}


def recipe_of(name: str) -> Path:
    """The laptop variant."""
    return RECIPES / ("laptop.yaml" if name == "reasoning_gym" else f"{name}-laptop.yaml")


def run(name: str, folder: Path, seed: int) -> dict[str, Any]:
    """One environment's row; where its run fails, why."""
    began = time.perf_counter()
    command = [str(APPRENTICE), "run", str(recipe_of(name)), "--set", f"seed={seed}"]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return {"name": name, "failed": done.stdout.strip().splitlines()[-1] or f"exit code {done.returncode}"}
    report = json.loads((Path(folder, done.stdout.strip().splitlines()[-1]) / "report.json").read_text())
    differences = {(each["from"], each["to"]): each for each in report["comparisons"]}
    return {
        "name": name,
        "n": report["models"]["sft"]["n"],
        "accuracy": {model: round(rates["accuracy"], 4) for model, rates in report["models"].items()},
        "learned": [round(bound, 4) for bound in differences["base", "sft"]["ci"]],
        "grpo_over_sft": round(differences["sft", "grpo"]["delta"], 4),
        "ci": [round(bound, 4) for bound in differences["sft", "grpo"]["ci"]],
        "seconds": round(time.perf_counter() - began),
    }


def as_markdown(row: dict[str, Any]) -> str:
    """A row of docs/benchmarks.md."""
    rates = [f"{row['accuracy'][model]:.1%}" for model in LABELS]
    low, high = (f"{100 * bound:+.1f}" for bound in row["ci"])
    gain = f"{100 * row['grpo_over_sft']:+.1f} pp ({low} to {high})"
    return "| " + " | ".join([f"`{row['name']}`", *rates, gain, str(row["n"]), f"{row['seconds']} s"]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(CATALOGUE), default=list(CATALOGUE))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in given.only:
            rows.append(run(name, Path(folder), given.seed))
            print(json.dumps(rows[-1], ensure_ascii=False), file=sys.stderr)
    print(f"| environment | {' | '.join(LABELS.values())} | GRPO over SFT | questions | time |")
    print(f"|{' --- |' * (len(LABELS) + 4)}")
    measured = [row for row in rows if "failed" not in row]
    for row in measured:
        print(as_markdown(row))
    print(json.dumps({"envs": rows}, ensure_ascii=False))
    wrong = [f"{row['name']} failed: {row['failed']}" for row in rows if "failed" in row]
    wrong += [f"{row['name']}: SFT taught nothing with confidence" for row in measured if row["learned"][0] <= 0]
    if wrong:
        raise SystemExit("; ".join(wrong))


if __name__ == "__main__":
    main()
