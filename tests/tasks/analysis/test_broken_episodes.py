"""A question on which the environment breaks counts against a model, unless it breaks for all."""

import pytest

from apprentice.tasks.analysis.broken_episodes import check_broken, scored
from apprentice.tasks.analysis.comparison import compare_all
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.evaluate import rates
from apprentice.tasks.players.protocols import PROTOCOLS
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.statistics.rates import with_intervals
from tests.hostile.endings import assert_clear
from tests.tasks.evaluations import episode

BROKE = {"broken": "the server crashed during a step; twice, on new connections"}


def answered(*rewards: float | None) -> list[EvaluatedEpisode]:
    """None where the environment broke."""
    return [episode(place, reward, **({} if reward is not None else BROKE)) for place, reward in enumerate(rewards)]


def test_what_breaks_for_one_model_counts_as_not_right():
    kept, broke = scored({"base": answered(1.0, None, 0.0), "grpo": answered(1.0, 1.0, 0.0)})
    assert [with_intervals(records)["accuracy"] for records in kept.values()] == [1 / 3, 2 / 3]
    assert "1 of base, 0 of grpo" in broke


def test_what_breaks_for_every_model_is_left_out_of_the_denominator():
    kept, broke = scored({"base": answered(1.0, None, 0.0), "grpo": answered(1.0, None, 1.0)})
    assert [with_intervals(records)["accuracy"] for records in kept.values()] == [0.5, 1.0]
    assert "left out (1)" in broke


def test_of_three_models_all_must_break_on_it():
    kept, _ = scored({"base": answered(None, 1.0), "sft": answered(None, 1.0), "grpo": answered(0.0, 1.0)})
    assert [len(records) for records in kept.values()] == [2, 2, 2]


def test_a_question_with_several_samples_is_left_out_when_all_of_them_broke():
    def sampled(*rewards: float | None) -> list[EvaluatedEpisode]:
        return [each.model_copy(update={"sample": each.place % 2}) for each in answered(*rewards)]

    kept, _ = scored({"base": sampled(None, None, None, 1.0), "grpo": sampled(None, None, 1.0, 1.0)})
    assert [[record.place for record in records] for records in kept.values()] == [[2, 3], [2, 3]]


def test_where_nothing_breaks_nothing_is_told_or_left_out():
    episodes = {"base": answered(1.0, 0.0), "grpo": answered(1.0, 1.0)}
    assert scored(episodes) == (episodes, "")


def test_a_regression_evaluation_is_compared_on_what_did_not_break_for_both():
    regression_records = {"sums.base": answered(1.0, None, 1.0), "sums.grpo": answered(0.0, None, 1.0)}
    regression = compare_all({"base": answered(1.0), "grpo": answered(1.0)}, regression_records)["guards"][0]
    assert (regression["before"]["accuracy"], regression["after"]["accuracy"], regression["delta"]) == (1.0, 0.5, -0.5)


def test_an_evaluation_counts_what_broke():
    found = rates(answered(1.0, None), PROTOCOLS["parity"])
    assert (found["n"], found["broken"], found["accuracy"], found["mean_score"]) == (2, 1, 0.5, 0.5)


@pytest.mark.parametrize(("broken", "of"), [(6, 100), (1, 1)])
def test_more_than_may_fail_stop_the_stage(broken: int, of: int):
    check_broken(5, 100, 0.05, "why")
    check_broken(1, 2, 0.05, "why")
    with pytest.raises(Stop, match=f"failed on {broken} of {of} episodes.*why") as stop:
        check_broken(broken, of, 0.05, "why")
    assert_clear(stop.value)
