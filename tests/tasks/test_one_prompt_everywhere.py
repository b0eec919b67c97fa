"""Law 1 for every environment of the catalogue: one episode has one sequence of token ids, whoever makes it.

The tasks are those of the laptop recipes; their scripted teachers play them, over their own servers.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.catalog import CATALOGUE, EnvironmentSpec, next_call
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.runtime.servers import RunServers
from apprentice.tasks.episodes.episode import Episode, prompt
from apprentice.tasks.episodes.rendering import prompt_ids
from apprentice.tasks.models.tokenizer import tokenizer_of
from apprentice.tasks.rollouts.live_rollouts import LiveRollouts
from apprentice.tasks.rollouts.rollout_modes import by_factory
from tests.bench.environments import recipe_of
from tests.tasks.test_one_prompt import generated, said, sft_ids

SEEDS = (5, 6, 7, 8)


class Case:
    """An environment as its laptop recipe has it, and episodes of its scripted teacher."""

    def __init__(self, task: EnvironmentSpec, server: EnvironmentServer):
        self.task, self.server = task, server
        with EnvironmentPool(task, server, size=1) as pool:
            self.played = [self._episode(pool, seed) for seed in SEEDS]
        parts = task.make().parts()
        questions_by_part = [
            [each.question for each in self.played if self.part(each.seed).label == part.label] for part in parts
        ]
        self.tokenizer = tokenizer_of(list(zip(parts, questions_by_part, strict=True)))

    def part(self, seed: int) -> Any:
        return self.task.make().part(seed)

    def _episode(self, pool: EnvironmentPool, seed: int) -> Episode:
        settings = {name: value for name, value in self.task.settings.items() if name != "halving"}  # that script loses
        episode = Episode(pool.players[0], seed)
        while not episode.done:
            call = next_call(self.task.name, settings, episode.messages, 0.0, seed)
            assert not isinstance(call, str)
            episode.step(said(*call))
        assert episode.reward == 1.0, f"seed {seed}"
        return episode


SLOW = ("browsergym", "catch", "multi", "sudoku", "wordle")
"""Environments whose servers take seconds to start."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.long) if name in SLOW else name for name in CATALOGUE],
)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    recipe = load_recipe(recipe_of(request.param), ["server.sessions=4", "evaluate.batch_size=4"])
    with RunServers(recipe) as servers:
        yield Case(recipe.environment, servers.environment(request.param))


def test_grpo_and_sft_have_the_same_ids_of_a_whole_episode(case: Case, tmp_path: Path):
    with EnvironmentPool(case.task, case.server, size=len(SEEDS)) as pool, LiveRollouts(pool) as rollouts:
        trainer_class, how = by_factory(case.task.make(), rollouts)
        made = generated(trainer_class, case.tokenizer, case.task, case.played, tmp_path, how)
        rollouts.wait()
        assert [environment.reward for environment in rollouts.players] == [1.0] * len(SEEDS)
    for episode, rollout in zip(case.played, made, strict=True):
        concatenated = rollout["prompt_ids"] + rollout["completion_ids"]
        assert sft_ids(case.tokenizer, episode, tmp_path)[: len(concatenated)] == concatenated
        turns = [message for message in episode.messages if message["role"] == "assistant"]
        assert case.tokenizer.decode(rollout["completion_ids"]).count("<tool_call>") == len(turns)


def test_every_turn_of_the_teacher_has_the_prompt_that_the_student_has_in_an_evaluation(case: Case, tmp_path: Path):
    for episode in case.played:
        part = case.part(episode.seed)
        assert episode.messages[:2] == prompt(part, episode.question)
        assert episode.tools == part.schemas
        learned = sft_ids(case.tokenizer, episode, tmp_path)
        for place, message in enumerate(episode.messages):
            if message["role"] == "assistant":
                shown = prompt_ids(case.tokenizer, heard_before(episode, place), episode.tools)
                assert learned[: len(shown)] == shown


def heard_before(episode: Episode, place: int) -> list[dict[str, Any]]:
    """What an examined student has before it: its own turns come back from the parser, arguments as objects."""

    def parsed(message: dict[str, Any]) -> dict[str, Any]:
        calls = [
            call | {"function": call["function"] | {"arguments": json.loads(call["function"]["arguments"])}}
            for call in message.get("tool_calls") or []
        ]
        return message | ({"tool_calls": calls, "content": ""} if calls else {})

    return [parsed(message) for message in episode.messages[:place]]
