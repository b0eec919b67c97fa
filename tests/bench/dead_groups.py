"""What skipping dead groups saves a GRPO stage: the laptop recipe's, with and without, step by step in one process.

In: `--store FOLDER` (what it holds is not made again), `--set path=value` over the laptop recipe. Out: a line for each
step on standard error, and a last line of JSON: {"rows": [{"recipe", "seed", "variant", "seconds", …}]}.
The two trainings take turns after every step, each with its own random numbers, so that whatever else the machine does
hits both alike; seconds are the process's CPU time with one thread.
"""

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime.servers import RunServers
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.collect import collect
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import Stage
from apprentice.tasks.evaluate import evaluate
from apprentice.tasks.filter import filter_rollouts
from apprentice.tasks.grpo import grpo
from apprentice.tasks.lengths import lengths
from apprentice.tasks.questions import questions
from apprentice.tasks.sft import sft
from apprentice.tasks.student import student
from apprentice.tasks.training import trainer as training

LAPTOP = Path(__file__).parent.parent.parent / "deployments" / "recipes" / "laptop.yaml"


class Turns(TrainerCallback):
    """Lets one training after the other do a step, and notes the CPU seconds of each."""

    def __init__(self, variants: list[str]):
        self._order = list(variants)
        self._turn = threading.Condition()
        self._now = self._order[0]
        self._random: dict[str, Any] = {}
        self.seconds: dict[str, list[float]] = {name: [] for name in variants}

    def take(self) -> None:
        """Waits for this thread's turn."""
        name = threading.current_thread().name
        with self._turn:
            self._turn.wait_for(lambda: self._now == name)
        if name in self._random:
            python, of_torch = self._random[name]
            random.setstate(python)
            torch.set_rng_state(of_torch)

    def give(self, ends: bool = False) -> None:
        """Gives the turn to the next thread."""
        name = threading.current_thread().name
        self._random[name] = random.getstate(), torch.get_rng_state()
        with self._turn:
            place = self._order.index(name)
            self._now = self._order[(place + 1) % len(self._order)]
            if ends:
                self._order.remove(name)
            self._turn.notify_all()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._began = time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        spent = time.process_time() - self._began
        self.seconds[threading.current_thread().name].append(spent)
        print(f"{threading.current_thread().name} {state.global_step} {spent:.3f}", file=sys.stderr, flush=True)
        self.give()
        self.take()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = compared(given.store or Path(folder), load_recipe(LAPTOP, given.set))
    print(
        json.dumps({"rows": rows}), file=sys.__stdout__
    )  # each training hides standard output, and restores another's


def compared(folder: Path, recipe: Recipe) -> list[dict[str, Any]]:
    """Both trainings and their evaluations."""
    store, task = LocalStore(folder, project=recipe.name), recipe.environment
    with RunServers(recipe) as first, RunServers(recipe) as second:  # each has sessions for one training
        run, other = (
            RunContext(store, each, report_to=(), trusted=recipe.for_work()["trusted"]) for each in (first, second)
        )

        def made(stage: Stage, *inputs: Any, run: RunContext = run) -> Any:
            key = stage.key(inputs, {})
            return store.find(stage.produces, key) or stage._make(run, key, (inputs, {}))

        asked = made(questions, task, recipe.seed_windows(), recipe.evaluate.questions)
        rollouts = made(collect, recipe.collect, recipe.teacher, task, recipe.seed_windows().collect)
        kept = made(filter_rollouts, rollouts, asked)
        base = made(student, recipe.student, task, asked, recipe.seed)
        warm = made(sft, recipe.sft, base, kept, made(lengths, recipe.lengths, kept, base), recipe.seed)

        def trained(skip: bool, run: RunContext) -> Any:
            assert recipe.grpo
            spec = recipe.grpo.model_copy(update={"skip_dead_groups": skip})
            return made(grpo, spec, warm, task, asked, recipe.seed, run=run)

        turns = Turns(["plain TRL", "skip"])
        checkpoints = in_turns(turns, {"plain TRL": lambda: trained(False, run), "skip": lambda: trained(True, other)})
        rows = []
        for name, checkpoint in checkpoints.items():
            log = training.read_log(store.fetch(checkpoint))
            dead = [entry["frac_reward_zero_std"] for entry in log]
            examined = made(evaluate, recipe.evaluate, checkpoint, task, asked, recipe.seed)
            seconds = turns.seconds[name]
            rows.append(
                {"recipe": recipe.name, "seed": recipe.seed, "variant": name, "steps": len(seconds)}
                | {"seconds": round(sum(seconds), 1), "dead_share": round(sum(dead) / len(dead), 3)}
                | {"accuracy": examined.accuracy, "last_reward": log[-1]["reward"]}
            )
        return rows


def in_turns(turns: Turns, work: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """What each of several trainings makes, in threads that take turns at their steps."""
    results: dict[str, Any] = {}
    train = training.train

    def taking_turns(context: Any, title: str, trainer: Any, steps: int) -> None:
        trainer.add_callback(turns)
        train(context, title, trainer, steps)

    def run(name: str, make: Callable[[], Any]) -> None:
        turns.take()
        try:
            results[name] = make()
        finally:
            turns.give(ends=True)

    from apprentice.tasks import grpo as module

    module.train = taking_turns
    try:
        threads = [threading.Thread(target=run, args=each, name=each[0]) for each in work.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        module.train = train
    return results


if __name__ == "__main__":
    main()
