"""What a log of SFT shows: learned, still learning, hardly begun, diverged, learned by heart."""

from typing import Any

import pytest

from apprentice.tasks.advice.learning import learning_of


def log(
    losses: list[float], accuracy: float | None = None, held_out: list[float] | None = None
) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = [{"loss": loss} for loss in losses]
    if accuracy is not None:
        entries[-1]["mean_token_accuracy"] = accuracy
    return entries + [{"eval_held_out_loss": loss} for loss in held_out or []]


COURSES = {
    "learned": (log([5, 3, 1, 0.5, 0.1, 0.05, 0.04, 0.04], 0.99), {"is_learned"} | {"falling"}),
    "at rest": (log([3, 1, 0.8, 0.8, 0.8, 0.8, 0.79, 0.8], 0.8), set()),
    "still falling": (log([5, 4, 3, 2.5, 2, 1.5, 1.2, 1], 0.6), {"falling"}),
    "hardly begun": (log([5, 5, 4.9, 4.9, 4.9, 4.8, 4.8, 4.8], 0.1), {"barely_moved"}),
    "diverged": (log([5, 2, 1, 1, 4, 6, 7, 7], 0.1), {"diverged"}),
    "not a number": (log([5, 2, 1, 1, 4, 6, 7, float("nan")], 0.1), {"diverged"}),
    "by heart": (
        log([5, 1, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1], 1.0, [0.9, 0.7, 1.2]),
        {"is_learned", "falling", "overfits"},
    ),
    "one log alone": (log([5.0], 0.1), set()),
    "two equal logs": (log([5.0, 5.0], 0.1), {"barely_moved"}),
    "no accuracy logged": (log([5, 1, 0.1, 0.05, 0.02, 0.02, 0.01, 0.01]), {"is_learned", "falling"}),
}


@pytest.mark.parametrize(("entries", "shown"), COURSES.values(), ids=COURSES)
def test_a_course_shows_what_it_is(entries: list, shown: set):
    found = learning_of(entries)
    assert found is not None
    read = {name for name in ("falling", "barely_moved", "diverged", "overfits") if getattr(found, name)}
    assert read | ({"is_learned"} if found.is_learned(0.97) else set()) == shown


def test_a_log_without_a_loss_shows_nothing():
    assert learning_of([{"reward": 1.0}]) is None
