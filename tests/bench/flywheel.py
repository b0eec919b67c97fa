"""Some rounds against one longer training, the student as its own teacher, and what many tries add to a weak teacher.

In: nothing; stores of its own in a temporary folder. Out: a table, then one line of JSON: a row per seed and variant.
`--recipe` and `--seeds` name others, `--only` some variants; `--set` changes fields of both sides; `--toy` runs two
rounds of the toy recipe with one seed. The single run is given in one piece what the rounds were given: as many of the
teacher's episodes, as many steps of GRPO, and SFT of as many tokens. Both champions are then compared on a window on
which neither was judged.
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
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.analysis.past_rounds import past_rounds
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.files.json_lines import read_rows
from tests.bench.laptop import APPRENTICE, ROOT

TOY = ["sft.epochs=10", "sft.learning_rate=1.0e-2", "gate.metric=mean_score"]
WEAK = ["teacher.scripted_error_rate=0.7", "collect.asks=1", "collect.teacher_questions=", "windows.collect.size=426"]
"""A teacher that is right in three of ten, and asked every question once. With this window it is right in one of the
first three questions of every round, without which the preflight would not let it teach."""
VARIANTS = {
    "teacher": ([], []),
    "no teacher after round 0": ([], ["teacher="]),
    "weak teacher": ([*WEAK, "collect.students=0"],) * 2,
    "weak teacher, 8 tries": ([*WEAK, "collect.students=8"],) * 2,
}
"""What changes round 0, and what changes the later ones."""
POISONS = ("diverging training", "wrong rollouts")
KEPT = ("mix_rollouts", "filter_rollouts")
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


def rows_of(folder: Path, report: dict[str, Any], stages: tuple[str, ...], name: str) -> list[dict[str, Any]]:
    """The rows of a dataset that one of the stages made for a run."""
    made = next(row for row in report["lineage"] if row["stage"] in stages)
    return read_rows(folder / "artifacts/datasets" / made["repository"] / "snapshots" / made["revision"] / name)


def kept_share(folder: Path, report: dict[str, Any]) -> float:
    """The share of the questions of the collect window of which a new rollout was kept."""
    kept = rows_of(folder, report, KEPT, "kept.jsonl")
    questions = rows_of(folder, report, ("questions", "fresh_questions"), "questions.jsonl")
    seeds = {row["seed"] for row in questions if row["purpose"] == "collect" and row["used"]}
    return round(len(seeds & {row["seed"] for row in kept}) / len(seeds), 3)


def rounds_of(folder: Path, recipe: Path, first: list[str], later: list[str], rounds: int) -> list[dict[str, Any]]:
    """Some rounds, each by a command of its own, as a schedule runs them."""
    found = []
    for number in range(rounds):
        began, overrides = time.perf_counter(), later if number else first
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
                "bought": int(history["rows"][-1]["bought"].replace(",", "")),
                "kept": report["collect"]["kept"],
                "kept_share": kept_share(folder, report),
                "train_tokens": train_tokens(load_recipe(recipe, overrides), report),
                "seconds": round(time.perf_counter() - began, 1),
            }
        )
    return found


def train_tokens(recipe: Recipe, report: dict[str, Any]) -> int:
    """Tokens of SFT's rows, of median length, in all epochs, and of GRPO's completions."""
    assert recipe.sft
    a_step = recipe.sft.batch_size * recipe.sft.gradient_accumulation
    rows = a_step * recipe.sft.args.get("max_steps", 0) or report["collect"]["kept"] * recipe.sft.epochs
    return round(rows * report["lengths"]["p50"]) + report["effort"]["tokens"]


def single_of(folder: Path, recipe: Path, overrides: list[str], rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """One run that is given what the rounds were given: as many of the teacher's episodes, tokens and steps."""
    given, first = load_recipe(recipe, overrides), rounds[0]
    assert given.sft
    bought = sum(each["bought"] for each in rounds)
    rows = bought * first["kept"] / first["bought"]
    steps = given.sft.args.get("max_steps")
    longer = [
        f"{'collect.teacher_questions' if given.collect.teacher_questions else 'windows.collect.size'}={bought}",
        f"windows.grpo.size={len(rounds) * given.windows.grpo.size}",
        f"sft.args.max_steps={len(rounds) * steps}"
        if steps
        else f"sft.epochs={round(given.sft.epochs * sum(each['kept'] for each in rounds) / rows)}",
        *([f"grpo.max_steps={len(rounds) * given.grpo.max_steps}"] if given.grpo else []),
        "name=single",
    ]
    began = time.perf_counter()
    said = command(folder, "run", str(recipe), *sets([*overrides, *longer]))
    report = json.loads((Path(said.strip().splitlines()[-1]) / "report.json").read_text())
    model = report["models"]["grpo" if given.grpo else "sft"]
    return {
        "accuracy": model["accuracy"],
        "ci": model["ci"]["accuracy"],
        "promoted": report["is_champion"],
        "bought": bought,
        "train_tokens": train_tokens(load_recipe(recipe, [*overrides, *longer]), report),
        "seconds": round(time.perf_counter() - began, 1),
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


def mislabelled(folder: Path, report: dict[str, Any]) -> Path:
    """Kept rollouts in which the answer is the word itself, still with reward 1.0, as a broken filter lets them in."""
    rows = rows_of(folder, report, KEPT, "kept.jsonl")
    for row in rows:
        call = row["messages"][2]["tool_calls"][0]["function"]
        call["arguments"] = json.dumps({"answer": json.loads(call["arguments"])["answer"][::-1]})
    (folder / "wrong").mkdir()
    (folder / "wrong" / "kept.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "wrong"


def poisoned(seed: int, kind: str) -> str:
    """What became of a round with poison in it; a model with NaN among its weights is not even released."""
    toy = ROOT / "deployments/recipes/toy.yaml"
    own = [f"seed={seed}", *TOY]
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        said = command(folder, "improve", str(toy), *sets(own))
        report = json.loads((Path(said.strip().splitlines()[-1]) / "report.json").read_text())
        if kind == "wrong rollouts":
            own.append(f"collect.dataset={mislabelled(folder, report)}")
        else:
            own += ["sft.learning_rate=0.5", "grpo.learning_rate=0.5"]
        subprocess.run([str(APPRENTICE), "improve", str(toy), *sets(own)], cwd=home, capture_output=True)
        found = [each for each in past_rounds(LocalStore(folder / "artifacts", "toy")) if each.number]
        return "promoted" if any(each.release.promoted for each in found) else "rejected" if found else "stopped"


def table(rows: list[dict[str, Any]]) -> None:
    """A row a seed and variant: every round's champion on its own window, then both champions on a new one."""
    print("| seed | variant | accuracy after each round | bought | kept of the questions | single run | over it |")
    print("|" + " --- |" * 7)
    for row in rows:
        rounds, single, over = row["rounds"], row.get("single"), row.get("compared", {})
        cells = [
            str(row["seed"]),
            row["variant"],
            ", ".join(f"{each['accuracy']:.1%}" for each in rounds),
            ", ".join(str(each["bought"]) for each in rounds),
            ", ".join(f"{each['kept_share']:.0%}" for each in rounds),
            f"{single['accuracy']:.1%}, {single['bought']} bought" if single else "",
            "{:+.1f} pp ({:+.1f} to {:+.1f})".format(*(100 * each for each in (over["delta"], *over["ci"])))
            if "delta" in over
            else "",
        ]
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", type=Path, default=ROOT / "deployments/recipes/flywheel.yaml")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--only", nargs="+", choices=[*VARIANTS, *POISONS], default=[*VARIANTS, *POISONS])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--toy", action="store_true")
    given = parser.parse_args()
    recipe, overrides = given.recipe.absolute(), given.set
    if given.toy:
        recipe, overrides = ROOT / "deployments/recipes/toy.yaml", [*TOY, *given.set]
    rows = []
    rounds = 2 if given.toy else 4
    for seed in given.seeds or ([0] if given.toy else [0, 1, 2]):
        for variant, changed in VARIANTS.items():
            if variant not in given.only:
                continue
            with tempfile.TemporaryDirectory() as home:
                folder, own = Path(home), [f"seed={seed}", *overrides]
                first, later = ([*own, *each] for each in changed)
                row: dict[str, Any] = {"seed": seed, "variant": variant}
                row["rounds"] = rounds_of(folder, recipe, first, later, min(rounds, 3) if "weak" in variant else rounds)
                if "weak" not in variant:
                    row["single"] = single_of(folder, recipe, first, row["rounds"])
                    row["compared"] = compared(folder, recipe, own)
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    ends = {
        kind: [poisoned(seed, kind) for seed in range(1 if given.toy else 10)] for kind in POISONS if kind in given.only
    }
    table(rows)
    print(json.dumps({"rows": rows, "poisoned": ends, "rounds": rounds, "recipe": recipe.stem}))


if __name__ == "__main__":
    main()
