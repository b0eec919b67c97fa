"""GRPO in the environment that the teacher played: the student learns from the reward of its own attempts.

In: the SFT checkpoint, the GRPO window's questions. Out: `GrpoCheckpoint`: weights, tokenizer, log.json, curves.png,
signals.json, completions.jsonl.
TRL's GRPOTrainer, by one of the modes in training/entry_points.py. The seed stands in the dataset's row, so the
completions of one group answer one question; a rollout that infrastructure failed scores None, never 0.0.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.wire.mixture import SessionOfParts
from apprentice.envs.wire.session import SessionLost
from apprentice.tasks.artifacts.types import GrpoCheckpoint, Questions, SftCheckpoint
from apprentice.tasks.engine.processes import on_processes
from apprentice.tasks.engine.stage import StageContext, stage
from apprentice.tasks.episodes.learned import TrainedQuestions
from apprentice.tasks.episodes.questions import read_questions
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.models.adapters import adapter_arguments, model_to_train
from apprentice.tasks.models.hardware import check_training, this_machine
from apprentice.tasks.models.memory import explain_oom
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.training import GrpoSpec
from apprentice.tasks.settings.trl_arguments import config_of
from apprentice.tasks.training.completions import log_completions
from apprentice.tasks.training.entry_points import ROLLOUT_MODES, row_of
from apprentice.tasks.training.generation import check_generation, generation_arguments, with_engine
from apprentice.tasks.training.held_out import evaluation, held_out_rows, split
from apprentice.tasks.training.rewards import EnvironmentReward, Stream, streams_of
from apprentice.tasks.training.rollouts import Rollouts
from apprentice.tasks.training.trainer import Learned, arguments, finish, on_one_gpu, train
from apprentice.tasks.training.watcher import select_weights, watch

SHOWN = {"reward": "reward", "frac_reward_zero_std": "groups without signal", "entropy": "entropy"}


@stage(produces=GrpoCheckpoint, version=4, title="GRPO", gpu=True)
@explain_oom("grpo")
def grpo(
    context: StageContext,
    spec: GrpoSpec,
    checkpoint: SftCheckpoint,
    environment: EnvironmentSpec,
    questions: Questions,
    seed: int,
) -> dict[str, Any]:
    """Trains for `spec.max_steps`. Raises Stop when more than `spec.max_failed` of the rollouts are lost, or the server
    is away for longer than its patience: then the last finished step is kept."""
    machine = this_machine()._replace(processes=spec.processes)
    check_training("grpo", spec, machine)
    check_generation(spec.generation, machine)
    if spec.processes > 1:  # all of them together; then each takes its own
        server = context.run.servers.environment(environment.name)
        with EnvironmentPool(environment, server, spec.sessions() * spec.processes, announce.warn) as pool, _words():
            _take_places(pool, environment)
    return on_processes(spec, train_grpo, context, spec, checkpoint, environment, questions, seed)


def train_grpo(
    context: StageContext,
    spec: GrpoSpec,
    checkpoint: SftCheckpoint,
    environment: EnvironmentSpec,
    questions: Questions,
    seed: int,
) -> dict[str, Any]:
    """The stage's body, in each of its processes."""
    from transformers import set_seed

    set_seed(seed)
    asked = TrainedQuestions(
        context.scratch / f"asked-{os.environ.get('RANK', '0')}.jsonl"
    )  # each process knows all of them
    server = context.run.servers.environment(environment.name)
    places = spec.sessions()
    with EnvironmentPool(environment, server, places, announce.warn) as pool, Rollouts(pool) as rollouts, _words():
        _take_places(pool, environment)
        instance = environment.make()
        streams = streams_of(instance, spec)
        own = grpo_arguments(context, spec, seed, streams)
        config = config_of("grpo", own, spec.args)  # before the model: it says how that is sharded
        folder = context.fetch(checkpoint)
        used = [row for row in read_questions(context.fetch(questions), "grpo") if row["used"]]
        used, held = split(used, spec.held_out.questions, before=folder)
        trainer_class, way = ROLLOUT_MODES[spec.rollouts](instance, rollouts)
        reward = EnvironmentReward(spec, asked, rollouts, streams)
        tokenizer = load_tokenizer(folder, context.run.trusted)
        trainer = with_engine(trainer_class, spec.generation)(
            model=model_to_train(folder, spec, context.run.trusted),
            processing_class=tokenizer,
            train_dataset=_rows(environment, used, spec, seed),
            eval_dataset=held_out_rows(environment, held, spec.rollouts),
            reward_funcs=[reward, *reward.others()],
            args=on_one_gpu(config),
            **adapter_arguments(spec.lora),
            **way,
        )
        watch(trainer, spec.signals)
        said = log_completions(context, trainer, rollouts, spec)
        train(context, "GRPO steps", trainer, spec.max_steps)
        select_weights(context, trainer, spec.signals)
    if trainer.is_world_process_zero():
        said.publish(context.out)
    shown = SHOWN | ({f"rewards/{stream.called}/mean": stream.called for stream in streams} if streams[1:] else {})
    return finish(context, trainer, shown, Learned("grpo", asked.items(), before=folder), spec.lora)


def _rows(environment: EnvironmentSpec, used: list[dict[str, Any]], spec: GrpoSpec, seed: int) -> Any:
    """A row a question: the prompt whose user turn `reset` completes, and the seed that names the question.

    In the order of TRL's own sampler, for as many passes as the steps need: the sampler itself forgets in which pass it
    was when a training is resumed.
    """
    import torch
    from datasets import Dataset

    needed = spec.max_steps * spec.rollouts_a_step // spec.num_generations
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
        name, url, granted = _scarcest(pool, environment)
        raise Stop(
            f"A GRPO step plays {len(pool.sessions)} rollouts at once (grpo.batch_size × "
            f"gradient_accumulation × processes), and {url} grants {granted} sessions.",
            f"Raise max_concurrent_envs of the {name} server, or lower grpo.gradient_accumulation.",
        ) from None


def _scarcest(pool: EnvironmentPool, environment: EnvironmentSpec) -> tuple[str, str, int]:
    """Name, URL and sessions granted of the server that grants the fewest; a mixture has several."""
    if not pool.server.parts:
        return environment.name, pool.server.url, pool.granted
    mixed = [session for session in pool.sessions if isinstance(session, SessionOfParts)]
    granted = {name: sum(session.part(name).is_open for session in mixed) for name in pool.server.parts}
    name = min(granted, key=lambda each: granted[each])
    return name, pool.server.parts[name].url, granted[name]


def grpo_arguments(
    context: StageContext, spec: GrpoSpec, seed: int, streams: Sequence[Stream] = (Stream(),)
) -> dict[str, Any]:
    """What GRPOConfig is told, but for the recipe's `args`."""
    return {
        **arguments(context, spec, seed, "grpo"),
        **evaluation(spec),
        **generation_arguments(spec.generation),
        "reward_weights": [stream.weight for stream in streams],
        "max_steps": spec.max_steps,
        "shuffle_dataset": False,  # the rows are, see _rows
        "num_generations": spec.num_generations,
        "max_completion_length": spec.max_completion_length,
        "max_grad_norm": spec.max_grad_norm,
        "temperature": spec.temperature,
        "beta": spec.beta,
        "chat_template_kwargs": TEMPLATE_ARGUMENTS,
    }
