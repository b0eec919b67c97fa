"""Runs the laptop variant of every environment's recipe, and shows that each moves its own reward.

In: nothing; a store of its own in a temporary folder. Out: a table, then one line of JSON with the same figures: the
metric, the model before and after, and the 95% interval of their difference on the same held-out questions.
`--only wordle catch` runs some; `--seed 1` other weights and questions.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from apprentice.envs.catalog import CATALOGUE

ROOT = Path(__file__).parent.parent.parent
APPRENTICE = Path(sys.executable).parent / "apprentice"
RECIPES = ROOT / "deployments" / "recipes"
BY_GRPO = ("reasoning_gym",)
"""Where GRPO is to better SFT, said beforehand; in the other games SFT is to better the student as it was built."""


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
    before, after = ("sft", "grpo") if name in BY_GRPO else ("base", "sft")
    change = next(each for each in report["comparisons"] if (each["from"], each["to"]) == (before, after))
    metric, models = change["metric"], report["models"]
    return {
        "name": name,
        "metric": metric,
        "models": f"{before} → {after}",
        "before": round(models[before][metric], 4),
        "after": round(models[after][metric], 4),
        "ci": [round(bound, 4) for bound in change["ci"]],
        "n": models[after]["n"],
        "seconds": round(time.perf_counter() - began),
    }


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
    table = Table("environment", "metric", "models", "n", "before", "after", "95% interval of the difference", "time")
    measured = [row for row in rows if "failed" not in row]
    for row in measured:
        low, high = (f"{100 * bound:+.1f} pp" for bound in row["ci"])
        rates = (f"{row['before']:.1%}", f"{row['after']:.1%}")
        table.add_row(
            row["name"], row["metric"], row["models"], str(row["n"]), *rates, f"{low} to {high}", f"{row['seconds']} s"
        )
    Console(width=120).print(table)
    print(json.dumps({"envs": rows}, ensure_ascii=False))
    wrong = [f"{row['name']} failed: {row['failed']}" for row in rows if "failed" in row]
    wrong += [f"{row['name']} moved nothing with confidence" for row in measured if row["ci"][0] <= 0]
    if wrong:
        raise SystemExit("; ".join(wrong))


if __name__ == "__main__":
    main()
