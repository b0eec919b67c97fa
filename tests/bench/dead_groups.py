"""What GRPO gains by skipping dead groups, by refill and by a curriculum: the laptop recipe, step by step.

In: `--store FOLDER` (what it holds up to SFT and the probe is not made again), `--set path=value` over the laptop
recipe, `--seeds`, `--target`. Out: lines on standard error, and a last line of JSON: {"rows": [{"recipe", "seed",
"variant", "steps_to_target", "seconds_to_target", "completions_to_target", "dead_share", "accuracy", "ci", …}]}.

The trainings of a seed take turns after every step, each with its own random numbers, so that whatever else the machine
does hits all alike; seconds are the process's CPU time with one thread, generation included, the environment's server
not. Every few steps the weights answer the first questions of the recipe's evaluation, sampled as it does; this time is
not counted, and steers nothing. The target is reached at the first such measurement at or above it. `dead_share` is the
mean share of groups with equal rewards among those that a step learned from; `ci` is that of the accuracy after the
last step on all of the evaluation's questions, and `over_plain` the paired difference there.
"""

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from transformers import TrainerCallback

from apprentice.envs.pool import EnvironmentPool
from apprentice.flows.probe import _as_grpo_plays
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime.servers import RunServers
from apprentice.tasks import grpo as grpo_module
from apprentice.tasks.analysis.comparison import compare, rate
from apprentice.tasks.analysis.kinds import right_and_wrong
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.collect import collect
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import Stage, StageContext
from apprentice.tasks.episodes.record import EvaluatedEpisode, read_episodes, read_questions
from apprentice.tasks.evaluate import evaluate
from apprentice.tasks.grpo import grpo
from apprentice.tasks.models.checkpoints import save
from apprentice.tasks.players.play import PROTOCOLS, LocalModel, play_batched, plays_of
from apprentice.tasks.questions import probe_questions, questions
from apprentice.tasks.rollouts.sampling import QUESTIONS_ASKED
from apprentice.tasks.settings.training import CurriculumSpec, GrpoSpec
from apprentice.tasks.sft import filter_rollouts, lengths, sft
from apprentice.tasks.student import student
from apprentice.tasks.training.trainer import read_log

LAPTOP = Path(__file__).parent.parent.parent / "deployments" / "recipes" / "laptop.yaml"
BY = "word_len"
"""The trait that makes the laptop recipe's kinds."""
BOUND = 3.0
"""grpo.oversample of the variants with refill."""
FEW = 400
"""Questions of a measurement while training goes on: 85% of 400 is known to within 3.5 points."""
EVERY = 5
"""Steps between two measurements."""


def variants(spec: GrpoSpec, known: dict[str, tuple[int, int]]) -> dict[str, GrpoSpec]:
    """GRPO's settings by the name of what is added to the ones before. `known`: what the probe found of each kind."""
    refill = {"skip_dead_groups": True, "oversample": BOUND}
    return {
        "plain": spec.model_copy(update={"skip_dead_groups": False, "oversample": 1.0, "curriculum": None}),
        "skip": spec.model_copy(update={"skip_dead_groups": True, "oversample": 1.0, "curriculum": None}),
        "skip + refill": spec.model_copy(update=refill | {"curriculum": None}),
        "skip + refill + curriculum": spec.model_copy(
            update=refill | {"curriculum": CurriculumSpec(by=(BY,), known=known)}
        ),
    }


class Measurement(NamedTuple):
    """`steps` finished, in so many CPU seconds."""

    steps: int
    seconds: float
    accuracy: float


class Turns(TrainerCallback):
    """Lets one training after the other do a step, notes the CPU seconds of each, and measures between steps.

    Args:
        measure: The accuracy of a trainer's weights.
    """

    def __init__(self, names: list[str], measure: Callable[[Any], float]):
        self._order = list(names)
        self._measure = measure
        self._turn = threading.Condition()
        self._now = self._order[0]
        self._random: dict[str, Any] = {}
        self.trainers: dict[str, Any] = {}
        self.seconds: dict[str, list[float]] = {name: [] for name in names}
        self.measured: dict[str, list[Measurement]] = {name: [] for name in names}

    def take(self) -> None:
        """Waits for this thread's turn."""
        name = threading.current_thread().name
        with self._turn:
            self._turn.wait_for(lambda: self._now == name)
        if name in self._random:
            _restore(self._random[name])

    def give(self, ends: bool = False) -> None:
        """Gives the turn to the next thread."""
        name = threading.current_thread().name
        self._random[name] = _random_state()
        with self._turn:
            place = self._order.index(name)
            self._now = self._order[(place + 1) % len(self._order)]
            if ends:
                self._order.remove(name)
            self._turn.notify_all()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._began = time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        name, spent = threading.current_thread().name, time.process_time() - self._began
        self.seconds[name].append(spent)
        if state.global_step % EVERY == 0 or state.global_step == state.max_steps:
            with _random_kept():
                accuracy = self._measure(self.trainers[name])
            self.measured[name].append(Measurement(state.global_step, sum(self.seconds[name]), accuracy))
            print(f"{name}: {self.measured[name][-1]}", file=sys.stderr, flush=True)
        self.give()
        self.take()

    def reached(self, name: str, target: float) -> Measurement | None:
        return next((each for each in self.measured[name] if each.accuracy >= target), None)


def _random_state() -> Any:
    return random.getstate(), torch.get_rng_state()


def _restore(state: Any) -> None:
    random.setstate(state[0])
    torch.set_rng_state(state[1])


@contextmanager
def _random_kept() -> Iterator[None]:
    state = _random_state()
    yield
    _restore(state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--target", type=float, default=0.85, help="sampled accuracy on the measured window")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in given.seeds:
            recipe = load_recipe(LAPTOP, [*given.set, f"seed={seed}"])
            rows += Compared(given.store or Path(folder, "store"), Path(folder, str(seed)), recipe).rows(given.target)
    print(json.dumps({"rows": rows}), file=sys.__stdout__)  # a training hides standard output, and restores another's


class Compared:
    """The trainings of one seed.

    Args:
        store: Keeps what all of them begin from. The trainings themselves are always made.
    """

    def __init__(self, store: Path, folder: Path, recipe: Recipe):
        self._store = LocalStore(store, project=recipe.name)
        self._folder = folder
        self._recipe = recipe

    def rows(self, target: float) -> list[dict[str, Any]]:
        recipe, task = self._recipe, self._recipe.environment
        with RunServers(recipe) as servers:
            run = self._run(servers)
            made = partial(self._made, run)
            asked = made(questions, task, recipe.seed_windows(), recipe.evaluate.questions)
            rollouts = made(collect, recipe.collect, recipe.teacher, task, recipe.seed_windows().collect)
            kept = made(filter_rollouts, rollouts, asked)
            base = made(student, recipe.student, task, asked, recipe.seed)
            warm = made(sft, recipe.sft, base, kept, made(lengths, recipe.lengths, kept, base), recipe.seed)
            assert recipe.grpo
            probed = made(probe_questions, asked, recipe.probe.questions)
            played = made(evaluate, _as_grpo_plays(recipe, recipe.grpo), warm, task, probed, recipe.seed)
            known = right_and_wrong(read_episodes(run.store.fetch(played)), [BY])
            specs = variants(recipe.grpo, known)
            exams = [row for row in read_questions(run.store.fetch(asked), "evaluate") if row["used"]]
            measure = partial(self._measured, run, exams[:FEW])
            turns = Turns([*specs], lambda trainer: _accuracy(measure(trainer)))
            outs = self._trained(turns, specs, (warm, task, asked, recipe.seed))
            episodes = {name: self._played(run, exams, out) for name, out in outs.items()}
            return [self._row(name, spec, turns, outs, episodes, target) for name, spec in specs.items()]

    def _run(self, servers: RunServers) -> RunContext:
        return RunContext(self._store, servers, report_to=(), trusted=self._recipe.for_work()["trusted"])

    def _made(self, run: RunContext, stage: Stage, *inputs: Any) -> Any:
        key = stage.key(inputs, {})
        return run.store.find(stage.produces, key) or stage._make(run, key, (inputs, {}))

    def _trained(self, turns: Turns, specs: dict[str, GrpoSpec], given: tuple[Any, ...]) -> dict[str, Path]:
        """The folder of each training's weights. They run in threads that take turns, each with servers of its own."""
        folders: dict[str, Path] = {}
        train = grpo_module.train

        def taking_turns(context: Any, title: str, trainer: Any, steps: int) -> None:
            turns.trainers[threading.current_thread().name] = trainer
            trainer.add_callback(turns)
            train(context, title, trainer, steps)

        def run(name: str, spec: GrpoSpec) -> None:
            turns.take()
            try:
                out, scratch = (self._folder / name / each for each in ("out", "scratch"))
                out.mkdir(parents=True)
                scratch.mkdir()
                with RunServers(self._recipe) as servers:
                    grpo.body(StageContext(self._run(servers), "0" * 20, out, scratch), spec, *given)
                folders[name] = out
            finally:
                turns.give(ends=True)

        grpo_module.train = taking_turns
        try:
            threads = [threading.Thread(target=run, args=each, name=each[0]) for each in specs.items()]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            grpo_module.train = train
        return {name: folders[name] for name in specs}

    def _measured(self, run: RunContext, rows: list[dict[str, Any]], trainer: Any) -> list[EvaluatedEpisode]:
        with tempfile.TemporaryDirectory() as folder:
            save(trainer.model, trainer.processing_class, Path(folder))
            return self._played(run, rows, Path(folder))

    def _played(self, run: RunContext, rows: list[dict[str, Any]], checkpoint: Path) -> list[EvaluatedEpisode]:
        """The questions as the recipe's evaluation plays them, with the weights in a folder."""
        spec, task, records = self._recipe.evaluate, self._recipe.environment, []
        protocol = PROTOCOLS[spec.protocol]
        model = LocalModel(checkpoint, spec, protocol, self._recipe.seed, run.trusted)
        server = run.servers.environment(task.name)
        with EnvironmentPool(task, server, min(spec.batch_size, len(rows))) as pool:
            play_batched(pool, plays_of(rows, 1), model, protocol, records.append)
        return sorted(records, key=lambda record: record.place)

    def _row(
        self,
        name: str,
        spec: GrpoSpec,
        turns: Turns,
        outs: dict[str, Path],
        episodes: dict[str, list[EvaluatedEpisode]],
        target: float,
    ) -> dict[str, Any]:
        log = [entry for entry in read_log(outs[name]) if "loss" in entry]
        asked = [entry.get(QUESTIONS_ASKED, spec.groups_a_step) * spec.num_generations for entry in log]
        dead = [entry.get("refill/dead_after", entry["frac_reward_zero_std"]) for entry in log]
        reached, found = turns.reached(name, target), rate(episodes[name])
        against = compare(episodes["plain"], episodes[name])
        return {
            "recipe": self._recipe.name,
            "seed": self._recipe.seed,
            "variant": name,
            "steps_to_target": reached and reached.steps,
            "seconds_to_target": reached and round(reached.seconds, 1),
            "completions_to_target": reached and round(sum(asked[: reached.steps])),
            "dead_share": round(fmean(dead), 3),
            "accuracy": found["accuracy"],
            "ci": [round(each, 4) for each in found["ci"]],
            "over_plain": {"delta": round(against["delta"], 4), "ci": [round(each, 4) for each in against["ci"]]},
            "steps": len(log),
            "seconds": round(sum(turns.seconds[name]), 1),
            "completions": round(sum(asked)),
            "measured": [[each.steps, round(each.seconds, 1), each.accuracy] for each in turns.measured[name]],
        }


def _accuracy(records: list[EvaluatedEpisode]) -> float:
    return fmean(record.is_right for record in records)


if __name__ == "__main__":
    main()
