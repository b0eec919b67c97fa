"""Which questions a GRPO step asks besides, and which groups it learns from."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from apprentice.tasks.rollouts.sampling import ByRewards, InOrder, refilling
from apprentice.tasks.settings.grpo_settings import GrpoSpec

GROUP = 2
LIVE, DEAD, LOST, HALF_LOST = [0.0, 1.0], [1.0, 1.0], [None, None], [None, 1.0]


def spec(groups: int = 4, oversample: float = 3.0, **settings: Any) -> GrpoSpec:
    return GrpoSpec(
        batch_size=groups * GROUP, gradient_accumulation=1, num_generations=GROUP, oversample=oversample, **settings
    )


def rows(number: int = 100) -> Any:
    from datasets import Dataset

    return Dataset.from_list([{"seed": n} for n in range(number)])


def policy_of() -> ByRewards:
    return ByRewards(spec(), InOrder(spec(), rows()))


def trainer(step: int = 0, iterations: int = 1, **settings: Any) -> Any:
    import torch

    usual = {"multi_objective_aggregation": "sum_then_normalize", "reward_weights": torch.ones(1)}
    state = SimpleNamespace(global_step=step)
    return SimpleNamespace(num_generations=GROUP, num_iterations=iterations, state=state, **usual | settings)


def rewards(*groups: Sequence[float | None]) -> Any:
    import torch

    return torch.tensor([[float("nan") if reward is None else reward] for group in groups for reward in group])


def seeds(question_rows: list[dict[str, Any]]) -> list[int]:
    assert [row["seed"] for row in question_rows[::GROUP]] == [row["seed"] for row in question_rows[1::GROUP]]
    return [row["seed"] for row in question_rows[::GROUP]]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([LIVE, LIVE, LIVE, LIVE], []),
        ([LIVE, LIVE, LIVE, DEAD], [4, 5]),  # one is missing, and three in four are live
        ([LIVE, DEAD, DEAD, DEAD], [4, 5, 6, 7]),  # twelve would be expected to do; a batch is the most at once
        ([DEAD, DEAD, DEAD, DEAD], [4, 5, 6, 7]),
        ([LIVE, LIVE, LIVE, DEAD, DEAD, LIVE], []),
        ([LIVE, LIVE, LIVE, DEAD, DEAD, DEAD], [6, 7]),
        ([DEAD] * 11, [11]),
        ([DEAD] * 12, []),
    ],
)
def test_as_many_are_asked_as_should_do_and_no_more_than_the_bound(groups, expected):
    assert seeds(policy_of().further(trainer(), rewards(*groups))) == expected


@pytest.mark.parametrize("lost", [LOST, HALF_LOST])
def test_what_infrastructure_lost_is_not_dead_and_asks_nothing(lost):
    policy = policy_of()
    given = rewards(LIVE, lost, lost, LIVE)
    assert policy.further(trainer(), given) == []
    assert policy.finished(trainer(), given) == {
        "refill/questions": 4,
        "refill/dead_before": 0.0,
        "refill/dead_after": 0.0,
    }


def test_live_groups_take_the_places_of_dead_ones_in_the_order_asked_and_the_rest_is_discarded():
    policy = policy_of()
    given = rewards(DEAD, LIVE, LOST, DEAD, *[LOST, LIVE, DEAD, LIVE, LIVE])
    kept = policy.filled(trainer(), given)
    assert [row // GROUP for row in kept[::GROUP]] == [5, 1, 2, 7]
    assert [row % GROUP for row in kept] == [0, 1] * 4
    few = rewards(DEAD, LIVE, LOST, DEAD, *[HALF_LOST, DEAD, LIVE, DEAD])
    assert [row // GROUP for row in policy.filled(trainer(), few)[::GROUP]] == [6, 1, 2, 3]


def test_the_questions_of_a_step_follow_from_its_number_and_used_again_they_are_those_of_the_first_time():
    policy = policy_of()
    dead = rewards(*[DEAD] * 4)
    assert [seeds(policy.further(trainer(step), dead))[0] for step in (0, 1, 2)] == [4, 16, 28]
    assert [seeds(policy.further(trainer(step, iterations=2), dead))[0] for step in (0, 1, 2)] == [4, 4, 16]
    assert [seeds(policy.first(trainer(step))) for step in (0, 1)] == [[0, 1, 2, 3], [12, 13, 14, 15]]


def test_rewards_that_differ_in_a_stream_without_weight_are_equal_unless_each_stream_is_normalized():
    import torch

    given = torch.tensor([[1.0, 0.0], [1.0, 1.0]] * 4)
    policy, weights = policy_of(), torch.tensor([1.0, 0.0])
    assert len(policy.further(trainer(reward_weights=weights), given)) == 4 * GROUP
    apart = trainer(reward_weights=weights, multi_objective_aggregation="normalize_then_sum")
    assert policy.further(apart, given) == []


def test_without_oversampling_the_trainer_is_as_it_was_and_so_is_the_key():
    assert refilling(dict, spec(oversample=1.0), InOrder(spec(oversample=1.0), rows())) is dict
    assert spec(oversample=3.0).in_key() == spec(oversample=1.0).in_key() | {"oversample": 3.0}


@pytest.mark.parametrize(
    ("processes", "oversample", "most"), [(1, 1.3, 5), (1, 1.1, 4), (4, 1.5, 24), (4, 1.1, 16), (1, 2.0, 8)]
)
def test_the_bound_is_in_whole_questions_whose_rollouts_the_processes_share_equally(processes, oversample, most):
    if most == 4 * processes:
        with pytest.raises(ValidationError, match=r"leaves no room for a further question .* set it to 1"):
            spec(oversample=oversample, processes=processes)
    else:
        made = spec(oversample=oversample, processes=processes)
        assert made.questions_a_step == most
        assert most * GROUP % processes == 0
