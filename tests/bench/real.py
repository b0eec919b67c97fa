"""Runs the recipe of SmolLM2 with seeds that it was not tuned on, beside plain TRL on the same rows and steps.
`--recipe laptop` runs that of the laptop.

In: nothing; stores of its own in a temporary folder, or in --home, which keeps them: a seed that has finished there is
not run again. Out: a Markdown table, then one line of JSON. Each seed is a whole run on 1,000 unseen questions, decoded
greedily; its SFT and GRPO models then answer them sampled as well. `seconds` is from the run's folder to its page, that
is the whole command without some 7 s of imports. `plain_seconds` is measured in parts, on the first seed's rows and
models: a few steps of TRL's own trainers in fp32, as the documents' scripts call them, and 128 questions for each of
the three models, times the run's steps and questions; start and saving are left out of it. `--seeds 41` runs one.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from apprentice.envs.serving.process import local_server
from apprentice.flows.recipe.loading import load_recipe
from apprentice.tasks.files.json_lines import read_rows
from apprentice.tasks.files.question_lists import used_questions
from apprentice.tasks.training.trainer import read_log

ROOT = Path(__file__).parent.parent.parent
APPRENTICE = str(Path(sys.executable).parent / "apprentice")
MODEL = ROOT / "build" / "smollm2" / "model"
SEEDS = (44, 45, 46)
QUESTIONS = 128


class Case(NamedTuple):
    """A recipe, and what of plain TRL is measured beside it."""

    recipe: str
    steps: dict[str, int]
    """Of plain TRL: one of GRPO takes minutes with SmolLM2."""
    fits: int
    """Completions of a batch of plain TRL: of SmolLM2, 64 need more memory than 24 GB without shared prompts."""
    settings: tuple[str, ...] = ()


def on(name: str, steps: dict[str, int], fits: int, *settings: str) -> Case:
    return Case(str(ROOT / "deployments" / "recipes" / f"{name}.yaml"), steps, fits, settings)


CASES = {
    "smollm2": on("smollm2-addition", {"sft": 3, "grpo": 1}, 16, f"student.model={MODEL}", "student.revision=null"),
    "laptop": on("laptop", {"sft": 100, "grpo": 20}, 256),
}


def said(folder: Path, *command: str) -> str:
    """What the command printed; its last line is its result."""
    return subprocess.run([APPRENTICE, *command], cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout


def measured(case: Case, home: Path, seed: int, given: list[str]) -> dict[str, Any]:
    """One seed's row."""
    folder = home / str(seed)
    folder.mkdir(parents=True, exist_ok=True)
    sets = [word for each in (*case.settings, f"seed={seed}", *given) for word in ("--set", each)]
    recipe = [case.recipe, *sets]
    if not list(folder.glob("runs/*/report.html")):
        said(folder, "run", *recipe)
    page = min(folder.glob("runs/*/report.html")).parent  # the first: those after it have found everything
    seconds = (page / "report.html").stat().st_mtime - (page / "recipe.yaml").stat().st_mtime
    report = json.loads((page / "report.json").read_text())
    models, of = report["models"], {stage["name"]: stage for stage in report["stages"]}
    (gain,) = (each for each in report["comparisons"] if (each["from"], each["to"]) == ("sft", "grpo"))
    both = [word for name in ("sft", "grpo") for word in ("--model", of[name]["key"])]
    sampled = said(folder, "evaluate", *recipe, "--set", "evaluate.decoding=sampled", *both, "--json")
    found = json.loads(sampled.strip().splitlines()[-1])
    (against,) = found["comparisons"]
    return {
        "seed": seed,
        "base": models["base"]["accuracy"],
        "sft": models["sft"]["accuracy"],
        "sft_best": models["sft"]["accuracy"],  # the epoch with the lowest loss on rows held out
        "grpo": models["grpo"]["accuracy"],
        "format": {name: each["format_compliance"] for name, each in models.items()},
        "gain": gain["delta"],
        "ci": gain["ci"],
        "sampled": {"gain": against["delta"], "ci": against["ci"], "grpo": [*found["models"].values()][1]["accuracy"]},
        "guards": report["guards"],
        "ending": report["ending"]["state"],
        "steps": {name: max(entry["step"] for entry in read_log(made_by(folder, name))) for name in case.steps},
        "answers": sum(each["n"] for each in models.values()),
        "seconds": round(seconds),
        "stages": {name: round(each["seconds"], 1) for name, each in of.items() if name in case.steps},
        "peak_memory_mb": report["peak_memory_mb"],
    }


def plain(case: Case, home: Path, seed: int, given: list[str]) -> dict[str, float]:
    """Seconds of a step of plain TRL's SFT and GRPO, and of an answer in fp32, on what a seed's run has made."""
    recipe = load_recipe(Path(case.recipe), [*case.settings, f"seed={seed}", *given])
    assert recipe.grpo
    data = recipe.model_dump(mode="json", exclude={"environment": {"version", "code"}})
    data |= {"precision": "fp32", "guards": []}
    data["sft"] |= {
        "args": {"max_steps": case.steps["sft"]},
        "held_out": 0.0,
        "stop_without_gain": None,
        "share_prompts": False,
        "checkpoint_steps": 1000,
    }
    data["grpo"] |= {"max_steps": case.steps["grpo"], "oversample": 1.0, "checkpoint_steps": 1000}
    data["grpo"] |= {"batch_size": case.fits, "gradient_accumulation": recipe.grpo.rollouts_a_step // case.fits}
    data["evaluate"] |= {"questions": QUESTIONS}
    folder = home / "plain"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    run = home / str(seed)
    for model, stage in (("base", "student"), ("sft", "sft")):
        shutil.copytree(made_by(run, stage), folder / model)
    (folder / "recipe.yaml").write_text(json.dumps(data))
    shutil.copy(made_by(run, "filter_rollouts") / "kept.jsonl", folder)
    write(folder / "lengths.jsonl", [json.loads((made_by(run, "lengths") / "artifact.json").read_text())["counts"]])
    questions = made_by(run, "questions")
    write(folder / "grpo.jsonl", used_questions(questions, "grpo"))
    write(folder / "evaluate.jsonl", used_questions(questions, "evaluate")[:QUESTIONS])
    with local_server("apprentice.envs.serving.serve", recipe.environment.name, "--max-sessions", "256") as url:
        command = [sys.executable, "-m", "tests.bench.bare", str(folder / "recipe.yaml"), str(folder), url, "none"]
        bare([*command, "sft", "grpo", "evaluate"], folder)
    runtime = {
        name: read_rows(folder / f"{name}-log.jsonl")[-1]["train_runtime"] / case.steps[name] for name in case.steps
    }
    return runtime | {"answer": json.loads((folder / "seconds.json").read_text())["evaluate"] / (3 * QUESTIONS)}


def bare(command: list[str], folder: Path) -> None:
    """Runs a command of this checkout in `folder`. Raises SystemExit with its output if it fails."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    own = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")


def made_by(folder: Path, stage: str) -> Path:
    """The files of the only artifact of a run that this stage made."""
    records = (folder / "artifacts").glob("*/local/*/snapshots/*/artifact.json")
    (found,) = (each for each in records if json.loads(each.read_text())["made_by"]["stage"] == stage)
    return found.parent


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", choices=CASES, default="smollm2")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--home", type=Path, help="a folder for the stores, kept; another call resumes from them")
    parser.add_argument("--set", action="append", default=[], help="a field of the recipe, as for apprentice run")
    arguments = parser.parse_args()
    case = CASES[arguments.recipe]
    with tempfile.TemporaryDirectory() as temporary:
        home = arguments.home or Path(temporary)
        rows = []
        for seed in arguments.seeds:
            rows.append(measured(case, home, seed, arguments.set))
            print(rows[-1], file=sys.stderr, flush=True)
        step = plain(case, home, arguments.seeds[0], arguments.set)
    for row in rows:
        parts = step["sft"] * row["steps"]["sft"], step["grpo"] * row["steps"]["grpo"], step["answer"] * row["answers"]
        row["plain_seconds"] = round(sum(parts))
    print("| seed | base | SFT, best epoch | SFT + GRPO | over SFT | run | plain TRL |\n|" + " --- |" * 7)
    for row in rows:
        rates = " | ".join(f"{row[name]:.1%}" for name in ("base", "sft_best", "grpo"))
        low, high = (f"{100 * bound:+.1f}" for bound in row["ci"])
        took = " | ".join(f"{row[name] / 60:.0f} min" for name in ("seconds", "plain_seconds"))
        print(f"| {row['seed']} | {rates} | {100 * row['gain']:+.1f} pp ({low} to {high}) | {took} |")
    print(json.dumps({"rows": rows, "plain_step_s": step}))


if __name__ == "__main__":
    main()
