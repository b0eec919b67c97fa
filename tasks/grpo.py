"""GRPO in the environment that the teacher played: the student learns from the reward of its own attempts.

In: the SFT checkpoint, the GRPO window's questions. Out: `GrpoCheckpoint`: weights, tokenizer, log.json, curves.png.
TRL's GRPOTrainer, by one of the ways in ways.py. The seed stands in the dataset's row, so the completions of one group
answer one question; a rollout that infrastructure failed scores None, never 0.0.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.metrics import count
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.session import SessionLost
from apprentice.tasks import announce
from apprentice.tasks.adapters import adapter_arguments, merged, model_to_train
from apprentice.tasks.artifacts import GrpoCheckpoint, Questions, SftCheckpoint
from apprentice.tasks.contamination import Asked, write_learned
from apprentice.tasks.errors import Stop
from apprentice.tasks.generation import check_generation, generation_arguments, with_engine
from apprentice.tasks.hardware import check_training, this_machine
from apprentice.tasks.memory import told_when_full
from apprentice.tasks.questions import read_questions
from apprentice.tasks.rendering import TEMPLATE_ARGUMENTS, load_tokenizer
from apprentice.tasks.rollouts import Rollouts
from apprentice.tasks.stage import Bench, stage
from apprentice.tasks.student import save
from apprentice.tasks.training import arguments, keep_log, train
from apprentice.tasks.training_specs import GrpoSpec
from apprentice.tasks.ways import WAYS, row_of

SHOWN = {"reward": "reward", "frac_reward_zero_std": "groups without signal", "entropy": "entropy"}


@stage(gives=GrpoCheckpoint, version=4, title="GRPO", gpu=True)
@told_when_full("grpo")
def grpo(
    bench: Bench,
    spec: GrpoSpec,
    checkpoint: SftCheckpoint,
    environment: EnvironmentSpec,
    questions: Questions,
    seed: int,
) -> dict[str, Any]:
    """Trains for `spec.max_steps`. Raises Stop when more than `spec.max_failed` of the rollouts are lost, or the server
    is away for longer than its patience: then the last finished step is kept."""
    check_training("grpo", spec, this_machine())
    check_generation(spec.generation, this_machine())
    from transformers import set_seed

    set_seed(seed)
    asked = Asked(bench.scratch / "asked.jsonl")
    server = bench.work.servers.environment(environment.name)
    needed = spec.batch_size * spec.gradient_accumulation
    with EnvironmentPool(environment, server, needed, announce.warn) as pool, Rollouts(pool) as rollouts, _words():
        _take_places(pool, environment)
        folder = bench.fetch(checkpoint)
        trainer_class, way = WAYS[spec.rollouts](environment.make(), rollouts)
        tokenizer = load_tokenizer(folder)
        trainer = with_engine(trainer_class, spec.generation)(
            model=model_to_train(folder, spec),
            processing_class=tokenizer,
            train_dataset=_rows(environment, bench.fetch(questions), spec, seed),
            reward_funcs=EnvironmentReward(spec, asked, rollouts),
            args=_config(bench, spec, seed),
            **adapter_arguments(spec.lora),
            **way,
        )
        train(bench, "GRPO steps", trainer, spec.max_steps)
    keep_log(bench, trainer, SHOWN)
    write_learned(bench.out, "grpo", asked.items(), before=folder)
    return save(merged(trainer.model, folder, spec.lora), tokenizer, bench.out) | {"stage": "grpo"}


class EnvironmentReward:
    """Reads the reward off the environments, as TRL's reward function.

    Counts what infrastructure lost, and raises Stop once it is more than `max_failed` of all rollouts so far (of at
    least a hundred, so that one early loss stops nothing). Raises SessionLost when the server was given up: the step is
    done again, whole, once it is back.

    Args:
        asked: Told the questions that are trained on.
    """

    __name__ = "environment_reward"

    def __init__(self, spec: GrpoSpec, asked: Asked, rollouts: Rollouts):
        self._spec = spec
        self._asked = asked
        self._rollouts = rollouts
        self.played = 0
        self.lost = 0

    def __call__(self, seed: Sequence[int], question: Sequence[str], **_: Any) -> list[float | None]:
        self._rollouts.settle()
        if self._rollouts.gave_up:
            raise SessionLost(self._rollouts.gave_up)
        environments = self._rollouts.environments
        self._asked.note(seed, question)
        self.played += len(environments)
        count("episodes", len(environments))
        self.lost += sum(environment.reward is None for environment in environments)
        if self.lost > self._spec.max_failed * max(self.played, 100):
            why = next(environment.failure for environment in environments if environment.failure)
            raise Stop(
                f"{self.lost} of {self.played} rollouts were lost to the environment, the last one to: {why}",
                "See that its server runs, then run again.",
            )
        return [self._shaped(environment.reward) for environment in environments]

    def _shaped(self, reward: float | None) -> float | None:
        if reward is None or self._spec.reward == "score":
            return reward
        return float(reward == 1.0)


def _rows(environment: EnvironmentSpec, questions: Path, spec: GrpoSpec, seed: int) -> Any:
    """A row a question: the prompt whose user turn `reset` completes, and the seed that names the question.

    In the order of TRL's own sampler, for as many passes as the steps need: the sampler itself forgets in which pass it
    was when a training is resumed.
    """
    import torch
    from datasets import Dataset

    used = [row for row in read_questions(questions, "grpo") if row["used"]]
    needed = spec.max_steps * spec.batch_size * spec.gradient_accumulation // spec.num_generations
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = []
    while len(order) < needed:
        order += torch.randperm(len(used), generator=generator).tolist()
    named, instance = [used[place] for place in order], environment.make()
    return Dataset.from_list([row_of(spec.rollouts, instance, row["seed"], row["question"]) for row in named])


@contextmanager
def _words() -> Iterator[None]:
    try:
        yield
    except SessionLost as lost:
        raise Stop(
            f"GRPO lost the environment: {lost}. The last finished step is kept.",
            "See that its server runs, then run again: it goes on from there.",
        ) from lost


def _take_places(pool: EnvironmentPool, environment: EnvironmentSpec) -> None:
    """Opens a session for every rollout of a step, before a model is loaded. Raises Stop where there are too few."""
    try:
        pool.open_all()
    except SessionLost:
        if pool.breaker.gave_up or not pool.granted:
            raise
        raise Stop(
            f"A GRPO step plays {len(pool.sessions)} rollouts at once (grpo.batch_size × grpo.gradient_accumulation), "
            f"and {pool.server.url} grants {pool.granted} sessions.",
            f"Raise max_concurrent_envs of the {environment.name} server, or lower grpo.gradient_accumulation.",
        ) from None


def _config(bench: Bench, spec: GrpoSpec, seed: int) -> Any:
    from trl import GRPOConfig

    return GRPOConfig(
        **arguments(bench, spec, seed, "grpo"),
        **generation_arguments(spec.generation),
        max_steps=spec.max_steps,
        shuffle_dataset=False,  # the rows are, see _rows
        num_generations=spec.num_generations,
        max_completion_length=spec.max_completion_length,
        max_grad_norm=spec.max_grad_norm,
        temperature=spec.temperature,
        beta=spec.beta,
        chat_template_kwargs=TEMPLATE_ARGUMENTS,
    )
