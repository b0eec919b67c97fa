"""Each reward stream is a function, a weight and a metric of its own, and rewards only where it belongs."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.player import Mixture, Player
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import SessionLost
from apprentice.tasks.analysis.curve_signals import value_of
from apprentice.tasks.episodes.thinking import cut_off
from apprentice.tasks.files.question_lists import TrainedQuestions
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.rollouts.live_rollouts import LiveRollouts
from apprentice.tasks.rollouts.rewards import OWN_REWARD, UNFINISHED, EnvironmentReward, _StepSummary
from apprentice.tasks.rollouts.streams import Stream, streams_of
from apprentice.tasks.settings.grpo_settings import GrpoSpec
from tests.conftest import TASKS
from tests.tasks.episodes.test_episode import LOOK, RIGHT, TEXT, WRONG, Risky


class Nothing(BaseModel):
    """No settings."""


class Game(ToolEnvironment):
    """A toy that tells winning from tidiness."""

    Settings = Nothing
    version = "1"
    streams = {"won": 1.0, "tidy": 0.5}  # noqa: RUF012
    tidy = 0.25

    @property
    def instructions(self) -> str:
        return ""

    def reset(self, *, seed: int, **row: Any) -> str:
        return ""

    def scores(self) -> dict[str, float | None]:
        return {"won": self.reward, "tidy": self.tidy}


def mixture() -> Player:
    """Of a game with streams and one without."""
    return Mixture(Game(Nothing()), {"game": ended(0.0), "sum": plain(0.0)}, [1.0, 1.0])


def ended(reward: float | None, label: str = "") -> Player:
    game = Game(Nothing())
    game.reward, game.failure = reward, "server gone" if reward is None else None
    return Player(game, label)


def plain(reward: float | None, label: str = "") -> Player:
    player = TASKS["chain_sum"].make()
    player.environment.reward, player.label = reward, label
    return player


class Ended(LiveRollouts):
    def __init__(self, environments: list[Player]):
        super().__init__(EnvironmentPool(TASKS["chain_sum"], EnvironmentServer(url="http://127.0.0.1:9"), size=1))
        self.players = environments


def rewards_by_stream(folder: Path, instance: Player, environments: list[Player], **settings: Any) -> dict:
    """What GRPO is told, by the name of the metric."""
    spec = GrpoSpec(**settings)
    first = EnvironmentReward(
        spec, TrainedQuestions(folder / "asked.jsonl"), Ended(environments), streams_of(instance, spec.reward_weights)
    )
    row = {"seed": range(len(environments)), "question": [""] * len(environments)}
    return {each.__name__: each(**row) for each in [first, *first.others()]}


def test_each_stream_of_an_environment_is_a_function_of_its_own(tmp_path: Path):
    rewards = rewards_by_stream(tmp_path, ended(0.0), [ended(1.0), ended(0.0)])
    assert rewards == {"won": [1.0, 0.0], "tidy": [0.25, 0.25]}


def test_what_infrastructure_lost_is_none_in_every_stream(tmp_path: Path):
    rewards = rewards_by_stream(tmp_path, ended(0.0), [ended(None), ended(1.0)])
    assert rewards == {"won": [None, 1.0], "tidy": [None, 0.25]}


def test_exact_rewards_round_the_first_stream_only(tmp_path: Path):
    rewards = rewards_by_stream(tmp_path, ended(0.0), [ended(0.7)], reward="exact")
    assert rewards == {"won": [0.0], "tidy": [0.25]}


def test_in_a_mixture_a_stream_rewards_only_its_own_environment(tmp_path: Path):
    mixed = [ended(1.0, "game"), plain(0.5, "sum"), plain(None, "sum")]
    rewards = rewards_by_stream(tmp_path, mixture(), mixed)
    assert rewards == {"game.won": [1.0, None, None], "game.tidy": [0.25, None, None], "sum": [None, 0.5, None]}


def test_an_environment_without_streams_has_the_metric_environment_reward(tmp_path: Path):
    assert rewards_by_stream(tmp_path, plain(0.0), [plain(0.5)]) == {"environment_reward": [0.5]}


@pytest.mark.parametrize(
    ("instance", "given", "weights"),
    [
        (Player(Game(Nothing())), {}, {"won": 1.0, "tidy": 0.5}),
        (Player(Game(Nothing())), {"tidy": 0.0}, {"won": 1.0, "tidy": 0.0}),
        (mixture(), {"game.tidy": 2.0}, {"game.won": 1.0, "game.tidy": 2.0, "sum": 1.0}),
        (mixture(), {"tidy": 3.0}, {"game.won": 1.0, "game.tidy": 3.0, "sum": 1.0}),  # of rungs
    ],
)
def test_weights_are_the_environments_own_unless_the_recipe_names_others(instance, given, weights):
    streams: list[Stream] = streams_of(instance, given)
    assert {stream.called: stream.weight for stream in streams} == weights


def test_rollouts_without_a_token_left_earn_the_lowest_reward_and_are_counted(tmp_path: Path):
    task = EnvironmentSpec(name=f"{Risky.__module__}:Risky", settings={"dataset": "chain_sum"})
    logged: dict[str, float] = {}
    with (
        EnvironmentPool(task, EnvironmentServer(url="http://127.0.0.1:9"), size=4) as pool,
        LiveRollouts(pool) as rollouts,
    ):
        rollouts.begin([{"seed": 1, "question": "Which number?"}] * 4)
        rollouts.step(dict(enumerate([RIGHT, WRONG, TEXT, LOOK])))  # no turn follows
        first = EnvironmentReward(GrpoSpec(), TrainedQuestions(tmp_path / "asked.jsonl"), rollouts)
        assert first(seed=[1] * 4, question=[""] * 4, log_metric=logged.__setitem__) == [1.0, -1.0, -1.0, -1.0]
    assert logged[UNFINISHED] == 0.5


class Endless(Risky):
    """Nobody knows how low its reward may get."""

    bounded = False
    unfinished = 0.0


@pytest.mark.parametrize(
    ("messages", "rewards"),
    [
        ([RIGHT, WRONG, cut_off("It is"), TEXT], [1.0, -1.0, -1.0, 0.0]),
        ([RIGHT, RIGHT, cut_off("It is"), TEXT], [1.0, 1.0, 0.0, 0.0]),
        ([WRONG, RIGHT, TEXT, cut_off("It is")], [-1.0, 1.0, 0.0, 0.0]),  # the wrong one is of another question
    ],
)
def test_a_thought_that_is_cut_off_earns_the_lowest_of_its_group_where_nobody_knows_a_lowest(
    tmp_path: Path, messages: list[dict[str, Any]], rewards: list[float]
):
    task = EnvironmentSpec(name=f"{Endless.__module__}:Endless", settings={"dataset": "chain_sum"})
    seeds = [3 if messages[0] == WRONG and n == 0 else 1 for n in range(4)]
    with (
        EnvironmentPool(task, EnvironmentServer(url="http://127.0.0.1:9"), size=4) as pool,
        LiveRollouts(pool) as rollouts,
    ):
        rollouts.begin([{"seed": seed, "question": "Which number?"} for seed in seeds])
        rollouts.step(dict(enumerate(messages)))
        first = EnvironmentReward(GrpoSpec(), TrainedQuestions(tmp_path / "asked.jsonl"), rollouts)
        assert first(seed=seeds, question=[""] * 4) == rewards


def test_where_the_reward_is_a_weighted_sum_the_environments_own_is_logged_beside_it(tmp_path: Path):
    logged: dict[str, float] = {}
    game, lost = ended(1.0), ended(None)
    streams = streams_of(game, {})
    first = EnvironmentReward(
        GrpoSpec(), TrainedQuestions(tmp_path / "asked.jsonl"), Ended([game, ended(0.5), lost]), streams
    )
    first(seed=[1, 2, 3], question=["", "", ""], log_metric=logged.__setitem__)
    assert logged == {OWN_REWARD: 0.75, UNFINISHED: 0.0}
    assert value_of({"reward": 1.3, OWN_REWARD: 0.75}, "reward") == 0.75
    assert value_of({"reward": 0.5}, "reward") == 0.5


@pytest.mark.parametrize(
    ("played", "lost", "broke", "remedy"),
    [
        (40, 5, 0, None),
        (40, 6, 0, "Check that its server runs"),
        (40, 6, 3, "Check that its server runs"),
        (40, 6, 4, "Fix its server, exclude the questions"),
        (200, 10, 0, None),
        (200, 11, 11, "Fix its server, exclude the questions"),
    ],
)
def test_a_training_that_loses_too_many_rollouts_stops_with_who_is_to_blame(
    played: int, lost: int, broke: int, remedy: str | None, tmp_path: Path
):
    reward = EnvironmentReward(GrpoSpec(max_failed=0.05), TrainedQuestions(tmp_path / "asked.jsonl"), Ended([]))
    reward._agree(_StepSummary([(3, "asked")], played - 1, 0, 0, "", ""))
    last = _StepSummary([], 1, lost, broke, "no answer", "")
    if remedy is None:
        reward._agree(last)
        assert (reward.played, reward.lost, reward.broke) == (played, lost, broke)
        return
    with pytest.raises(Stop, match=f"(?s)^{lost} of {played} rollouts were lost .*, {broke} of .* no answer.*{remedy}"):
        reward._agree(last)


def test_a_process_whose_server_is_gone_ends_all(tmp_path: Path):
    reward = EnvironmentReward(GrpoSpec(), TrainedQuestions(tmp_path / "asked.jsonl"), Ended([]))
    with pytest.raises(SessionLost, match="the server is gone"):
        reward._agree(_StepSummary([(3, "asked")], 8, 8, 0, "", "the server is gone"))
    assert reward.played == 0
