"""GRPO in the teacher's environment: the student learns from the rewards of its rollouts.

In: the SFT checkpoint or the student itself, the GRPO window's questions. Out: `GrpoCheckpoint`: weights, tokenizer,
log.json, curves.png, signals.json, completions.jsonl.
Runs TRL's GRPOTrainer in one of the modes of rollouts/rollout_modes.py. The seed is a column of the dataset, so all
completions of a group answer one question. A rollout lost to infrastructure has the reward None, never 0.0.
"""

import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.mixture import SessionOfParts
from apprentice.envs.player import Player
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.wire.session import SessionLost
from apprentice.tasks.analysis.curve_signals import ENTROPY_WITH_SIGNAL
from apprentice.tasks.artifacts.types import Checkpoint, GrpoCheckpoint, Questions
from apprentice.tasks.engine.processes import on_processes
from apprentice.tasks.engine.stage import Drawn, StageContext, stage
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.example import drafts_of
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS, chat_format, prompt_ids
from apprentice.tasks.episodes.thinking import thinking_of
from apprentice.tasks.files.question_lists import TrainedQuestions, used_questions
from apprentice.tasks.models.checkpoints import adapter_arguments, ending_at, model_to_train
from apprentice.tasks.models.configuration import context_length, question_too_long
from apprentice.tasks.models.memory import Machine, check_training, explained_oom, this_machine
from apprentice.tasks.models.student_model import built_model
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.models.trl_internals import on_one_gpu
from apprentice.tasks.reporting import announce, pictures
from apprentice.tasks.reporting.errors import Stop, as_stop
from apprentice.tasks.rollouts.generation import check_generation, generation_arguments, with_engine
from apprentice.tasks.rollouts.groups import GroupLog
from apprentice.tasks.rollouts.live_rollouts import LiveRollouts
from apprentice.tasks.rollouts.question_rows import METRIC, held_out_rows, row_of, split
from apprentice.tasks.rollouts.rewards import EnvironmentReward
from apprentice.tasks.rollouts.rollout_modes import ROLLOUT_MODES
from apprentice.tasks.rollouts.sampling import Curriculum, InOrder, keep_in_checkpoints, refilling, skipping_dead_groups
from apprentice.tasks.rollouts.streams import Stream, streams_of
from apprentice.tasks.rollouts.thought_length import (
    TOKENS,
    shapings,
    thought_metrics,
    tokens_of_thoughts,
    turn_limit,
)
from apprentice.tasks.settings.grpo_settings import GrpoSpec
from apprentice.tasks.settings.spec import Purpose, ThinkingSpec
from apprentice.tasks.settings.trl_arguments import config_of
from apprentice.tasks.statistics.question_kinds import kinds_of, kinds_over_time
from apprentice.tasks.training.first_step import TOY, check_arguments, check_scheduler, config_of_a_step
from apprentice.tasks.training.shared_prompts import sharing_prompts
from apprentice.tasks.training.tracking.completions import log_completions
from apprentice.tasks.training.trainer import arguments, finish, train
from apprentice.tasks.training.watcher import select_weights, watch

LOST = (
    SessionLost,
    "GRPO lost the environment: {}. The last finished step is kept.",
    "Check that its server runs, then run again: training resumes from there.",
)
"""What ends a training, as `as_stop` takes it."""
SHOWN = {"reward": "reward", "frac_reward_zero_std": "groups without signal"}


@stage(produces=GrpoCheckpoint, version=5, title="GRPO", drawn=Drawn("GRPO"), gpu=True)
def grpo(
    context: StageContext,
    spec: GrpoSpec,
    checkpoint: Checkpoint,
    environment: EnvironmentSpec,
    questions: Questions,
    seed: int,
) -> dict[str, Any]:
    """Trains for `spec.max_steps` steps.

    Raises Stop when more than `spec.max_failed` of the rollouts are lost, or when the server is unavailable for longer
    than `server.patience`; the last finished step is kept.
    """
    check_machine(spec, this_machine())
    check_scheduler(spec)
    if spec.args:  # here and not in train_grpo: its processes share a world, and its seed is set
        tokenizer = load_tokenizer(context.fetch(checkpoint), context.run.trusted)
        check_arguments(spec, lambda given: first_step(spec, given, tokenizer, []))
    if spec.processes > 1:  # check the total first; each process then opens its own, and takes turns with no other
        server = context.run.servers.environment(environment.name)
        sessions = spec.sessions() * spec.processes
        with EnvironmentPool(environment, server, sessions, announce.warn) as pool, as_stop(*LOST):
            _open_a_session_each(pool, environment)
    with explained_oom(spec):
        return on_processes(spec, train_grpo, context, spec, checkpoint, environment, questions, seed)


def check_machine(spec: GrpoSpec, machine: Machine) -> None:
    """Raises Stop for hardware, a package or a generation server that is missing."""
    machine = machine._replace(processes=spec.processes)
    check_training(spec, machine)
    check_generation(spec.generation, machine)


def first_step(spec: GrpoSpec, given: dict[str, Any], tokenizer: Any, _tools: list[dict[str, Any]]) -> None:
    """Makes a step of GRPO on a toy model; transformers generates."""
    from datasets import Dataset
    from trl import GRPOTrainer

    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": "user"}]}] * 2)
    own = {"per_device_train_batch_size": 2, "num_generations": 2, "max_completion_length": 2, "beta": spec.beta}
    with config_of_a_step(spec, own, given) as config:
        GRPOTrainer(
            model=built_model(TOY, tokenizer, seed=0),
            processing_class=tokenizer,
            train_dataset=rows,
            reward_funcs=lambda prompts, **_: [float(place) for place in range(len(prompts))],
            args=config,
        ).train()


def train_grpo(
    context: StageContext,
    spec: GrpoSpec,
    checkpoint: Checkpoint,
    environment: EnvironmentSpec,
    questions: Questions,
    seed: int,
) -> dict[str, Any]:
    """The stage's body, in each of its processes."""
    from transformers import set_seed

    set_seed(seed)
    rank = os.environ.get("RANK", "0")
    trained_questions = TrainedQuestions(context.scratch / f"asked-{rank}.jsonl")  # each process has all
    server = context.run.servers.environment(environment.name)
    sessions = spec.sessions()
    with (
        EnvironmentPool(environment, server, sessions, announce.warn) as pool,
        LiveRollouts(pool) as rollouts,
        as_stop(*LOST),
    ):
        pool.open_all()
        instance = environment.make()
        streams = streams_of(instance, spec.reward_weights)
        folder = context.fetch(checkpoint)
        used = used_questions(context.fetch(questions), Purpose.TRAIN)
        if not used:
            raise Stop("No question of windows.grpo is left to ask.", "Widen the task or the window.")
        tokenizer = load_tokenizer(folder, context.run.trusted)
        own = grpo_arguments(context, spec, seed, streams)
        thinking = thinking_of(tokenizer)
        wanted = spec.max_completion_length + tokens_of_thoughts(thinking, instance.max_turns)
        most = own["max_completion_length"] = within_context(wanted, folder, tokenizer, instance, used)
        cost = spec.thought_cost if thinking else 0.0
        shaped = shapings(cost, spec.soft_overlong, rollouts, tokenizer, most)
        own["reward_weights"] += [each.weight for each in shaped]
        given = _args(spec, thinking, instance.max_turns, most)
        config = config_of(type(spec), own, given)  # before the model: it decides how the model is sharded
        used, held = split(used, spec.held_out.questions, before=folder)
        trainer_class, mode = ROLLOUT_MODES[spec.rollouts](instance, rollouts)
        if spec.share_prompts:
            draft = drafts_of(tokenizer, [tool for part in instance.parts() for tool in part.schemas]).after
            trainer_class = sharing_prompts(trainer_class, spec.plain_generation, spec.bf16, draft)
        groups = GroupLog(context.scratch) if spec.keep_groups else None
        further = partial(thought_metrics, rollouts, tokenizer) if thinking else dict
        reward = EnvironmentReward(spec, trained_questions, rollouts, streams, groups, further, is_shaped=bool(shaped))
        rows = _rows(environment, used, spec, seed)
        curriculum = _curriculum(environment, used, rows, spec, seed, streams)
        trainer_class = with_engine(trainer_class, spec.generation, spec.bf16)
        trainer_class = refilling(trainer_class, spec, curriculum or InOrder(spec, rows))
        trainer_class = skipping_dead_groups(trainer_class, spec)
        trainer = trainer_class(
            model=ending_at(model_to_train(folder, spec, context.run.trusted), chat_format(tokenizer).ends),
            processing_class=tokenizer,
            train_dataset=rows,
            eval_dataset=held_out_rows(environment, held, spec.rollouts),
            reward_funcs=[reward, *reward.others(), *(each.function for each in shaped)],
            args=on_one_gpu(config),
            **adapter_arguments(spec.lora),
            **mode,
        )
        if curriculum:
            keep_in_checkpoints(trainer, curriculum)
        watch(trainer, spec.signals)
        completions = log_completions(context, trainer, rollouts, spec.num_generations, spec.said_every)
        train(context, "GRPO steps", trainer, spec.max_steps)
        select_weights(context, trainer, spec.signals)
    if trainer.is_world_process_zero():
        completions.publish(context.out)
        if groups:
            groups.publish(context.scratch, context.out)
        if over_time := kinds_over_time(trainer.state.log_history):
            picture = pictures.kinds(over_time, context.out / "curriculum.png")
            announce.picture("grpo-curriculum", picture, "What was asked, and the success of each kind")
    # a curriculum may have a stream for each of very many kinds
    shown = _shown(trainer.state.log_history, [] if curriculum else streams)
    return finish(context, trainer, spec, shown, trained_questions.items(), folder)


LONGEST = 16
"""Questions, those of the most letters, whose tokens are counted."""


def within_context(wanted: int, folder: Path, tokenizer: Any, instance: Player, used: list[dict[str, Any]]) -> int:
    """Return the tokens of a completion that the model's context has room for after the longest questions.

    Raises Stop where a question alone fills it.
    """
    longest = sorted(used, key=lambda row: len(row["question"]))[-LONGEST:]
    lengths = [
        len(prompt_ids(tokenizer, prompt(part, row["question"]), part.schemas))
        for row in longest
        for part in [instance.part(row["seed"])]
    ]
    context = context_length(json.loads((folder / "config.json").read_text()))
    room = context - max(lengths)
    if room < 1:
        raise question_too_long(max(lengths), "the model", context)
    if room < wanted:
        announce.warn(
            f"The longest question takes {max(lengths)} of the model's {context} tokens: completions have {room}, and "
            f"grpo.max_completion_length, with thoughts, allows {wanted}."
        )
    return min(room, wanted)


def _args(spec: GrpoSpec, thinking: ThinkingSpec | None, turns: int, most: int) -> dict[str, Any]:
    """The recipe's own arguments; those of generation end a turn of several with its own thought."""
    if thinking is None or turns == 1:
        return spec.args
    limit = turn_limit(thinking, spec.max_completion_length, most, spec.generation.engine)
    return spec.args | {"generation_kwargs": limit | spec.args.get("generation_kwargs", {})}


def _curriculum(
    environment: EnvironmentSpec,
    used: list[dict[str, Any]],
    rows: Any,
    spec: GrpoSpec,
    seed: int,
    streams: list[Stream],
) -> Curriculum | None:
    if spec.curriculum is None:
        return None
    kinds = kinds_of(environment, used, spec.curriculum.by)
    seeds = rows["seed"] if "seed" in rows.column_names else [prompt[-1]["seed"] for prompt in rows["prompt"]]
    return Curriculum(spec.curriculum, rows, [kinds[each] for each in seeds], seed, streams)


def _shown(log: list[dict[str, float]], streams: list[Stream]) -> dict[str, str]:
    """The metrics of the log to draw, and their names: those of the streams if there are several."""
    skipped = any(ENTROPY_WITH_SIGNAL in entry for entry in log)
    thought = {TOKENS: "tokens of thought"} if any(TOKENS in entry for entry in log) else {}
    entropy = {ENTROPY_WITH_SIGNAL: "entropy of groups with signal"} if skipped else {"entropy": "entropy"}
    return SHOWN | entropy | thought | {f"rewards/{each.called}/mean": each.called for each in streams if streams[1:]}


def _rows(environment: EnvironmentSpec, used: list[dict[str, Any]], spec: GrpoSpec, seed: int) -> Any:
    """The questions that steps may ask, in their order: one row per question, with the prompt and the seed.

    Rows come in the order of TRL's sampler, repeated for as many epochs as the steps need: TRL's sampler loses its
    epoch when a training is resumed. For a curriculum every question is among them.
    """
    import torch
    from datasets import Dataset

    needed = max(spec.max_steps * spec.questions_a_step, len(used) if spec.curriculum else 0)
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = []
    while len(order) < needed:
        order += torch.randperm(len(used), generator=generator).tolist()
    named, instance = [used[index] for index in order], environment.make()
    return Dataset.from_list([row_of(spec.rollouts, instance, row["seed"], row["question"]) for row in named])


def _open_a_session_each(pool: EnvironmentPool, environment: EnvironmentSpec) -> None:
    try:
        pool.open_all(turns=False)
    except SessionLost:
        if pool.breaker.gave_up or not pool.granted:
            raise
        name, url, granted = _scarcest(pool, environment)
        raise Stop(
            f"A GRPO step plays {len(pool.sessions)} rollouts at once (grpo.batch_size × "
            f"gradient_accumulation × processes), and {url} grants {granted} sessions.",
            f"Raise max_concurrent_envs of the {name} server (above 1 its class must set "
            "SUPPORTS_CONCURRENT_SESSIONS), lower grpo.gradient_accumulation, or set grpo.processes: 1, whose rollouts "
            "take turns.",
        ) from None


def _scarcest(pool: EnvironmentPool, environment: EnvironmentSpec) -> tuple[str, str, int]:
    """Name, URL and granted sessions of the server that grants the fewest; a mixture has several servers."""
    if not pool.server.parts:
        return environment.name, pool.server.url, pool.granted
    mixed = [session for session in pool.sessions if isinstance(session, SessionOfParts)]
    granted = {name: sum(session.part(name).is_open for session in mixed) for name in pool.server.parts}
    name = min(granted, key=lambda each: granted[each])
    return name, pool.server.parts[name].url, granted[name]


def grpo_arguments(
    context: StageContext, spec: GrpoSpec, seed: int, streams: Sequence[Stream] = (Stream(),)
) -> dict[str, Any]:
    """The arguments of GRPOConfig, without the recipe's `args`."""
    return {
        **arguments(context, spec, seed),
        **held_out_arguments(spec),
        **generation_arguments(spec.generation),
        "reward_weights": [stream.weight for stream in streams],
        "max_steps": spec.max_steps,
        "shuffle_dataset": False,  # _rows shuffles
        "num_generations": spec.num_generations,
        "max_completion_length": spec.max_completion_length,
        "max_grad_norm": spec.max_grad_norm,
        "temperature": spec.temperature,
        "beta": spec.beta,
        "chat_template_kwargs": TEMPLATE_ARGUMENTS,
    }


def held_out_arguments(spec: GrpoSpec) -> dict[str, Any]:
    """The evaluation arguments of GRPOConfig; empty without held-out questions."""
    if not spec.held_out.questions:
        return {}
    return {
        "eval_strategy": "steps",
        "eval_steps": spec.held_out.every,
        "per_device_eval_batch_size": spec.held_out.at_once(spec.batch_size),
        "num_generations_eval": 1,
        "metric_for_best_model": METRIC,
        "greater_is_better": True,
    }
