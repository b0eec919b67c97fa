"""Whose trainers the GPU benchmark times: TRL's as they are, TRL's with our tool loop, or what the stages make.

In: `how.trainer`, settings, questions. Out: a trainer class, and the arguments of GRPO's that go with it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, NamedTuple

from apprentice.envs.player import Player, facade_of
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.wire.session import Session
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.episode import Episode
from apprentice.tasks.episodes.example import drafts_of
from apprentice.tasks.files.question_lists import TrainedQuestions
from apprentice.tasks.rollouts.generation import with_engine
from apprentice.tasks.rollouts.live_rollouts import LiveRollouts
from apprentice.tasks.rollouts.question_rows import row_of
from apprentice.tasks.rollouts.rewards import EnvironmentReward
from apprentice.tasks.rollouts.rollout_modes import ROLLOUT_MODES
from apprentice.tasks.rollouts.sampling import skipping_dead_groups
from apprentice.tasks.sft import trainer_class
from apprentice.tasks.training.shared_prompts import sharing_prompts
from tests.bench.gpu_settings import TASK, Variant


class Online(NamedTuple):
    """How GRPO plays."""

    trainer: Any
    arguments: dict[str, Any]
    waited: Callable[[], float]
    """Seconds that the model has waited for the environment so far."""


def sft_trainer(chosen: Variant) -> Any:
    from trl import SFTTrainer

    return trainer_class(chosen.sft) if chosen.how.trainer == "stage" else SFTTrainer


@contextmanager
def grpo_trainer(bench: StageContext, chosen: Variant, episodes: list[Episode], tokenizer: Any) -> Iterator[Online]:
    """The trainer of GRPO on the questions of these episodes, over the stage's environment server."""
    from datasets import Dataset

    spec, instance = chosen.grpo, TASK.make()
    with _trl(bench) if chosen.how.trainer == "trl" else _own_loop(bench, chosen) as online:
        trainer = online.trainer
        if chosen.how.trainer == "stage":  # as tasks/grpo.py, without what these settings do not ask for
            draft = drafts_of(tokenizer, instance.schemas).after
            trainer = with_engine(_sharing(trainer, chosen, draft), spec.generation, spec.bf16)
            trainer = skipping_dead_groups(trainer, spec)
        rows = [row_of(spec.rollouts, instance, episode.seed, episode.question) for episode in episodes]
        yield online._replace(trainer=trainer, arguments=online.arguments | {"train_dataset": Dataset.from_list(rows)})


def _sharing(trainer: Any, chosen: Variant, draft: Any) -> Any:
    spec = chosen.grpo
    return sharing_prompts(trainer, spec.plain_generation, spec.bf16, draft) if spec.share_prompts else trainer


@contextmanager
def _own_loop(bench: StageContext, chosen: Variant) -> Iterator[Online]:
    spec, server = chosen.grpo, bench.run.servers.environment(TASK.name)
    together = spec.batch_size * spec.gradient_accumulation
    with EnvironmentPool(TASK, server, together) as pool, LiveRollouts(pool) as rollouts:
        pool.open_all()
        trainer, way = ROLLOUT_MODES[spec.rollouts](TASK.make(), rollouts)
        reward = EnvironmentReward(spec, TrainedQuestions(bench.scratch / "asked.jsonl"), rollouts)
        yield Online(trainer, way | {"reward_funcs": reward}, lambda: rollouts.waited_s)


@contextmanager
def _trl(bench: StageContext) -> Iterator[Online]:
    """TRL's own loop: an environment for each rollout, reset and stepped one after another."""
    from trl import GRPOTrainer

    server, players, spent = bench.run.servers.environment(TASK.name), dict[int, Player](), [0.0]
    with ExitStack() as closing:

        def environment() -> Any:
            player = TASK.make(Session(server))
            closing.callback(player.close)
            facade = facade_of(player)
            for name in ("reset", *(tool.name for tool in player.tools)):
                setattr(type(facade), name, _timed(getattr(type(facade), name), spent))
            players[id(facade)] = player
            return facade

        def reward(environments: list[Any], **_: Any) -> list[float]:
            return [players[id(each)].reward or 0.0 for each in environments]

        way = {"environment_factory": environment, "reward_funcs": reward}
        yield Online(GRPOTrainer, way, lambda: spent[0])


def _timed(method: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    @wraps(method)
    def timed(*given: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return method(*given, **named)
        finally:
            spent[0] += time.perf_counter() - began

    return timed
