"""Which questions a GRPO step asks, and which of its completions it learns from.

A curriculum asks more of the kinds that the model answers right about half of the time. Refill asks further questions
where groups have equal rewards, until the step is full of groups that differ. Skipping leaves groups with equal rewards
out of the forward and backward pass: their gradient is zero.
"""

from collections.abc import Sequence
from itertools import accumulate
from random import Random
from typing import Any, NamedTuple

from apprentice.envs.reward import ROUNDING
from apprentice.tasks.models import trl_internals
from apprentice.tasks.models.configuration import is_random
from apprentice.tasks.rollouts.streams import Stream
from apprentice.tasks.settings.grpo_settings import CurriculumSpec, GrpoSpec
from apprentice.tasks.statistics.question_kinds import QUESTIONS, RATE


class SliceEvidence(NamedTuple):
    """The evidence after a step; it is not changed."""

    steps: int
    """Steps that were asked, each of one or several of TRL's (`num_iterations`)."""
    asked: dict[str, int]
    """Questions that were asked of each kind."""
    answers: dict[str, list[float]]
    """Right and wrong answers of each kind, less what was forgotten."""


class Curriculum:
    """Where a step's questions come from; the same in every process, and in a resumed training.

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
        self._known = self._before = SliceEvidence(0, dict.fromkeys(self._places, 0), answers)
        self._now: list[str] = []

    def take(self, trainer: Any, taken_before: int, count: int) -> list[dict[str, Any]]:
        """The next `count` questions of a step, after the `taken_before` that it has taken, as dataset rows."""
        if trainer.state.global_step // trainer.num_iterations < self._known.steps:
            self._known = self._before  # resumed between two uses of the same questions
        self._now = self._now[:taken_before]
        random = Random(f"{self._seed} {self._known.steps} {taken_before}")
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
        solved = own >= 1.0 - ROUNDING  # as `is_right`, of a tensor; false for NaN
        right = solved.any(dim=1).view(groups).sum(dim=1).tolist()
        wrong = (~solved & ~own.isnan()).any(dim=1).view(groups).sum(dim=1).tolist()
        kept = 1.0 - self._spec.forget
        answers = {kind: [each * kept for each in counts] for kind, counts in self._known.answers.items()}
        for kind, *found in zip(self._now, right, wrong, strict=True):
            answers[kind] = [each + new for each, new in zip(answers[kind], found, strict=True)]
        now = {kind: self._now.count(kind) for kind in self._places}
        question_counts = {kind: count + now[kind] for kind, count in self._known.asked.items()}
        self._before, self._now = self._known, []
        self._known = SliceEvidence(self._known.steps + 1, question_counts, answers)
        posteriors = {kind: self._posterior(kind) for kind in self._places}
        return {
            **{f"{QUESTIONS}{kind}": float(count) for kind, count in now.items()},
            **{f"{RATE}{kind}": right / (right + wrong) for kind, (right, wrong) in posteriors.items()},
        }

    def _posterior(self, kind: str) -> tuple[float, float]:
        right, wrong = self._known.answers[kind]
        return 1.0 + right, 1.0 + wrong

    def state(self) -> dict[str, Any]:
        """The evidence after the last finished step and before it, for a checkpoint."""
        return {"known": self._known._asdict(), "before": self._before._asdict()}

    def restore(self, state: dict[str, Any]) -> None:
        self._known, self._before, self._now = SliceEvidence(**state["known"]), SliceEvidence(**state["before"]), []


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


def _variance(a: float, b: float) -> float:
    """The expectation of p(1 - p) under Beta(a, b)."""
    return a * b / ((a + b) * (a + b + 1.0))


SHARE_OF_ROWS = ("grpo", "sapo", "dr_grpo", "luspo")
SHARE_OF_TOKENS = ("bnpo",)
SHARE_OF_STEP = ("dapo", "cispo", "vespo")
"""TRL's loss types by what they divide by: the rows of a batch, its tokens, or the tokens of all processes' step."""


def skipping_dead_groups(trainer_class: type, spec: GrpoSpec) -> type:
    """The trainer class, which skips dead groups if the recipe says so."""
    if not spec.skip_dead_groups:
        return trainer_class
    return trl_internals.skipping_trainer(trainer_class, signals_of, loss_share)


def signals_of(trainer: Any, rewards: Any) -> Any:
    """Which rows of a step have a signal, as booleans; None where rows without one move the weights, too.

    Args:
        rewards: (rows of all processes, reward functions), the rows of a group in sequence; NaN for none.
    """
    if not _is_exact(trainer):
        return None
    return rows_with_signal(_compared(trainer, rewards), trainer.num_generations)


def dead_and_live(trainer: Any, rewards: Any) -> tuple[list[bool], list[bool]]:
    """Which groups have equal rewards, and which have rewards that differ. A group of which infrastructure lost a
    rollout is never dead: where the other rewards are equal, it is neither.

    Args:
        rewards: As in `signals_of`.
    """
    compared = _compared(trainer, rewards)
    live = rows_with_signal(compared, trainer.num_generations).view(-1, trainer.num_generations).any(dim=1)
    whole = ~compared.isnan().all(dim=1).view(-1, trainer.num_generations).any(dim=1)
    return (whole & ~live).tolist(), live.tolist()


def _compared(trainer: Any, rewards: Any) -> Any:
    """The rewards that are compared within a group: TRL's weighted sum, or each stream where TRL normalizes them one by
    one."""
    if trainer.multi_objective_aggregation == "normalize_then_sum":
        return rewards
    total = (rewards * trainer.reward_weights.to(rewards.device)).nansum(dim=1, keepdim=True)
    total[rewards.isnan().all(dim=1)] = float("nan")
    return total


def rows_with_signal(rewards: Any, generations: int) -> Any:
    """Rows that have a reward, in groups whose rewards differ. Compares the rewards themselves: the standard deviation
    of eight rewards of 0.1 is not zero in floating point."""
    import torch

    missing = rewards.isnan()
    grouped = (-1, generations, rewards.size(1))
    highest = torch.where(missing, -torch.inf, rewards).view(grouped).amax(dim=1)
    lowest = torch.where(missing, torch.inf, rewards).view(grouped).amin(dim=1)
    differ = (highest > lowest).any(dim=1)
    return differ.repeat_interleave(generations) & ~missing.all(dim=1)


def loss_share(trainer: Any, rows: float, tokens: float) -> float:
    """What TRL's loss of the kept rows is multiplied by, so that it is that of the whole batch.

    Args:
        rows: Share of a batch's rows that are kept.
        tokens: Share of its tokens.
    """
    if trainer.loss_type in SHARE_OF_STEP:  # TRL counts these before rows are left out
        return 1.0
    return rows if trainer.loss_type in SHARE_OF_ROWS else tokens


def _is_exact(trainer: Any) -> bool:
    """Whether a row without advantage moves no weight, and changes nothing for the other rows.

    It does with a KL term, an entropy bonus, a router's loss, or an entropy quantile over all rows. It also does with
    dropout, whose random numbers depend on the number of rows.
    """
    return (
        trainer.loss_type in (*SHARE_OF_ROWS, *SHARE_OF_TOKENS, *SHARE_OF_STEP)
        and trainer.beta == 0.0
        and trainer.entropy_coef == 0.0
        and not trainer.use_adaptive_entropy
        and not trainer.aux_loss_enabled
        and trainer.top_entropy_quantile == 1.0
        and not is_random(trainer)
    )


QUESTION_COUNT = "refill/questions"
"""The metric of the questions that a step asked."""


class InOrder:
    """The questions in their order; which are a step's follows from its number. In place of a `Curriculum`.

    Args:
        rows: `spec.questions_a_step` for each step in turn.
    """

    def __init__(self, spec: GrpoSpec, rows: Any):
        self._spec = spec
        self._rows = rows

    def take(self, trainer: Any, taken_before: int, count: int) -> list[dict[str, Any]]:
        begin = trainer.state.global_step // trainer.num_iterations * self._spec.questions_a_step + taken_before
        return [dict(self._rows[n]) for n in range(begin, begin + count)]

    def learn(self, trainer: Any, rewards: Any) -> dict[str, float]:
        return {}


def refilling(trainer_class: type, spec: GrpoSpec, source: Curriculum | InOrder) -> type:
    """The trainer class, which asks the source's questions and fills its steps, if the recipe says so."""
    if spec.oversample == 1.0 and spec.curriculum is None:
        return trainer_class
    return trl_internals.refilling_trainer(trainer_class, ByRewards(spec, source))


class ByRewards:
    """Replaces dead groups by further questions' live ones, in the order asked; the same in every process.

    Rows are of the dataset, one for each rollout of all processes. `rewards` are those of all rollouts of a step so
    far, (rows, reward functions), in the order asked.
    """

    def __init__(self, spec: GrpoSpec, source: Curriculum | InOrder):
        self._spec = spec
        self._source = source

    def first(self, trainer: Any) -> list[dict[str, Any]]:
        """A batch of questions, which are asked whatever their rewards are."""
        return self._repeated(self._source.take(trainer, 0, self._spec.groups_a_step))

    def further(self, trainer: Any, rewards: Any) -> list[dict[str, Any]]:
        """As many questions as should fill the step at the share of live groups so far, and no more than a batch: an
        estimate, because a round that asks too few costs another one. Empty for no more."""
        dead, live = dead_and_live(trainer, rewards)
        taken_before, groups, together = len(dead), self._spec.groups_a_step, self._spec.groups_together
        missing = sum(dead[:groups]) - sum(live[groups:])
        if missing <= 0:
            return []
        found, known = sum(live), sum(live) + sum(dead)
        wanted = min(-(-missing * known // found), groups) if found else groups
        wanted = min(-(-wanted // together) * together, self._spec.questions_a_step - taken_before)
        return self._repeated(self._source.take(trainer, taken_before, wanted)) if wanted else []

    def filled(self, trainer: Any, rewards: Any) -> list[int]:
        """The rollouts that the step learns from, by their index in `rewards`."""
        size = self._spec.num_generations
        return [group * size + n for group in self._groups(trainer, rewards) for n in range(size)]

    def finished(self, trainer: Any, rewards: Any) -> dict[str, float]:
        """Called once, when a step plays no more; returns metrics."""
        learned = self._source.learn(trainer, rewards)
        if self._spec.oversample == 1.0:
            return learned
        dead, _ = dead_and_live(trainer, rewards)
        groups = self._spec.groups_a_step
        return learned | {
            QUESTION_COUNT: float(len(dead)),
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
