"""Asks further questions in a GRPO step where groups have equal rewards, and fills the step with groups that differ.

In: the rewards of a step so far, where its questions come from. Out: which questions to ask, and which groups to learn
from. What is generated beyond need is discarded: a step learns only from completions of its own weights.
"""

from typing import Any, Protocol

from apprentice.tasks.settings.training import GrpoSpec
from apprentice.tasks.training import trl_internals
from apprentice.tasks.training.dead_groups import dead_and_live

QUESTIONS_ASKED = "refill/questions"
"""The metric of the questions that a step asked."""


class Source(Protocol):
    """Where a step's questions come from; the same in every process, and in a resumed training."""

    def take(self, trainer: Any, asked: int, count: int) -> list[dict[str, Any]]:
        """The next `count` questions of a step that has asked `asked` so far, as dataset rows."""
        ...

    def learn(self, trainer: Any, rewards: Any) -> dict[str, float]:
        """Hears the rewards of all that a step asked, in their order; returns metrics."""
        ...


class InOrder:
    """The questions in their order; which are a step's follows from its number.

    Args:
        rows: `spec.questions_a_step` for each step in turn.
    """

    def __init__(self, spec: GrpoSpec, rows: Any):
        self._spec = spec
        self._rows = rows

    def take(self, trainer: Any, asked: int, count: int) -> list[dict[str, Any]]:
        begin = trainer.state.global_step // trainer.num_iterations * self._spec.questions_a_step + asked
        return [dict(self._rows[n]) for n in range(begin, begin + count)]

    def learn(self, trainer: Any, rewards: Any) -> dict[str, float]:
        return {}


def refilling(trainer_class: type, spec: GrpoSpec, source: Source) -> type:
    """The trainer class, which asks the source's questions and fills its steps, if the recipe says so."""
    if spec.oversample == 1.0 and spec.curriculum is None:
        return trainer_class
    return trl_internals.refilling_trainer(trainer_class, ByRewards(spec, source))


class ByRewards:
    """Replaces dead groups by further questions' live ones, in the order asked."""

    def __init__(self, spec: GrpoSpec, source: Source):
        self._spec = spec
        self._source = source

    def first(self, trainer: Any) -> list[dict[str, Any]]:
        """A batch of questions, which are asked whatever their rewards are."""
        return self._repeated(self._source.take(trainer, 0, self._spec.groups_a_step))

    def further(self, trainer: Any, rewards: Any) -> list[dict[str, Any]]:
        """As many questions as should fill the step at the share of live groups so far, and no more than a batch: an
        estimate, because a round that asks too few costs another one."""
        dead, live = dead_and_live(trainer, rewards)
        asked, groups, together = len(dead), self._spec.groups_a_step, self._spec.groups_asked_together
        missing = sum(dead[:groups]) - sum(live[groups:])
        if missing <= 0:
            return []
        found, known = sum(live), sum(live) + sum(dead)
        wanted = min(-(-missing * known // found), groups) if found else groups
        wanted = min(-(-wanted // together) * together, self._spec.questions_a_step - asked)
        return self._repeated(self._source.take(trainer, asked, wanted)) if wanted else []

    def filled(self, trainer: Any, rewards: Any) -> list[int]:
        size = self._spec.num_generations
        return [group * size + n for group in self._groups(trainer, rewards) for n in range(size)]

    def finished(self, trainer: Any, rewards: Any) -> dict[str, float]:
        learned = self._source.learn(trainer, rewards)
        if self._spec.oversample == 1.0:
            return learned
        dead, _ = dead_and_live(trainer, rewards)
        groups = self._spec.groups_a_step
        return learned | {
            QUESTIONS_ASKED: float(len(dead)),
            "refill/dead_before": sum(dead[:groups]) / groups,
            "refill/dead_after": sum(dead[group] for group in self._groups(trainer, rewards)) / groups,
        }

    def _repeated(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [dict(row) for row in rows for _ in range(self._spec.num_generations)]

    def _groups(self, trainer: Any, rewards: Any) -> list[int]:
        """The groups of the batch. Dead ones stay where too few others were found."""
        dead, live = dead_and_live(trainer, rewards)
        first = self._spec.groups_a_step
        spare = iter([group for group in range(first, len(live)) if live[group]])
        return [next(spare, group) if dead[group] else group for group in range(first)]
