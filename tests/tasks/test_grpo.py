"""Laws 4 and 5 in GRPO: a group shares its question, an outage is no reward."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from apprentice.envs.breaker import SessionLost
from apprentice.envs.server import EnvironmentServer
from apprentice.envs.session import Session, breaker_of
from apprentice.tasks.contamination import Asked
from apprentice.tasks.errors import Stop
from apprentice.tasks.grpo import EnvironmentReward
from apprentice.tasks.specs import GrpoSpec
from tests.tasks.test_one_prompt import tiny_model


def ended(reward: float | None) -> Any:
    return SimpleNamespace(reward=reward, failure="server gone" if reward is None else None)


@pytest.fixture
def reward_of(tmp_path: Path, server: EnvironmentServer) -> Callable[..., EnvironmentReward]:
    """A reward function by the settings of GRPO."""

    def make(**settings: Any) -> EnvironmentReward:
        return EnvironmentReward(GrpoSpec(**settings), Asked(tmp_path / "asked.jsonl"), breaker_of(server))

    return make


def test_the_exact_reward_gives_nothing_for_partial_credit(reward_of):
    exact, score = reward_of(reward="exact"), reward_of(reward="score")
    environments = [ended(1.0), ended(0.33), ended(0.0)]
    assert exact(environments) == [1.0, 0.0, 0.0]
    assert score(environments) == [1.0, 0.33, 0.0]


def test_a_lost_rollout_scores_none_and_never_zero(reward_of):
    assert reward_of(reward="exact")([ended(None), ended(0.0)]) == [None, 0.0]


def test_too_many_lost_rollouts_stop_the_stage_with_the_reason(reward_of):
    reward = reward_of(max_failed=0.05)
    assert reward([ended(None)] * 5 + [ended(1.0)] * 60).count(None) == 5
    with pytest.raises(Stop, match=r"6 of 66 rollouts were lost.*server gone"):
        reward([ended(None)])


def test_every_rollout_of_a_group_is_asked_the_same_question(chain_sum, server: EnvironmentServer, tmp_path, reward_of):
    """In a real GRPOTrainer over the real server: two questions, four generations each."""
    from datasets import Dataset
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from apprentice.tasks.episode import prompt
    from apprentice.tasks.rendering import TEMPLATE_ARGUMENTS
    from apprentice.tasks.student import build_tokenizer

    asked: list[tuple[int, str]] = []

    class Noting(type(chain_sum.make())):
        def reset(self, *, seed: int, **row: Any) -> str:
            asked.append((seed, super().reset(seed=seed, **row)))
            return asked[-1][1]

    made: list[Noting] = []

    def factory() -> Noting:
        made.append(Noting(chain_sum.make().settings, Session(server)))
        return made[-1]

    tokenizer = build_tokenizer(chain_sum, ["1 + 1 =", "2 + 2 ="])
    opening = prompt(chain_sum.make(), "")
    trainer = GRPOTrainer(
        model=tiny_model(tokenizer),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": opening, "seed": seed} for seed in (11, 12)]),
        reward_funcs=reward_of(),
        environment_factory=factory,  # type: ignore[arg-type]
        args=GRPOConfig(
            str(tmp_path),
            report_to="none",
            use_cpu=True,
            bf16=False,
            max_steps=1,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=8,
            chat_template_kwargs=TEMPLATE_ARGUMENTS,
            disable_tqdm=True,
        ),
    )
    trainer.train()
    for instance in made:
        instance._close()
    groups = [asked[start : start + 4] for start in range(0, 8, 4)]
    assert len(asked) == 8
    assert all(len(set(group)) == 1 for group in groups)
    assert {group[0][0] for group in groups} == {11, 12}


def test_the_questions_that_were_trained_on_are_noted_by_seed_for_a_training_that_is_resumed(tmp_path, reward_of):
    prompts = [[{"role": "user", "content": "2 + 2?"}]] * 2 + [[{"role": "user", "content": "3 + 3?"}]]
    reward_of()([ended(1.0), ended(0.0), ended(None)], prompts=prompts, seed=[7, 7, 9])
    noted = tmp_path / "asked.jsonl"
    noted.write_text(noted.read_text() + '[11, "4 +')  # killed while it wrote
    assert dict(Asked(noted).items()) == {7: "2 + 2?", 9: "3 + 3?"}
    reward_of()([ended(1.0)], prompts=[[{"role": "user", "content": "4 + 4?"}]], seed=[11])
    assert list(Asked(noted).items()) == [(7, "2 + 2?"), (9, "3 + 3?"), (11, "4 + 4?")]


def test_no_reward_is_given_once_the_server_was_given_up(tmp_path, server: EnvironmentServer):
    breaker = breaker_of(server)
    reward = EnvironmentReward(GrpoSpec(), Asked(tmp_path / "asked.jsonl"), breaker)
    breaker.stop()
    with pytest.raises(SessionLost):
        reward([ended(None)] + [ended(1.0)] * 7)
