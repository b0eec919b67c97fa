"""The tree shows each artifact whole once, and seeds as ranges."""

from typing import Any

import pytest

from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.lineage.lineage import lineage_of
from apprentice.tasks.lineage.lineage_tree import condensed
from tests.tasks.lineage.test_lineage import Toys, store, tree

assert store  # a fixture


def test_the_tree_shows_what_occurs_twice_whole_once_and_tells_the_seeds(store: LocalStore):
    text = tree(lineage_of(Toys(store).release.key, store.root))
    assert text.count("Questions of seed windows") == 1
    assert text.count("as above") == 4  # the questions twice, the base student, and what was trained
    assert "5 episodes, seeds 0 to 4" in text
    assert "learned in sft from 4 episodes, seeds 0 to 4 without 2" in text
    assert "learned in grpo from 1 episodes, seed 100" in text
    assert "window 0 to 4, scripted policy, error rate 0.1: not a model" in text
    assert "environment reasoning_gym spell_backward, version 1" in text
    assert "made 2026-01-02T03:04:05+00:00 by rollouts, version 1; apprentice 0" in text


@pytest.mark.parametrize(
    ("seeds", "ranges"),
    [
        ([5], "seed 5"),
        ([2, 1], "seeds 1, 2"),
        (range(60), "seeds 0 to 59"),
        (set(range(60)) - {7, 12, 13, 14}, "seeds 0 to 59 without 7, 12 to 14"),
        ([1, 9, 30], "seeds 1, 9, 30"),
        ([1, 2, 3, 1000], "seeds 1 to 3; 1000"),
        (range(0, 400, 2), "seeds 0 to 398 (200 of 399)"),
        (range(0, 100_000, 1000), "seeds " + "; ".join(str(each * 1000) for each in range(12)) + "; and 88 more"),
    ],
)
def test_seeds_are_told_as_ranges(seeds: Any, ranges: str):
    assert condensed(seeds) == ranges
