"""Laws 4 and 5 in GRPO: a group shares its question, an outage is no reward."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec, server_app
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.wire.server import EnvironmentServer, SessionLost
from apprentice.envs.wire.session import Session
from apprentice.tasks import grpo as stage
from apprentice.tasks.episodes.episode import Episode
from apprentice.tasks.files.question_lists import TrainedQuestions
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.rollouts.live_rollouts import LiveRollouts
from apprentice.tasks.rollouts.question_rows import row_of
from apprentice.tasks.rollouts.rewards import EnvironmentReward
from apprentice.tasks.rollouts.rollout_modes import ROLLOUT_MODES
from apprentice.tasks.settings.grpo_settings import GrpoSpec
from tests.conftest import TASKS
from tests.envs.published.serving import serving
from tests.tasks.test_one_prompt import tiny_model


class Played(LiveRollouts):
    """Rollouts that ended with these rewards."""

    def __init__(self, server: EnvironmentServer):
        super().__init__(EnvironmentPool(TASKS["chain_sum"], server, size=1))

    def with_rewards(self, *rewards: float | None) -> None:
        instances = [TASKS["chain_sum"].make() for _ in rewards]
        for instance, reward in zip(instances, rewards, strict=True):
            instance.environment.reward, instance.environment.failure = (
                reward,
                "server gone" if reward is None else None,
            )
        self.players = instances


@pytest.fixture
def played(server: EnvironmentServer) -> Played:
    return Played(server)


@pytest.fixture
def reward_of(tmp_path: Path, played: Played) -> Callable[..., Callable[..., list[float | None]]]:
    """What GRPO is told, by its settings and by what the episodes gave."""

    def make(**settings: Any) -> Callable[..., list[float | None]]:
        reward = EnvironmentReward(GrpoSpec(**settings), TrainedQuestions(tmp_path / "asked.jsonl"), played)

        def give(*rewards: float | None, **row: Any) -> list[float | None]:
            played.with_rewards(*rewards)
            seeds = row.get("seed") or list(range(len(rewards)))
            return reward(seed=seeds, question=row.get("question") or [str(seed) for seed in seeds])

        return give

    return make


def test_the_exact_reward_gives_nothing_for_partial_credit(reward_of):
    exact, score = reward_of(reward="exact"), reward_of(reward="score")
    assert exact(1.0, 0.33, 0.0) == [1.0, 0.0, 0.0]
    assert score(1.0, 0.33, 0.0) == [1.0, 0.33, 0.0]


def test_a_lost_rollout_scores_none_and_never_zero(reward_of):
    assert reward_of(reward="exact")(None, 0.0) == [None, 0.0]


def test_too_many_lost_rollouts_stop_the_stage_with_the_reason(reward_of):
    reward = reward_of(max_failed=0.05)
    assert reward(*[None] * 5, *[1.0] * 60).count(None) == 5
    with pytest.raises(Stop, match=r"6 of 66 rollouts were lost.*server gone"):
        reward(None)


@pytest.mark.parametrize("way", ROLLOUT_MODES)
def test_every_rollout_of_a_group_is_asked_the_same_question(way: str, chain_sum, server, tmp_path):
    """In a real GRPOTrainer over the real server: two questions, four generations each."""
    from datasets import Dataset
    from trl.trainer.grpo_config import GRPOConfig

    from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
    from tests.tokenizers import build_tokenizer

    started: list[tuple[int, str]] = []

    class Noting(LiveRollouts):
        def begin(self, rows: Sequence[dict[str, Any]]) -> None:
            super().begin(rows)
            self.wait()
            episodes: list[Any] = [future.result() for future in self._episode_tasks]
            started.extend((row["seed"], episode.question) for row, episode in zip(rows, episodes, strict=True))

    instance = chain_sum.make()
    questions = {seed: Episode(chain_sum.make(Session(server)), seed).question for seed in (11, 12)}
    tokenizer = build_tokenizer(chain_sum, ["1 + 1 =", "2 + 2 ="])
    with EnvironmentPool(chain_sum, server, size=8) as pool, Noting(pool) as rollouts:
        trainer_class, how = ROLLOUT_MODES[way](instance, rollouts)
        trainer = trainer_class(
            model=tiny_model(tokenizer),
            processing_class=tokenizer,
            train_dataset=Dataset.from_list([row_of(way, instance, *named) for named in questions.items()]),
            reward_funcs=EnvironmentReward(GrpoSpec(), TrainedQuestions(tmp_path / "asked.jsonl"), rollouts),
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
            **how,
        )
        trainer.train()
    groups = [started[start : start + 4] for start in range(0, 8, 4)]
    assert len(started) == 8
    assert all(len(set(group)) == 1 for group in groups)
    assert {group[0] for group in groups} == set(questions.items())


def test_the_questions_that_were_trained_on_are_noted_by_seed_for_a_training_that_is_resumed(tmp_path, reward_of):
    reward_of()(1.0, 0.0, None, seed=[7, 7, 9], question=["2 + 2?", "2 + 2?", "3 + 3?"])
    noted = tmp_path / "asked.jsonl"
    noted.write_text(noted.read_text() + '[11, "4 +')  # killed while it wrote
    assert dict(TrainedQuestions(noted).items()) == {7: "2 + 2?", 9: "3 + 3?"}
    reward_of()(1.0, 0.0, seed=[11, 7], question=["4 + 4?", "2 + 2?"])
    assert list(TrainedQuestions(noted).items()) == [(7, "2 + 2?"), (9, "3 + 3?"), (11, "4 + 4?")]
    assert len(noted.read_text().splitlines()) == 3, "each question is noted once"


def test_no_reward_is_given_once_the_server_was_given_up(played: Played, reward_of):
    reward = reward_of()
    played._pool.breaker.stop()
    with pytest.raises(SessionLost):
        reward(None, *[1.0] * 7)


@pytest.mark.parametrize(
    ("granted", "gave_up", "raised"),
    [
        (3, None, Stop),
        (0, None, SessionLost),
        (3, "the server is gone", SessionLost),
    ],
)
def test_too_few_places_are_told_with_what_to_raise_and_a_server_that_is_gone_is_lost(
    granted: int, gave_up: str | None, raised: type[Exception], chain_sum: EnvironmentSpec
):
    def open_all(turns: bool) -> None:
        assert not turns
        raise SessionLost("no more sessions")

    pool: Any = SimpleNamespace(
        open_all=open_all,
        breaker=SimpleNamespace(gave_up=gave_up),
        granted=granted,
        sessions=[None] * 8,
        server=EnvironmentServer(url="http://there"),
    )
    words = (
        r"plays 8 rollouts at once .* http://there grants 3 sessions.*(?s:.)*max_concurrent_envs of the reasoning_gym"
    )
    with pytest.raises(raised, match=words if raised is Stop else "no more sessions"):
        stage._open_a_session_each(pool, chain_sum)
    pool.open_all = lambda turns: None
    stage._open_a_session_each(pool, chain_sum)


def test_of_a_mixture_the_server_with_the_fewest_places_is_named(chain_sum: EnvironmentSpec):
    """Two sessions wait for the second server, so of the third only one place is taken as well."""
    sums = {"name": "reasoning_gym", "settings": chain_sum.settings}
    parts = {"echo": {"name": "echo"}, "number": {"name": "number"}, "sums": sums}
    with ExitStack() as stack:
        servers = {
            name: EnvironmentServer(url=stack.enter_context(serving(server_app("number", places))), patience=0.3)
            for name, places in {"echo": 4, "number": 1, "reasoning_gym": 4}.items()
        }
        mixture = EnvironmentSpec(name="multi", settings={"parts": parts})
        pool = stack.enter_context(EnvironmentPool(mixture, EnvironmentServer(parts=servers), size=3))
        with pytest.raises(Stop) as stopped:
            stage._open_a_session_each(pool, mixture)
    assert "plays 3 rollouts at once" in str(stopped.value)
    assert f"{servers['number'].url} grants 1 sessions" in str(stopped.value)
    assert "max_concurrent_envs of the number server" in str(stopped.value)
