"""A reward is right by one rule: 1.0, up to the rounding of a sum. Filter, record, GRPO and audit agree."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.player import Player
from apprentice.envs.reward import is_right
from apprentice.envs.wire.reply import BadReply
from apprentice.flows.audit import exploits
from apprentice.flows.pages.episodes import EpisodeSource, Reader
from apprentice.tasks.analysis.difficulty import Difficulty, advice_on_groups, groups_that_differ
from apprentice.tasks.analysis.outcomes import CELLS, both_ways, failures_by_kind, outcome_of, why_dropped
from apprentice.tasks.analysis.reward_hacking import TeacherBehaviour, reward_hacking
from apprentice.tasks.dataset import Checked, RowReport
from apprentice.tasks.episodes.record import Record, read_episodes
from apprentice.tasks.evaluate import rates
from apprentice.tasks.mix import for_the_teacher
from apprentice.tasks.players.protocols import PROTOCOLS
from apprentice.tasks.rescore import is_same
from apprentice.tasks.rollouts.rewards import EnvironmentReward
from apprentice.tasks.rollouts.sampling import Curriculum
from apprentice.tasks.rollouts.streams import Stream
from apprentice.tasks.settings.grpo_settings import CurriculumSpec, GrpoSpec
from apprentice.tasks.statistics.calibration import calibration
from tests.tasks.evaluations import episode

RUBRIC = 0.7 + 0.2 + 0.1
TENTHS = sum([0.1] * 10)
OVER = 1.0000000000000002
SINGLE = 0.9999999403953552
"""The float of single precision below 1."""
REWARDS = {
    "whole": (1.0, True),
    "a rubric's sum": (RUBRIC, True),
    "ten tenths": (TENTHS, True),
    "a sum above 1": (OVER, True),
    "a sum in single precision": (SINGLE, True),
    "nearly": (0.9999, False),
    "one test of a million missed": (0.999998, False),
    "partial credit": (0.7, False),
    "nothing": (0.0, False),
    "less than nothing": (-1.0, False),
    "lost": (None, False),
}


def rollout(reward: float | None) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": "answer", "arguments": '{"answer": "7"}'}}
    messages = [
        {"role": "system", "content": "Answer."},
        {"role": "user", "content": "Question?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    about = {"seed": 1, "correct": "7", "failed_at": "", "environment": "toy 1", "messages": messages}
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}}
    return about | {"reward": reward, "tools": json.dumps([{"function": {"name": "answer", "parameters": schema}}])}


def counted_by_calibration(reward: float | None, chain_sum: EnvironmentSpec, folder: Path) -> bool:
    (folder / "rollouts.jsonl").write_text(json.dumps(rollout(reward)) + "\n")
    return calibration(folder, chain_sum)["accuracy"] == 1.0


def rewarded_by_grpo(reward: float | None) -> bool:
    function = EnvironmentReward(GrpoSpec(reward="exact"), Any, SimpleNamespace())  # type: ignore[arg-type]
    game: Any = SimpleNamespace(
        label="", reward=reward, streams=ToolEnvironment.streams, scores=lambda: {"environment_reward": reward}
    )
    return function._shaped(Stream(), game) == 1.0


def learned_by_the_curriculum(reward: float | None) -> bool:
    import torch

    asks = Curriculum(CurriculumSpec(forget=0.0), [{"seed": 0}, {"seed": 1}], ["a", "b"], 0)
    trainer = SimpleNamespace(num_generations=1, num_iterations=1, state=SimpleNamespace(global_step=0))
    asks.take(trainer, 0, 2)
    value = float("nan") if reward is None else reward
    asks.learn(trainer, torch.tensor([[value], [value]]))
    return sum(right for right, _ in asks.state()["known"]["answers"].values()) == 2


def shown_in_the_page(reward: float | None, folder: Path) -> bool:
    reader = Reader([EpisodeSource("sft", "held out", folder)])
    row = reader.row(0, 0, episode(0, reward, broken="" if reward is not None else "it broke").line())
    is_right_in_the_page = row[4] == 1  # as page.js asks
    assert is_right_in_the_page is (reader.head()["kinds"][row[5]] == "right")
    return is_right_in_the_page


DECIDERS: dict[str, Callable[..., bool]] = {
    "the environments' rule": lambda reward, *_: is_right(reward),
    "an evaluated episode": lambda reward, *_: episode(0, reward).is_right,
    "its score": lambda reward, *_: episode(0, reward).score == 1.0,
    "its kind": lambda reward, *_: outcome_of(episode(0, reward)) == "right",
    "a table of failures": lambda reward, *_: not failures_by_kind({"sft": [episode(0, reward)]}),
    "two models side by side": lambda reward, *_: (
        both_ways({"a": [episode(0, reward)], "b": [episode(0, 1.0)]}, [("a", "b")])[0]["both"] == 1
    ),
    "the filter": lambda reward, *_: why_dropped(rollout(reward), set()) is None,
    "the counts of an evaluation": lambda reward, *_: (
        rates([episode(0, reward)], PROTOCOLS["parity"])["accuracy"] == 1.0
    ),
    "the teacher's accuracy": counted_by_calibration,
    "which questions a teacher is paid for": lambda reward, *_: not for_the_teacher([5000], [episode(0, reward)], None),
    "GRPO's exact reward": lambda reward, *_: rewarded_by_grpo(reward),
    "GRPO's curriculum": lambda reward, *_: learned_by_the_curriculum(reward),
    "the page": lambda reward, _, folder: shown_in_the_page(reward, folder),
}


@pytest.mark.parametrize("decides", DECIDERS.values(), ids=DECIDERS)
@pytest.mark.parametrize(("reward", "right"), REWARDS.values(), ids=REWARDS)
def test_all_that_ask_whether_an_episode_is_right_agree(
    reward: float | None, right: bool, decides: Callable[..., bool], chain_sum: EnvironmentSpec, tmp_path: Path
):
    assert decides(reward, chain_sum, tmp_path) is right


class Ranged(ToolEnvironment):
    """Of any range."""

    def __init__(self, reward: float | None, low: float = 0.0):
        self.reward = reward
        self.reward_range = low, 1.0  # type: ignore[misc]

    @property
    def instructions(self) -> str:
        return ""

    def reset(self, *, seed: int, **row: Any) -> str:
        return ""


@pytest.mark.parametrize(
    ("given", "low", "kept"),
    [
        (RUBRIC, 0.0, 1.0),
        (TENTHS, 0.0, 1.0),
        (OVER, 0.0, 1.0),
        (SINGLE, 0.0, 1.0),
        (1.0000001192092896, 0.0, 1.0),
        (-1e-17, 0.0, 0.0),
        (0.1 + 0.2 - 0.3, 0.0, 0.0),
        (-1.0000000000000002, -1.0, -1.0),
        (0.9999, 0.0, 0.9999),
        (1 / 3, 0.0, 1 / 3),
        (0, -1.0, 0.0),
        (None, 0.0, None),
    ],
)
def test_a_reward_is_recorded_without_the_rounding_of_a_bound(given: float | None, low: float, kept: float | None):
    game = Ranged(given, low)
    Player(game).check_reward()
    assert game.reward == kept
    assert game.reward is None or isinstance(game.reward, float)


@pytest.mark.parametrize("given", [1.001, -0.001, float("nan"), float("inf"), "1.0"])
def test_a_reward_beyond_its_range_by_more_is_a_failure_of_the_server(given: Any):
    with pytest.raises(BadReply, match="which is not within 0 to 1"):
        Player(Ranged(given)).check_reward()


@pytest.mark.parametrize(
    ("low", "high", "status"), [(0, 1, "passed"), (-1, 1, "passed"), (0, 10, "failed"), (0, 0.5, "failed")]
)
def test_a_range_that_does_not_end_at_1_is_refused_before_anything_is_bought(low: float, high: float, status: str):
    played = SimpleNamespace(reward=high, calls=[])
    game = SimpleNamespace(reward_range=(low, high), environment=SimpleNamespace(bounded=True))
    subject: Any = SimpleNamespace(players=[game], seen=SimpleNamespace(broken=[], played=[played], rewarded=True))
    found = exploits.in_range.run(subject)
    assert found.status == status
    if status == "failed":
        assert f"reward_range ends at {high:g}, and only a reward of 1 counts as solved" in found.found
        assert "let reward_range end at 1" in found.remedy


@pytest.mark.parametrize("rewards", [(1.0, RUBRIC), (OVER, SINGLE), (TENTHS, TENTHS), (0.1 + 0.2, 0.3), (0.0, 5e-17)])
@pytest.mark.parametrize("exact", [True, False])
def test_answers_that_differ_in_rounding_alone_are_no_group_to_learn_from(rewards: tuple[float, float], exact: bool):
    answers = [episode(place, reward, sample=place) for place, reward in enumerate(rewards)]
    assert groups_that_differ(answers, exact) == (0, 1)


@pytest.mark.parametrize(
    ("before", "after", "same"), [(RUBRIC, 1.0, True), (None, None, True), (1.0, None, False), (0.5, 1.0, False)]
)
def test_an_episode_whose_reward_moved_by_rounding_was_not_rescored(before: Any, after: Any, same: bool):
    assert is_same(before, after) is same


def test_a_teacher_whose_best_is_a_sum_below_1_is_not_beaten_by_a_whole_one():
    before, after = ([episode(place, reward) for place in range(100)] for reward in (0.0, 1.0))
    kinds = {sign.kind for sign in reward_hacking(before, after, TeacherBehaviour(frozenset({"answer"}), RUBRIC))}
    assert "more than the teacher's best" not in kinds


def test_all_or_nothing_is_seen_although_the_mean_is_rounded():
    found = Difficulty(40, 0.85, (0.7, 0.93), 1.0, 0.85 - 1e-16, "right", [])
    assert "have equal rewards" in advice_on_groups(found, 2, "score")


def test_imported_rows_are_counted_as_right_by_the_same_rule(tmp_path: Path):
    report = RowReport("rows.jsonl", keeps=False)
    for reward in (RUBRIC, 1.0, 0.5):
        report.add("line 1", Checked(Record.model_validate(rollout(reward))))
    report.write(tmp_path)
    counts = {row["rows"]: row["count"] for row in json.loads((tmp_path / "verification.json").read_text())["counts"]}
    assert (counts["of these with reward 1.0"], counts["of these with a lower reward"]) == (2, 1)


def test_stored_episodes_of_older_code_are_read_by_the_same_rule(tmp_path: Path):
    (tmp_path / "episodes.jsonl").write_bytes(episode(0, RUBRIC).line() + episode(1, 0.99).line())
    assert [each.is_right for each in read_episodes(tmp_path)] == [True, False]
    assert set(CELLS) == {"both", "lost", "won", "neither"}
