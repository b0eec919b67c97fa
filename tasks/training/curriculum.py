"""Chooses the questions of a GRPO step by kind: more of those that the model answers right about half of the time.

In: GRPO's questions with their kinds, the rewards of every step. Out: the questions to ask next, and metrics.
A kind's success rate has a Beta posterior over the model's answers, which fade step by step. A kind is asked in
proportion to its questions times the expected variance of a reward, p(1 - p), besides a floor that asks all kinds as
often as the questions have them. What is known is part of the checkpoint, and each draw follows from the seed and the
number of steps, so a resumed training asks the same questions, and all processes do.
"""

from collections.abc import Sequence
from itertools import accumulate
from random import Random
from typing import Any, NamedTuple

from apprentice.tasks.analysis.slices import ASKED, RATE
from apprentice.tasks.settings.training import CurriculumSpec
from apprentice.tasks.training.rewards import Stream


class Known(NamedTuple):
    """What is known after a step; it is not changed."""

    steps: int
    """Steps that were asked, each of one or several of TRL's (`num_iterations`)."""
    asked: dict[str, int]
    """Questions that were asked of each kind."""
    answers: dict[str, list[float]]
    """Right and wrong answers of each kind, less what was forgotten."""


class Curriculum:
    """Where a step's questions come from.

    Args:
        rows: The questions; those of a kind are asked in this order, and again from the first one after the last.
        kinds: The kind of each row.
        streams: GRPO's reward functions; the first of each environment tells whether an answer is right.
    """

    def __init__(
        self, spec: CurriculumSpec, rows: Any, kinds: Sequence[str], seed: int, streams: Sequence[Stream] = (Stream(),)
    ):
        self._spec = spec
        self._rows = rows
        self._seed = seed
        self._places: dict[str, list[int]] = {kind: [] for kind in sorted(set(kinds))}
        for place, kind in enumerate(kinds):
            self._places[kind].append(place)
        labels = [stream.label for stream in streams]
        self._own = [labels.index(label) for label in dict.fromkeys(labels)]
        answers = {kind: [float(each) for each in spec.known.get(kind, (0, 0))] for kind in self._places}
        self._known = self._before = Known(0, dict.fromkeys(self._places, 0), answers)
        self._now: list[str] = []

    def take(self, trainer: Any, asked: int, count: int) -> list[dict[str, Any]]:
        """The next `count` questions of a step that has `asked` so many."""
        if trainer.state.global_step // trainer.num_iterations < self._known.steps:
            self._known = self._before  # resumed between two uses of the same questions
        self._now = self._now[:asked]
        random = Random(f"{self._seed} {self._known.steps} {asked}")
        drawn = _drawn(self.shares(), count, random)
        before = {kind: self._known.asked[kind] + self._now.count(kind) for kind in set(drawn)}
        self._now += drawn
        taken = []
        for kind in drawn:
            places = self._places[kind]
            taken.append(dict(self._rows[places[before[kind] % len(places)]]))
            before[kind] += 1
        return taken

    def shares(self) -> dict[str, float]:
        """The share of the next questions that each kind gets."""
        usual = {kind: len(places) / len(self._rows) for kind, places in self._places.items()}
        worth = {kind: usual[kind] * _variance(*self._posterior(kind)) for kind in usual}
        whole, floor = sum(worth.values()), self._spec.floor
        return {kind: floor * usual[kind] + (1.0 - floor) * worth[kind] / whole for kind in usual}

    def learn(self, trainer: Any, rewards: Any) -> dict[str, float]:
        """Learns from the rewards of all that the step asked; returns its metrics. What infrastructure lost is none.

        Args:
            rewards: (rows of all processes, reward functions) in the order asked; NaN for none.
        """
        own = rewards[:, self._own]
        groups = -1, trainer.num_generations
        right = (own == 1.0).any(dim=1).view(groups).sum(dim=1).tolist()
        wrong = ((own != 1.0) & ~own.isnan()).any(dim=1).view(groups).sum(dim=1).tolist()
        kept = 1.0 - self._spec.forget
        answers = {kind: [each * kept for each in counts] for kind, counts in self._known.answers.items()}
        for kind, *found in zip(self._now, right, wrong, strict=True):
            answers[kind] = [each + new for each, new in zip(answers[kind], found, strict=True)]
        now = {kind: self._now.count(kind) for kind in self._places}
        asked = {kind: count + now[kind] for kind, count in self._known.asked.items()}
        self._before, self._now = self._known, []
        self._known = Known(self._known.steps + 1, asked, answers)
        rates = {kind: _mean(*self._posterior(kind)) for kind in self._places}
        return {
            **{f"{ASKED}{kind}": float(count) for kind, count in now.items()},
            **{f"{RATE}{kind}": rate for kind, rate in rates.items()},
        }

    def _posterior(self, kind: str) -> tuple[float, float]:
        right, wrong = self._known.answers[kind]
        return 1.0 + right, 1.0 + wrong

    def state(self) -> dict[str, Any]:
        """What is known after the last finished step and before it, for a checkpoint."""
        return {"known": self._known._asdict(), "before": self._before._asdict()}

    def restore(self, state: dict[str, Any]) -> None:
        self._known, self._before, self._now = Known(**state["known"]), Known(**state["before"]), []


def keep_in_checkpoints(trainer: Any, curriculum: Curriculum) -> None:
    """Adds a callback that saves the curriculum's state in every checkpoint, and restores it on resuming."""
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState

    class CurriculumState(TrainerCallback, ExportableState):
        def state(self) -> dict[str, Any]:
            return {"args": {}, "attributes": curriculum.state()}

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            curriculum.restore(state.stateful_callbacks[CurriculumState.__name__]["attributes"])

    trainer.add_callback(CurriculumState())


def _drawn(shares: dict[str, float], count: int, random: Random) -> list[str]:
    """`count` kinds in random order, each as often as its share says, rounded up or down (systematic sampling)."""
    offset, ends = random.random(), [*accumulate(shares.values())]
    kinds, drawn, place = [*shares], [], 0
    for n in range(count):
        while place < len(ends) - 1 and (n + offset) / count >= ends[place]:
            place += 1
        drawn.append(kinds[place])
    random.shuffle(drawn)
    return drawn


def _mean(a: float, b: float) -> float:
    return a / (a + b)


def _variance(a: float, b: float) -> float:
    """The expectation of p(1 - p) under Beta(a, b)."""
    return a * b / ((a + b) * (a + b + 1.0))
