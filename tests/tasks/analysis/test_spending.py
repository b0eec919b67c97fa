"""All gates together spend no more than one gate would."""

import pytest

from apprentice.tasks.analysis.comparison import LEVEL, level_of


def test_the_levels_of_many_gates_sum_to_no_more_than_one_gates_level():
    spent = sum(level_of(number) for number in range(1, 20_000))
    assert 0.99 * LEVEL < spent < LEVEL


def test_a_later_gate_is_stricter_and_the_first_one_has_the_published_weight():
    assert level_of(1) == pytest.approx(0.0219, abs=1e-4)  # 0.05 / zeta(1.6)
    assert all(level_of(number + 1) < level_of(number) for number in range(1, 20))
