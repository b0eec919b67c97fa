"""What written thoughts are worth: the same student, task, episodes and steps with thinking off and on.

In: nothing; stores of its own in a temporary folder, or in --home, which keeps them: a run that has finished there is
not run again. Out: a table, then one line of JSON with a row for each task, seed and way of thinking:
`sft` and `grpo` are accuracies on unseen questions, `ci` is the interval of GRPO's gain over SFT, `tokens` those of an
answer after GRPO, `seconds` those of the whole run. SmolLM2 takes an hour a row on two idle cores; `--small` runs a
built student of 0.02 million parameters in a minute a row, to try the bench itself.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from apprentice.flows.recipe.loading import load_recipe

ROOT = Path(__file__).parent.parent.parent
APPRENTICE = str(Path(sys.executable).parent / "apprentice")
RECIPES = ROOT / "deployments" / "recipes"
MODEL = ROOT / "build" / "smollm2" / "model"
SEEDS = (44, 45, 46)
NUMBERS = {"min_numbers": 3, "max_numbers": 5, "max_decimals": 0, "min_value": -99, "max_value": 99}
SUMS = {"min_terms": 2, "max_terms": 3, "min_digits": 2, "max_digits": 2}
TASKS = {
    "chain_sum": {"name": "reasoning_gym", "settings": {"dataset": "chain_sum", "config": SUMS}},
    "number_filtering": {"name": "reasoning_gym", "settings": {"dataset": "number_filtering", "config": NUMBERS}},
    "number": {"name": "number", "settings": {"most": 31, "guesses": 5}},
}
GRPO = {"number": {"max_completion_length": 288, "batch_size": 32}}
"""What a task needs otherwise than the recipe: a completion has all turns."""
THINKING = ("off", "text")
SMALL = {
    "student": {"build": {"hidden_size": 32, "intermediate_size": 64, "layers": 1, "heads": 2, "max_positions": 1024}},
    "windows": {"collect": {"size": 40}, "grpo": {"size": 40}, "evaluate": {"size": 60}},
    "sft": {"epochs": 2, "batch_size": 8, "gradient_accumulation": 1, "learning_rate": 3e-3},
    "probe": {"questions": 8, "on_hopeless": "go_on"},
    "grpo": {"max_steps": 2, "batch_size": 8, "gradient_accumulation": 1, "num_generations": 4},
    "evaluate": {"questions": 20, "max_new_tokens": 40, "batch_size": 20},
    "gate": {"at_least": 0.0},
}


def recipe(task: str, seed: int, thinking: str, small: bool) -> dict[str, Any]:
    """The recipe on a task; the same episodes, epochs and steps whether the student thinks or not."""
    path = RECIPES / ("toy.yaml" if small else "smollm2.yaml")
    sets = [] if small else [f"student.model={MODEL}", "student.revision=null"]
    left_out: Any = {"environment": {"version", "code"}, "teacher": {"script", "thoughts"}, "guards": True}
    whole = load_recipe(path, sets).model_dump(mode="json", exclude=left_out)
    whole |= {"name": f"think-{task.replace('_', '-')}", "seed": seed, "environment": TASKS[task], "report_to": []}
    whole |= SMALL if small else {}
    thinks = thinking != "off"
    whole["student"] |= {"thinking": {"mode": thinking, "max_tokens": 96} if thinks else "off"}
    whole["evaluate"] |= {"thinking": thinks}
    whole["grpo"] |= {} if small else GRPO.get(task, {})
    return whole


def measured(home: Path, task: str, seed: int, thinking: str, small: bool, sets: list[str]) -> dict[str, Any]:
    """One row; runs it unless `home` has it."""
    folder = home / f"{task}-{seed}-{thinking}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(json.dumps(recipe(task, seed, thinking, small)))
    if not list(folder.glob("runs/*/report.html")):
        given = [word for each in sets for word in ("--set", each)]
        done = subprocess.run([APPRENTICE, "run", "recipe.yaml", *given], cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{folder} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    page = min(folder.glob("runs/*/report.html")).parent
    report = json.loads((page / "report.json").read_text())
    models, gains = report["models"], {(each["from"], each["to"]): each for each in report["comparisons"]}
    gain = gains.get(("sft", "grpo"))
    return {
        "task": task,
        "seed": seed,
        "thinking": thinking,
        "sft": models["sft"]["accuracy"],
        "grpo": models["grpo"]["accuracy"] if "grpo" in models else None,
        "ci": gain["ci"] if gain else None,
        "tokens": round(report["tokens"]["grpo" if "grpo" in models else "sft"], 1),
        "seconds": round((page / "report.html").stat().st_mtime - (page / "recipe.yaml").stat().st_mtime),
        "budgets": [[each["budget"], each["accuracy"]] for each in report["thoughts"].get("budgets", [])],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    parser.add_argument("--thinking", nargs="+", choices=THINKING, default=[*THINKING])
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--home", type=Path, help="a folder for the stores, kept; another call resumes from them")
    parser.add_argument("--small", action="store_true", help="a built student, to try the bench")
    parser.add_argument("--set", action="append", default=[], help="a field of the recipe, as for apprentice run")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for task in given.tasks:
            for seed in given.seeds:
                for thinking in given.thinking:
                    home = given.home or Path(temporary)
                    rows.append(measured(home.resolve(), task, seed, thinking, given.small, given.set))
                    print(rows[-1], file=sys.stderr, flush=True)
    print("| task | seed | thinking | SFT | SFT + GRPO | tokens an answer | seconds |\n" + "| --- " * 7 + "|")
    for row in rows:
        grpo = "–" if row["grpo"] is None else f"{row['grpo']:.1%}"
        print(
            f"| {row['task']} | {row['seed']} | {row['thinking']} | {row['sft']:.1%} | {grpo} | {row['tokens']} "
            f"| {row['seconds']} |"
        )
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
