"""What the flow costs over bare TRL scripts: `python -m tests.bench.overhead`, or `make bench NAME=overhead`.

In: nothing; folders of its own. Out: a table for each stage, then one line of JSON; the exit code is 1 where the flow
costs more than 5% over bare TRL in one process, or where weights differ. Needs idle cores; the laptop recipe takes some
four minutes a side, and each round has three sides.
One process: all of tests/bench/scripts/ in sequence, as an engineer would write them: the same servers, settings,
checkpoints and Trackio curves, the same rows in the same order, and so the same weights (said below the table); no
Prefect, store, keys, cards, journals, verdict, gate or report. Flow: `apprentice run` with an empty store and an empty
Prefect database, from the start of the process to its end; Prefect's temporary server is part of it. Both sides start
the environment's server and the teacher, and both wait for that. Creating the database happens once on a machine; what
the first run pays for that is printed apart.
Six processes: the same scripts, one process each. They import torch and TRL four times, so the flow looks cheaper
beside them; that comparison stands below and decides nothing. Rounds change the order; of each side its fastest round
counts.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from apprentice.envs.serving.process import local_server
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime.prefect_settings import quiet
from tests.digests import digest_of_some
from tests.prefect_database import prefect_home

ROOT = Path(__file__).parent.parent.parent
RECIPES = ROOT / "deployments" / "recipes"
STAGES = {
    "questions": ("questions", "exam"),
    "collect": ("collect",),
    "prepare": ("filter_rollouts", "student", "lengths"),
    "sft": ("sft",),
    "grpo": ("grpo",),
    "evaluate": ("evaluate",),
}
"""The scripts in order, and the flow's stages that do the same. A shard's collection is part of `collect`."""
PLAIN = ("sft.control=false", "grpo.skip_dead_groups=false", "grpo.share_prompts=false")
"""What the scripts do not do; the first two would make the flow look slower and faster."""
ALLOWED_PCT = 5.0
"""What the flow may cost over bare TRL in one process."""
ONE, SIX, FLOW = "one process", "six processes", "flow"


class Side(NamedTuple):
    """One way through the whole recipe: how long it took, in all and by script, and digests of the trained weights."""

    seconds: float
    stages: dict[str, float]
    weights: dict[str, str]


def scripts(recipe_file: Path, apart: bool) -> Side:
    """All scripts, each in a process of its own or all in one."""
    recipe = load_recipe(recipe_file, [])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began = time.perf_counter()
        with (
            local_server(
                "apprentice.envs.serving.serve", "reasoning_gym", "--max-sessions", str(2 * sessions(recipe))
            ) as url,
            local_server("apprentice.envs.serving.scripted_teacher", *teacher_arguments(recipe)) as teacher,
        ):
            command = [sys.executable, "-m", "tests.bench.bare", str(recipe_file), name, url, f"{teacher}/v1"]
            for some in [[each] for each in STAGES] if apart else [list(STAGES)]:
                called([*command, *some], folder, {"PYTHONPATH": paths()})
        seconds = time.perf_counter() - began
        stages = json.loads((folder / "seconds.json").read_text())
        weights = {each: digest_of_some(folder / each, "*.safetensors") for each in ("sft", "grpo")}
    return Side(seconds - stages.pop("not counted"), stages, weights)


def flow(recipe_file: Path) -> Side:
    """`apprentice run`, everything anew."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        surroundings = {"PREFECT_HOME": prefect_home(folder)}
        began = time.perf_counter()
        apprentice = str(Path(sys.executable).parent / "apprentice")
        command = [apprentice, "run", str(recipe_file), *(part for each in PLAIN for part in ("--set", each))]
        said = called(command, folder, surroundings)
        seconds = time.perf_counter() - began
        report = json.loads((Path(said.strip().splitlines()[-1]) / "report.json").read_text())
        stages: dict[str, float] = {
            script: sum(stage["seconds"] for stage in report["stages"] if stage["name"] in same)
            for script, same in STAGES.items()
        }
        found = folder / "artifacts" / "models" / "local"
        snapshots = {each: next((found / f"{report['recipe']}-{each}/snapshots").iterdir()) for each in ("sft", "grpo")}
        weights = {each: digest_of_some(snapshot, "*.safetensors") for each, snapshot in snapshots.items()}
    return Side(seconds, stages, weights)


def seconds_to_create_the_database() -> float:
    """What only the first run on a machine takes: all migrations of Prefect's database."""
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
        began = time.perf_counter()
        called(command, Path(name), {"PREFECT_HOME": name})
        return time.perf_counter() - began


def called(command: list[str], folder: Path, own: dict[str, str]) -> str:
    """What a process says. Raises SystemExit where it fails."""
    with (folder / "said.txt").open("w+") as said:
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"HF_HUB_OFFLINE": "1"} | own,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        said.seek(0)
        text = said.read()
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{text[-3000:]}")
    return text


def paths() -> str:
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


def sessions(recipe: Recipe) -> int:
    """Places that the flow's own server has."""
    return max(recipe.server.sessions, recipe.evaluate.batch_size, recipe.grpo_sessions())


def teacher_arguments(recipe: Recipe) -> tuple[str, ...]:
    task = recipe.environment
    settings = ("--environment", task.name, "--settings", json.dumps(task.settings))
    assert recipe.teacher
    return (*settings, "--error-rate", str(recipe.teacher.scripted_error_rate))


def table(ran: dict[str, Side]) -> None:
    """A row a script, then what remains: processes that start, servers, and what only the flow does."""
    print(f"| seconds | {' | '.join(ran)} |\n|{' --- |' * (len(ran) + 1)}")
    for script in STAGES:
        print(f"| {script} | {' | '.join(f'{side.stages[script]:.1f}' for side in ran.values())} |")
    rest = {name: side.seconds - sum(side.stages.values()) for name, side in ran.items()}
    print(f"| all else | {' | '.join(f'{each:.1f}' for each in rest.values())} |")
    print(f"| in all | {' | '.join(f'{side.seconds:.1f}' for side in ran.values())} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--toy", action="store_true", help="the toy recipe: for a look at the bench, not for figures")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    quiet()
    recipe = RECIPES / ("toy.yaml" if given.toy else "laptop.yaml")
    sides = {
        ONE: lambda: scripts(recipe, apart=False),
        FLOW: lambda: flow(recipe),
        SIX: lambda: scripts(recipe, apart=True),
    }
    rounds: dict[str, list[Side]] = {name: [] for name in sides}
    for number in range(given.rounds):
        for name in list(sides) if number % 2 == 0 else reversed(sides):
            rounds[name].append(sides[name]())
            print(f"round {number + 1}: {name} {rounds[name][-1].seconds:.1f} s", file=sys.stderr, flush=True)
    best = {name: min(sides, key=lambda side: side.seconds) for name, sides in rounds.items()}
    table(best)
    all_weights = [side.weights for sides in rounds.values() for side in sides]
    same = all(weights == all_weights[0] for weights in all_weights)
    print(f"the same weights after SFT and after GRPO on every side: {'yes' if same else 'no'}")
    found = {name: figures(best[name].seconds, best[FLOW].seconds) for name in (ONE, SIX)}
    for name, cost in found.items():
        print(f"over bare TRL in {name} the flow costs {cost['overhead_s']} s ({cost['overhead_pct']}%)")
    print(f"the first run on a machine also creates Prefect's database: {seconds_to_create_the_database():.1f} s")
    print(json.dumps(found))
    return 0 if same and (given.toy or found[ONE]["overhead_pct"] <= ALLOWED_PCT) else 1


def figures(scripts_s: float, flow_s: float) -> dict[str, Any]:
    over = flow_s - scripts_s
    found = {"scripts_s": scripts_s, "flow_s": flow_s, "overhead_s": over, "overhead_pct": 100 * over / scripts_s}
    return {name: round(value, 2) for name, value in found.items()}


if __name__ == "__main__":
    sys.exit(main())
