"""Diagnoses a GRPO run from its curves, in one sentence. What to change is in the table of causes alone
(tasks/advice/causes.py), which reads the diagnosis beside what else the run knows.

In: the trainer's log history, and the rules of its signals. Out: the reward delta as the walkthrough defines it, with
its interval, and a diagnosis.
With beta = 0 there is no reference model, so no KL term explains a fall. Saturation is the share of groups with equal
rewards (`frac_reward_zero_std`), not `reward_std`, which is computed over the batch: groups [1, 1] and [0, 0] show 0.58
there and teach nothing. The delta compares different questions and is noisy; the held-out evaluation decides. With a
curriculum it compares easier with harder ones, and says nothing of progress.
"""

from statistics import mean
from typing import Any

from apprentice.tasks.analysis.curve_signals import are_dead, dead_groups, have_no_signal, value_of
from apprentice.tasks.judgement.contents import Curves, Diagnosis
from apprentice.tasks.settings.signals import RewardSignals
from apprentice.tasks.statistics.intervals import Interval, welch_interval
from apprentice.tasks.statistics.question_kinds import kinds_over_time

RULES = RewardSignals()
"""The default rules."""
ENDS = 5
"""Logged rewards to average at the start and at the end (walkthrough, section 10)."""
OF_THE_REWARD = (Diagnosis.FELL, Diagnosis.FLAT, Diagnosis.LEARNING)
"""Diagnoses of the reward's course."""
HELD_OUT_DECIDES = {
    Diagnosis.LEARNING: "The logged rewards do not show it, since each log asks other questions; the held-out ones do.",
    Diagnosis.FLAT: "The reward moved on the training's questions; on the held-out ones the difference is within its "
    "noise.",
    Diagnosis.FELL: "The logged rewards do not show it; on the held-out questions the model is worse than before.",
}
CHOSEN_BY_SUCCESS = (
    "The questions were chosen by what the model can do, harder ones as it learned, so the rewards of different steps "
    "do not compare: read the success of each kind."
)


def read_curves(log: list[dict[str, Any]], beta: float, rules: RewardSignals = RULES) -> Curves:
    """Applies the rules to a log history with `reward` and `frac_reward_zero_std`. Raises ValueError without any."""
    rewards = [reward for entry in log if (reward := value_of(entry, "reward")) is not None]
    if not rewards:
        raise ValueError("the log has no rewards; lower grpo.logging_steps")
    first, last = rewards[:ENDS], rewards[-ENDS:]
    dead = dead_groups(log)
    delta = mean(last) - mean(first)
    ci = welch_interval(first, last) if len(rewards) >= 2 * ENDS else None
    dead_ends = mean(dead[:ENDS]), mean(dead[-ENDS:])
    diagnosis, advice = _judge(mean(first), ci, len(rewards), *dead_ends, beta, rules)
    if diagnosis in OF_THE_REWARD and kinds_over_time(log):
        diagnosis, advice = Diagnosis.FOLLOWS_THE_CURRICULUM, CHOSEN_BY_SUCCESS
    return Curves(
        reward_initial=mean(first),
        reward_final=mean(last),
        delta=delta,
        ci=ci,
        logs=len(rewards),
        dead_groups=dead_ends[1],
        diagnosis=diagnosis,
        advice=advice,
    )


def has_rewards(log: list[dict[str, Any]]) -> bool:
    """Whether a log is of a training by reward."""
    return any(value_of(entry, "reward") is not None for entry in log)


def settled(reading: Curves, gain: Interval | None) -> Curves:
    """The reading with its course as the held-out questions have it: they decide where the two differ.

    `gain`: the 95% interval of GRPO's gain on the held-out questions; None where nothing was compared.
    """
    if gain is None or reading.diagnosis not in OF_THE_REWARD:
        return reading
    course = Diagnosis.LEARNING if gain[0] > 0 else Diagnosis.FELL if gain[1] < 0 else Diagnosis.FLAT
    if course == reading.diagnosis:
        return reading
    return reading.model_copy(update={"diagnosis": course, "advice": HELD_OUT_DECIDES[course]})


def _judge(
    first: float, ci: Interval | None, logs: int, dead_first: float, dead_last: float, beta: float, rules: RewardSignals
) -> tuple[Diagnosis, str]:
    if ci is None and logs < 2 * ENDS:
        return Diagnosis.TOO_SHORT, f"Only {logs} rewards were logged; the two ends overlap. Log at least {2 * ENDS}."
    if first >= rules.high:
        return (
            Diagnosis.TOO_EASY,
            f"The reward was at {first:.0%} before GRPO began: there was little left to learn.",
        )
    if have_no_signal(dead_first, first, rules):
        return Diagnosis.NO_SIGNAL, "Nearly every group scored the same, near zero, and taught nothing."
    if ci is not None and ci[1] < 0:
        held = " With beta = 0 no KL term pulls the policy back." if beta == 0 else ""
        return Diagnosis.FELL, f"The reward fell during training.{held}"
    if are_dead(dead_last, rules):
        return Diagnosis.SATURATED, "Most groups scored the same in the end and taught nothing more."
    if ci is None or ci[0] <= 0:
        return Diagnosis.FLAT, "The reward's rise is within its noise."
    return Diagnosis.LEARNING, "The reward rose, and groups still differ."
