"""Law 9 while a training runs: what the log shows is said once, with its number, at the first log that shows it."""

import math
from typing import Any

import pytest

from apprentice.tasks.analysis.curve_signals import signals_in
from apprentice.tasks.analysis.diagnose import read_curves
from apprentice.tasks.settings.signals import RewardSignals, Signals

RULES = RewardSignals(window=3)


def log(**curves: list[float]) -> list[dict[str, Any]]:
    """A trainer's history: a healthy one, but for what is given."""
    steps = max(len(values) for values in curves.values())
    healthy = {
        "loss": [0.1] * steps,
        "reward": [0.5] * steps,
        "frac_reward_zero_std": [0.3] * steps,
        "completions/mean_length": [40.0] * steps,
        "entropy": [0.6] * steps,
    }
    named = {"completions/mean_length" if name == "length" else name: values for name, values in curves.items()}
    return [
        {"step": step + 1} | {name: values[step] for name, values in (healthy | named).items()} for step in range(steps)
    ]


@pytest.mark.parametrize(
    ("curves", "kind", "step", "number"),
    [
        ({"frac_reward_zero_std": [0.3, 0.9, 0.9, 0.9]}, "saturated", 4, "90% of the groups"),
        ({"frac_reward_zero_std": [1.0] * 4, "reward": [0.0] * 4}, "no_signal", 3, "at a mean reward of 0"),
        ({"length": [40.0] * 3 + [10.0] * 4}, "length", 6, "from 40 to 10 tokens"),
        ({"entropy": [0.6] * 3 + [0.03] * 4}, "entropy", 6, "from 0.6 to 0.03"),
        ({"loss": [0.1, 0.1, math.nan]}, "nan", 3, "loss is nan"),
        ({"sampling/sampling_logp_difference/mean": [0.01, 0.3, 0.4]}, "engine", 2, "by 0.3 a token"),
        ({"grad_norm": [0.1, math.inf, 0.1]}, "nan", 2, "grad_norm is inf"),
        ({"reward": [0.1, -math.inf, 0.1]}, "nan", 2, "reward is -inf"),
    ],
)
def test_each_kind_is_seen_once_at_its_step_with_its_number(curves: Any, kind: str, step: int, number: str):
    seen = signals_in(log(**curves), RULES)
    assert set(seen) == {kind}
    assert seen[kind].step == step
    assert seen[kind].found.startswith(f"Step {step}: ")
    assert number in seen[kind].found
    assert seen[kind].advice


def test_where_dead_groups_are_skipped_the_entropy_is_that_of_the_others():
    falling = log(**{"entropy": [0.6] * 6, "with_signal/entropy": [0.6] * 3 + [0.03] * 3})
    assert "from 0.6 to 0.03" in signals_in(falling, RULES)["entropy"].found


def test_where_dead_groups_are_replaced_those_count_that_are_left():
    first = [0.9] * 6
    assert signals_in(log(frac_reward_zero_std=first, **{"refill/dead_after": [0.1] * 6}), RULES) == {}
    assert "saturated" in signals_in(log(frac_reward_zero_std=first, **{"refill/dead_after": [0.85] * 6}), RULES)


def test_a_healthy_training_is_left_alone():
    assert signals_in(log(reward=[0.3 + 0.01 * step for step in range(40)]), RULES) == {}


def test_short_answers_and_low_entropy_are_no_fault_where_the_reward_rose():
    lengths, rewards = [40.0] * 3 + [10.0] * 3, [0.3] * 3 + [0.6] * 3
    assert signals_in(log(length=lengths, reward=rewards), RULES) == {}
    assert signals_in(log(entropy=[0.6] * 3 + [0.01] * 3, reward=[0.3] * 3 + [0.95] * 3), RULES) == {}


def test_a_course_like_the_laptops_is_no_collapse():
    """Entropy 0.32 to 0.04 and groups without signal 22% to 72%, as GRPO's log of the recipe was measured."""
    steps = 70
    curves = {
        "entropy": [0.32 * math.exp(-0.03 * step) for step in range(steps)],
        "frac_reward_zero_std": [0.22 + 0.5 * step / steps for step in range(steps)],
        "reward": [0.5 + 0.33 * step / steps for step in range(steps)],
    }
    assert signals_in(log(**curves), RewardSignals()) == {}


def test_rewards_that_were_lost_and_evaluations_in_between_are_no_logs_of_training():
    entries = log(frac_reward_zero_std=[0.9] * 3)
    entries[1]["reward"] = None
    evaluation = {"step": 2, "eval_loss": math.nan, "eval_reward": 0.1}
    assert set(signals_in([*entries[:2], evaluation, entries[2]], RULES)) == {"saturated"}


def test_what_is_off_is_not_looked_for_and_sft_looks_for_nan_only():
    bad = log(frac_reward_zero_std=[1.0] * 6, loss=[0.1] * 5 + [math.nan])
    assert set(signals_in(bad, RewardSignals(window=3, saturated="off"))) == {"nan"}
    assert set(signals_in(bad, Signals())) == {"nan"}
    assert signals_in(bad, RewardSignals(window=3, saturated="stop"))["saturated"].stopped


def test_the_report_reads_the_curves_by_the_same_rules():
    entries = log(reward=[0.5, 0.6] * 20, frac_reward_zero_std=[0.7] * 40)
    strict = RewardSignals(window=3, dead_groups=0.6)
    assert (read_curves(entries, 0.0).diagnosis, signals_in(entries, RewardSignals())) == ("flat", {})
    assert read_curves(entries, 0.0, strict).diagnosis == "saturated"
    assert set(signals_in(entries, strict)) == {"saturated"}
