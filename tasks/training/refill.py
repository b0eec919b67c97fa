"""Asks further questions in a GRPO step where groups have equal rewards, and fills the step with groups that differ.

In: the rewards of a step so far, GRPO's questions in their order. Out: which questions to ask next, and which groups to
learn from. What is generated beyond need is discarded: a step learns only from completions of its own weights. The
questions of a step follow from its number, so a resumed training asks the same ones.
"""

from typing import Any

from apprentice.tasks.settings.training import GrpoSpec
from apprentice.tasks.training import trl_internals
from apprentice.tasks.training.dead_groups import dead_and_live

QUESTIONS_ASKED = "refill/questions"
"""The metric of the questions that a step asked."""


def asked_first(rows: Any, spec: GrpoSpec) -> Any:
    """The rows that steps ask whatever their rewards are; `rows` has `spec.questions_a_step` for each step in turn."""
    if spec.oversample == 1.0:
        return rows
    steps = range(0, len(rows) - spec.questions_a_step + 1, spec.questions_a_step)
    return rows.select([step + n for step in steps for n in range(spec.groups_a_step)])


def refilling(trainer_class: type, spec: GrpoSpec, rows: Any) -> type:
    """The trainer class, which fills its steps if the recipe says so. `rows`: as in `asked_first`."""
    if spec.oversample == 1.0:
        return trainer_class
    return trl_internals.refilling_trainer(trainer_class, ByRewards(spec, rows))


class ByRewards:
    """Replaces dead groups by further questions' live ones, in the order asked."""

    def __init__(self, spec: GrpoSpec, rows: Any):
        self._spec = spec
        self._rows = rows

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
        begin = trainer.state.global_step // trainer.num_iterations * self._spec.questions_a_step + asked
        chosen = [self._rows[n] for n in range(begin, begin + wanted)]
        return [dict(row) for row in chosen for _ in range(self._spec.num_generations)]

    def filled(self, trainer: Any, rewards: Any) -> list[int]:
        size = self._spec.num_generations
        return [group * size + n for group in self._groups(trainer, rewards) for n in range(size)]

    def metrics(self, trainer: Any, rewards: Any) -> dict[str, float]:
        dead, _ = dead_and_live(trainer, rewards)
        groups = self._spec.groups_a_step
        return {
            QUESTIONS_ASKED: float(len(dead)),
            "refill/dead_before": sum(dead[:groups]) / groups,
            "refill/dead_after": sum(dead[group] for group in self._groups(trainer, rewards)) / groups,
        }

    def _groups(self, trainer: Any, rewards: Any) -> list[int]:
        """The groups of the batch. Dead ones stay where too few others were found."""
        dead, live = dead_and_live(trainer, rewards)
        first = self._spec.groups_a_step
        spare = iter([group for group in range(first, len(live)) if live[group]])
        return [next(spare, group) if dead[group] else group for group in range(first)]
