"""Law 9: curves are read for what they are."""

from typing import Any

import pytest

from apprentice.tasks.advice.learning import learned_nothing
from apprentice.tasks.analysis.diagnose import read_curves, settled
from apprentice.tasks.statistics.question_kinds import QUESTIONS, RATE


def log(rewards: list[float], dead: float = 0.3) -> list[dict]:
    return [{"step": step, "reward": reward, "frac_reward_zero_std": dead} for step, reward in enumerate(rewards)]


def ramp(first: float, last: float, n: int = 40) -> list[float]:
    return [first + (last - first) * step / (n - 1) + (0.01 if step % 2 else -0.01) for step in range(n)]


@pytest.mark.parametrize(
    ("entries", "diagnosis"),
    [
        (log([0.3] * 7), "too short"),
        (log(ramp(0.95, 0.97)), "too easy"),
        (log(ramp(0.01, 0.01), dead=0.95), "no signal"),
        (log(ramp(0.6, 0.3)), "fell"),
        (log(ramp(0.5, 0.95), dead=0.9), "saturated"),
        ([each | {"refill/dead_after": 0.2} for each in log(ramp(0.5, 0.8), dead=0.9)], "learning"),
        (log([0.5, 0.6] * 20), "flat"),
        (log(ramp(0.3, 0.6)), "learning"),
    ],
)
def test_each_course_has_its_name(entries: list[dict], diagnosis: str):
    assert read_curves(entries, beta=0.0).diagnosis == diagnosis


@pytest.mark.parametrize(
    ("losses", "idle"),
    [
        ([3.0] * 20, True),
        ([3.0] * 10 + [2.8] * 10, True),
        ([3.0] * 10 + [2.6] * 10, False),
        ([3.0, 3.0], True),
        ([3.0, 0.5], False),
        ([3.0], False),
        ([], False),
    ],
)
def test_sft_whose_loss_hardly_fell_is_told_before_grpo(losses: list[float], idle: bool):
    finding = learned_nothing([{"step": n, "loss": loss} for n, loss in enumerate(losses)] + [{"train_loss": 9.0}])
    assert ("next to nothing" in finding) is idle


@pytest.mark.parametrize(
    ("gain", "diagnosis"),
    [(None, "flat"), ((0.06, 0.15), "learning"), ((-0.02, 0.05), "flat"), ((-0.2, -0.1), "fell")],
)
def test_where_the_held_out_questions_say_otherwise_they_decide_the_course(gain: Any, diagnosis: str):
    found = settled(read_curves(log([0.5, 0.6] * 20), beta=0.0), gain)
    assert found.diagnosis == diagnosis
    assert settled(read_curves(log(ramp(0.95, 0.97)), beta=0.0), gain).diagnosis == "too easy", "no course is judged"


def test_where_a_curriculum_chose_the_questions_the_rewards_course_is_no_diagnosis():
    def chosen(rewards: list[float], dead: float = 0.3) -> list[dict]:
        return [{**entry, f"{QUESTIONS}a": 1.0, f"{RATE}a": 0.5} for entry in log(rewards, dead)]

    for course in (ramp(0.6, 0.3), ramp(0.3, 0.6), [0.5, 0.6] * 20):
        reading = read_curves(chosen(course), beta=0.0)
        assert reading.diagnosis == "follows the curriculum"
        assert "do not compare" in reading.advice
    assert read_curves(chosen(ramp(0.5, 0.95), dead=0.9), beta=0.0).diagnosis == "saturated"


def test_the_delta_is_that_of_the_walkthrough_and_has_an_interval():
    reading = read_curves(log([0.1, 0.2, 0.3, 0.2, 0.2, *[0.5] * 10, 0.6, 0.7, 0.8, 0.7, 0.7]), beta=0.0)
    assert reading.delta == pytest.approx(0.5)
    assert reading.ci is not None
    assert reading.ci[0] < 0.5 < reading.ci[1]


def test_a_fall_within_its_noise_is_none():
    """The last five logs are lower by 0.04, and single logs differ by 0.3."""
    noisy = [0.3, 0.6, 0.4, 0.7, 0.5] * 7 + [0.26, 0.56, 0.36, 0.66, 0.46]
    reading = read_curves(log(noisy), beta=0.0)
    assert reading.delta == pytest.approx(-0.04)
    assert reading.diagnosis == "flat"


def test_a_rise_within_its_noise_is_none():
    noisy = [0.3, 0.6, 0.4, 0.7, 0.5] * 7 + [0.34, 0.64, 0.44, 0.74, 0.54]
    assert read_curves(log(noisy), beta=0.0).diagnosis == "flat"


def test_a_fall_is_not_blamed_on_a_kl_term_that_does_not_exist():
    assert "no KL term" in read_curves(log(ramp(0.6, 0.3)), beta=0.0).advice
    assert "no KL term" not in read_curves(log(ramp(0.6, 0.3)), beta=0.04).advice


def test_saturation_is_read_from_groups_not_from_the_batchs_spread():
    """Groups [1, 1] and [0, 0]: the batch's std is 0.58 and nothing can be learned."""
    entries = [{**entry, "reward_std": 0.58} for entry in log(ramp(0.4, 0.55), dead=1.0)]
    assert read_curves(entries, beta=0.0).diagnosis == "saturated"


@pytest.mark.parametrize(("first", "last", "diagnosis"), [(0.2, 0.95, "saturated"), (0.95, 0.2, "learning")])
def test_saturation_is_that_of_the_end_and_not_of_the_beginning(first: float, last: float, diagnosis: str):
    entries = log(ramp(0.4, 0.7))
    for place, entry in enumerate(entries):
        entry["frac_reward_zero_std"] = first if place < 20 else last
    assert read_curves(entries, beta=0.0).diagnosis == diagnosis
