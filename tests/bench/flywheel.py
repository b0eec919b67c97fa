"""Four rounds against one longer training, the student as its own teacher, and what many tries add to a weak teacher.

In: nothing; stores of its own in a temporary folder. Out: one line of JSON with a row per seed and variant.
`--recipe` and `--seeds` name others; `--set` changes fields of both sides; `--toy` looks at everything in minutes.
The single run is given the tokens of the four rounds in one piece: its windows and trainings are four times as long.
Both champions are then compared on a window on which neither was judged.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from apprentice.flows.recipe.loading import load_recipe
from apprentice.tasks.analysis.history import past_rounds
from apprentice.tasks.artifacts.local import LocalStore
from tests.bench.laptop import APPRENTICE, ROOT

ROUNDS = 4
TOY = ["sft.epochs=10", "sft.learning_rate=1.0e-2", "gate.metric=mean_score"]
NEW_SEED = 250_000_000
"""First seed of the comparison: in the block of evaluations, beyond the windows of all rounds."""


def command(folder: Path, *arguments: str) -> str:
    done = subprocess.run([str(APPRENTICE), *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-2000:]}"
        )
    return done.stdout


def sets(overrides: list[str]) -> list[str]:
    return [part for each in overrides for part in ("--set", each)]


def rounds_of(folder: Path, recipe: Path, overrides: list[str]) -> list[dict[str, Any]]:
    """Four rounds, each by a command of its own, as a schedule runs them."""
    found = []
    for number in range(ROUNDS):
        began = time.perf_counter()
        said = command(folder, "improve", str(recipe), *sets(overrides))
        at = Path(said.strip().splitlines()[-1])
        report, history = (json.loads((at / name).read_text()) for name in ("report.json", "history.json"))
        point = history["points"][-1]
        found.append(
            {
                "round": number,
                "accuracy": point["accuracy"],
                "ci": point["ci"],
                "long_run": point["long_run"],
                "promoted": report["is_champion"],
                "train_tokens": sum(report["effort"]["trained_on"].values()),
                "seconds": round(time.perf_counter() - began, 1),
            }
        )
    return found


def single_of(folder: Path, recipe: Path, overrides: list[str]) -> dict[str, Any]:
    """One run with windows and trainings as long as those of all rounds together."""
    given = load_recipe(recipe, overrides)
    assert given.sft
    assert given.grpo
    longer = [
        f"windows.collect.size={ROUNDS * given.windows.collect.size}",
        f"windows.grpo.size={ROUNDS * given.windows.grpo.size}",
        f"grpo.max_steps={ROUNDS * given.grpo.max_steps}",
        "name=single",
    ]
    began = time.perf_counter()
    said = command(folder, "run", str(recipe), *sets([*overrides, *longer]))
    report = json.loads((Path(said.strip().splitlines()[-1]) / "report.json").read_text())
    key = next(row for row in report["lineage"] if row["stage"] in ("grpo", "sft") and "model" not in row)["key"]
    model = report["models"]["grpo"]
    return {
        "accuracy": model["accuracy"],
        "ci": model["ci"]["accuracy"],
        "promoted": report["is_champion"],
        "train_tokens": sum(report["effort"]["trained_on"].values()),
        "seconds": round(time.perf_counter() - began, 1),
        "key": key,
    }


def compared(folder: Path, recipe: Path, overrides: list[str]) -> dict[str, Any]:
    """Both champions on a window on which neither was judged; the difference is the rounds' less the single run's."""
    champions = []
    for name in ("single", load_recipe(recipe, []).name):
        found = folder / "artifacts/models/local" / f"{name}-model"
        tag = found / "refs" / "champion"
        champions.append(str(found / "snapshots" / tag.read_text()) if tag.exists() else "")
    if not all(champions):
        return {"champions": champions}
    models = [part for each in champions for part in ("--model", each)]
    said = command(
        folder,
        "evaluate",
        str(recipe),
        *models,
        "--seed",
        str(NEW_SEED),
        "--questions",
        "1000",
        "--json",
        *sets(overrides),
    )
    found = json.loads(said.strip().splitlines()[-1])
    return {"delta": found["comparisons"][0]["delta"], "ci": found["comparisons"][0]["ci"]}


def poisoned(seed: int) -> bool:
    """Whether a round whose training diverges was promoted; one that ends with NaN is not even released."""
    toy = ROOT / "deployments/recipes/toy.yaml"
    with tempfile.TemporaryDirectory() as home:
        command(Path(home), "improve", str(toy), *sets([f"seed={seed}", *TOY]))
        diverges = sets([f"seed={seed}", *TOY, "sft.learning_rate=0.5", "grpo.learning_rate=0.5"])
        subprocess.run([str(APPRENTICE), "improve", str(toy), *diverges], cwd=home, capture_output=True)
        return any(
            each.number and each.release.promoted for each in past_rounds(LocalStore(Path(home) / "artifacts", "toy"))
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", type=Path, default=ROOT / "deployments/recipes/flywheel.yaml")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--toy", action="store_true")
    given = parser.parse_args()
    recipe, overrides = given.recipe.absolute(), given.set
    if given.toy:
        recipe, overrides = ROOT / "deployments/recipes/toy.yaml", [*TOY, *given.set]
    rows = []
    for seed in given.seeds:
        variants = {
            "teacher": [],
            "no teacher after round 0": ["collect.students=8", "teacher="],
            "weak teacher": ["teacher.scripted_error_rate=0.7", "collect.students=0"],
            "weak teacher, 8 tries": ["teacher.scripted_error_rate=0.7", "collect.students=8"],
        }
        for variant, changed in variants.items():
            with tempfile.TemporaryDirectory() as home:
                folder, own = Path(home), [f"seed={seed}", *overrides]
                if variant == "no teacher after round 0":  # something must be right for it to begin from
                    command(folder, "improve", str(recipe), *sets(own))
                row: dict[str, Any] = {"seed": seed, "variant": variant}
                row["rounds"] = rounds_of(folder, recipe, [*own, *changed])
                if variant == "teacher":
                    row["single"] = single_of(folder, recipe, own)
                    row["compared"] = compared(folder, recipe, own)
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    promoted = sum(poisoned(seed) for seed in range(2 if given.toy else 10))
    print(json.dumps({"rows": rows, "poisoned_promoted": promoted, "rounds": ROUNDS, "recipe": recipe.stem}))


if __name__ == "__main__":
    main()
