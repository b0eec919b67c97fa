"""Is the first advice right, and does following it reach the floor? Planted situations on three games.

In: nothing; stores of its own in a temporary folder. Out: a row per situation, then one line of JSON. `--only WORD…`
plays some situations, `--seed` takes another one. Each situation is a recipe that works, with one fault; `healthy` ones
have none. A row says which cause the first run named, which fields the chain changed, and whether it reached its floor.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from apprentice.tasks.advice.causes import Cause
from tests.bench.laptop import APPRENTICE

SMOLLM2 = Path(__file__).resolve().parents[2] / "build" / "smollm2" / "model"
ORDERS = Path(__file__).parent / "games" / "orders.py"
STUDENT = {"hidden_size": 64, "intermediate_size": 128, "layers": 2, "heads": 4, "initializer_range": 0.05}
STUDENT |= {"rope_theta": 30.0}
SFT = {"batch_size": 16, "gradient_accumulation": 1}
GRPO = {"batch_size": 64, "gradient_accumulation": 1, "num_generations": 8, "learning_rate": 3.0e-4, "max_steps": 8}
LETTERS: dict[str, Any] = {
    "name": "letters",
    "environment": {
        "name": "reasoning_gym",
        "settings": {"dataset": "spell_backward", "config": {"min_word_len": 3, "max_word_len": 3}},
    },
    "teacher": {"scripted_error_rate": 0.1},
    "student": {"build": STUDENT | {"max_positions": 256, "pretraining_steps": 600}},
    "windows": {"collect": {"size": 150}, "grpo": {"size": 1500}, "evaluate": {"size": 400}},
    "sft": SFT | {"epochs": 30, "learning_rate": 5.0e-4},
    "probe": {"questions": 32},
    "grpo": GRPO | {"max_completion_length": 24, "learning_rate": 3.0e-5},  # 1e-4 makes this student worse
    "evaluate": {"questions": 200, "max_new_tokens": 16, "batch_size": 100},
}
NUMBER: dict[str, Any] = LETTERS | {
    "name": "guess",
    "environment": {"name": "number", "settings": {"most": 7, "guesses": 3}},
    "student": {"build": STUDENT | {"max_positions": 256}},
    "windows": {"collect": {"size": 200}, "grpo": {"size": 1500}, "evaluate": {"size": 400}},
    "sft": SFT | {"epochs": 10, "learning_rate": 1.0e-3},
    "grpo": GRPO | {"max_completion_length": 80, "max_steps": 4},
}
DESK: dict[str, Any] = LETTERS | {
    "name": "orders",
    "environment": {"path": str(ORDERS), "settings": {"digits": 1, "orders": 1, "looking": 0.1}},
    "student": {"build": STUDENT | {"max_positions": 512}},
    "windows": {"collect": {"size": 160}, "grpo": {"size": 800}, "evaluate": {"size": 400}},
    "sft": SFT | {"epochs": 16, "learning_rate": 2.0e-3},
    "grpo": False,
    "evaluate": {"questions": 100, "max_new_tokens": 24, "batch_size": 100},
}


class Situation(NamedTuple):
    recipe: dict[str, Any]
    fault: dict[str, Any]
    """Fields of the recipe with their wrong values."""
    causes: tuple[Cause, ...]
    """What the first advice has to name; none for a healthy run."""


OF_REWARD = GRPO | {"max_completion_length": 120, "max_steps": 30, "learning_rate": 3.0e-3}
STOPS = {"sft.epochs": 9, "environment.settings": {"digits": 1, "orders": 1, "looking": 0.35, "wrong": 0.0}}
WEAK_TEACHER = {"teacher.scripted_error_rate": 0.9, "collect.max_refused": 1.0}
"""Asked again, the script mends half of its mistakes: what is left is few rows, and few steps of SFT."""
WEAK_TEACHER |= {"gate.at_least": 0.5, "windows.collect.size": 30}
SITUATIONS: dict[str, Situation] = {
    "healthy number, harder": Situation(
        NUMBER, {"environment.settings": {"most": 15, "guesses": 4}, "grpo": False}, ()
    ),
    "healthy number": Situation(NUMBER, {}, ()),
    "healthy desk": Situation(DESK, {}, ()),
    "healthy letters, no GRPO": Situation(LETTERS, {"grpo": False}, ()),
    "healthy number, no GRPO": Situation(NUMBER, {"grpo": False}, ()),
    "letters, two epochs": Situation(LETTERS, {"sft.epochs": 2}, (Cause.NOT_LEARNED,)),
    "number, one epoch": Situation(NUMBER, {"sft.epochs": 1}, (Cause.NOT_LEARNED,)),
    "desk, three epochs": Situation(DESK, {"sft.epochs": 3}, (Cause.NOT_LEARNED,)),
    "letters, a tiny learning rate": Situation(LETTERS, {"sft.learning_rate": 1.0e-6}, (Cause.NOT_LEARNED,)),
    "number, a tiny learning rate": Situation(NUMBER, {"sft.learning_rate": 1.0e-6}, (Cause.NOT_LEARNED,)),
    "letters, answers of four tokens": Situation(LETTERS, {"evaluate.max_new_tokens": 4}, (Cause.CUT,)),
    "number, answers of two tokens": Situation(NUMBER, {"evaluate.max_new_tokens": 2}, (Cause.CUT,)),
    "desk, answers of two tokens": Situation(DESK, {"evaluate.max_new_tokens": 2}, (Cause.CUT,)),
    "letters, fifteen rows of a weak teacher": Situation(LETTERS, WEAK_TEACHER, (Cause.NOT_LEARNED, Cause.TEACHER)),
    "number, fifteen rows of a weak teacher": Situation(NUMBER, WEAK_TEACHER, (Cause.NOT_LEARNED, Cause.TEACHER)),
    "letters, 16 episodes": Situation(
        LETTERS,
        {"windows.collect.size": 12, "sft.epochs": 250, "gate.at_least": 0.7, "grpo": False},
        (Cause.MEMORISED,),
    ),
    "desk, 24 episodes": Situation(DESK, {"windows.collect.size": 24, "sft.epochs": 100}, (Cause.MEMORISED,)),
    "number, a student of two": Situation(
        NUMBER,
        {"student.build": STUDENT | {"hidden_size": 2, "heads": 1, "intermediate_size": 2, "max_positions": 256}},
        (Cause.TOO_SMALL, Cause.NOT_LEARNED),
    ),
    "letters, GRPO too fast": Situation(
        LETTERS, {"grpo.learning_rate": 3.0e-2, "gate.at_least": 0.6}, (Cause.OVERSHOT,)
    ),
    "number, GRPO too fast": Situation(NUMBER, {"grpo.learning_rate": 3.0e-2}, (Cause.OVERSHOT,)),
    "desk, ids of three digits": Situation(
        DESK, {"environment.settings": {"digits": 3, "orders": 2, "looking": 0.1}, "sft.epochs": 40}, (Cause.COPYING,)
    ),
    "desk, a reward that pays for stopping": Situation(
        DESK, {"grpo": OF_REWARD} | STOPS, (Cause.STOPPING_PAYS, Cause.NOT_LEARNED)
    ),
    "letters, SFT too fast": Situation(LETTERS, {"sft.learning_rate": 0.3}, (Cause.DIVERGED, Cause.NOT_LEARNED)),
    "letters, GRPO cut": Situation(LETTERS, {"grpo.max_completion_length": 4, "gate.at_least": 0.999}, (Cause.CUT,)),
    "letters, a short GRPO": Situation(
        LETTERS,
        {"sft.epochs": 5, "gate.at_least": 0.8, "grpo.max_steps": 10, "grpo.learning_rate": 1.0e-3},
        (Cause.STILL_GAINING, Cause.NOT_LEARNED),
    ),
}


def written(situation: Situation, seed: int) -> str:
    recipe = json.loads(json.dumps(situation.recipe)) | {"seed": seed}
    for path, value in situation.fault.items():
        *parents, last = path.split(".")
        section = recipe
        for name in parents:
            section = section.setdefault(name, {})
        section[last] = value
    return yaml.safe_dump({name: "off" if value is False else value for name, value in recipe.items()})


def played(name: str, situation: Situation, seed: int, folder: Path, students: Path) -> dict[str, Any]:
    """The row of a situation. Students that were built for an earlier one are in `students`."""
    folder.mkdir()
    (folder / "recipe.yaml").write_text(written(situation, seed))
    models = folder / "artifacts" / "models" / "local"
    of_game = f"{situation.recipe['name']}-base"
    if (students / of_game).exists():
        shutil.copytree(students / of_game, models / of_game, symlinks=True)
    if SMOLLM2.is_dir():  # the pretrained student, where `make run NAME=real` has put it
        (folder / "build" / "smollm2").mkdir(parents=True)
        (folder / "build" / "smollm2" / "model").symlink_to(SMOLLM2)
    began = time.perf_counter()
    ran = subprocess.run(
        [str(APPRENTICE), "run", "recipe.yaml", "--follow", "3", "--minutes", "10"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    (folder / "said.txt").write_text(ran.stdout + ran.stderr)
    reports = [
        json.loads(each.read_text())
        for each in sorted(folder.glob("runs/*/report.json"), key=lambda at: at.stat().st_mtime)
    ]
    if not reports:
        return {"situation": name, "failed": ran.stdout[-300:]}
    if (models / of_game).exists():
        shutil.copytree(models / of_game, students / of_game, symlinks=True, dirs_exist_ok=True)
    first = reports[0]["ending"]["change"]
    follows = [json.loads(each.read_text())["change"] for each in sorted(folder.glob("runs/*/follows.json"))]
    fields = [each.partition(":")[0] for each in follows]
    last = max(report["models"][list(report["models"])[-1]]["accuracy"] for report in reports)
    return {
        "situation": name,
        "planted": list(situation.causes),
        "named": first["cause"] if first else "",
        "right": (first["cause"] in situation.causes)
        if first and situation.causes
        else not first and not situation.causes,
        "changed": fields,
        "twice": len(fields) != len(set(fields)),
        "reached": any(report["gate"]["promoted"] or report["gate"]["floor"]["holds"] for report in reports),
        "accuracy": round(last, 3),
        "seconds": round(time.perf_counter() - began),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[""])
    parser.add_argument("--seed", type=int, default=61)
    parser.add_argument("--out", type=Path, default=None, help="Keep the folders here.")
    given = parser.parse_args()
    chosen = {name: each for name, each in SITUATIONS.items() if any(word in name for word in given.only)}
    with tempfile.TemporaryDirectory() as temporary:
        home = given.out or Path(temporary)
        (home / "students").mkdir(parents=True, exist_ok=True)
        rows = []
        for place, (name, situation) in enumerate(chosen.items()):
            rows.append(played(name, situation, given.seed, home / f"{place:02d}", home / "students"))
            print(json.dumps(rows[-1]), flush=True)
    planted = [row for row in rows if row.get("planted")]
    print(
        json.dumps(
            {
                "rows": rows,
                "named": f"{sum(row['right'] for row in planted)} of {len(planted)}",
                "reached": f"{sum(row['reached'] for row in planted)} of {len(planted)}",
                "healthy without advice": sum(row.get("right", False) for row in rows if row.get("planted") == []),
                "a field twice": sum(row.get("twice", False) for row in rows),
            }
        )
    )


if __name__ == "__main__":
    main()
