"""pass@k, estimated from several samples."""

import pytest

from apprentice.tasks.statistics.rates import pass_at_k


def test_pass_at_k_is_the_chance_that_one_of_k_drawn_samples_is_right():
    assert pass_at_k(right=1, samples=4, k=1) == pytest.approx(0.25)
    assert pass_at_k(right=2, samples=4, k=2) == pytest.approx(1 - 1 / 6)
    assert pass_at_k(right=3, samples=4, k=2) == 1.0
    assert pass_at_k(right=0, samples=4, k=4) == 0.0
