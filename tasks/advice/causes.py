"""Why a run did not reach its floor, or its training did not pay: one table of causes, each with what to change.

In: `Evidence`, the figures that a run knows. Out: the causes that the figures show, the main one first, each with its
evidence in a sentence and the fields to change. The order is that of the run: what the teacher gives, what SFT makes of
it, what the reward pays for, what GRPO does with it, and what the evaluation can show. A later stage cannot mend an
earlier one.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from apprentice.tasks.advice.behaviour import QUESTION
from apprentice.tasks.advice.course import Evidence
from apprentice.tasks.advice.learning import FEWEST
from apprentice.tasks.advice.remedies import (
    FACTOR,
    FAR,
    GENTLER,
    MUCH,
    MUCH_GENTLER,
    Remedy,
    builds,
    exactly,
    faster,
    fewer,
    gentler,
    larger_groups,
    larger_student,
    more,
    more_questions,
    more_rows,
    person,
    pretrained,
    value_of,
)
from apprentice.tasks.judgement.contents import Diagnosis
from apprentice.tasks.judgement.model_names import named
from apprentice.tasks.reporting.safe_text import code

FORM = 0.5
"""The share of first turns without a valid call from which on a model lacks the form of an answer."""
LEARNED = 0.97
"""The share of its rows' tokens that a model predicts that has learned them."""
MANY = 0.5
"""The share of a training's groups, all of equal rewards, from which on they hold it back."""
NOTED = 0.3
"""The share of the episodes from which on what happens in them is a cause."""
GREW = 0.15
"""By how much such a share must have grown to be the doing of a training."""
LOW_ENTROPY = 0.15
"""Nats a token below which samples of one question are mostly the same."""
MOSTLY = 0.5
"""The accuracy from which on a model is mostly right."""
FEW_ROWS = 40
"""Kept rows below which a teacher that is seldom right is the cause."""
TOO_FEW_TO_COPY = 80
"""Rows below which a model that has learned them may yet learn to copy from more."""
SELDOM = 0.5
"""The accuracy below which a teacher is seldom right."""
NEAR = 0.05
"""By how little a model misses its teacher's accuracy that has reached it."""
PLATEAU = 0.9
"""The share of its rows' tokens below which a loss that has come to rest shows too small a student."""
MOST = 0.9
"""The accuracy from which on equal groups are right ones."""
LARGE_GROUP = 32
"""Completions of a group from which on fewer epochs give more variety than a larger one."""
LOW = 0.1
"""The accuracy on new questions of a model that knows its rows alone."""


class Cause(StrEnum):
    """What holds a run back."""

    TEACHER = "the teacher's limit"
    NOT_LEARNED = "not learned yet"
    DIVERGED = "SFT diverged"
    CUT = "answers are cut"
    THOUGHT_CUT = "thoughts are cut"
    FORM = "no form"
    COPYING = "values are invented"
    MISPLACED = "values of another turn"
    ILL_CHOSEN = "the wrong one is chosen"
    ONE_ANSWER = "one answer for everything"
    MEMORISED = "memorised"
    TOO_SMALL = "too small a student"
    BEYOND = "beyond a student built here"
    STOPPING_PAYS = "the reward pays for stopping"
    BROKE_OFF = "broke off"
    OVERSHOT = "overshot"
    SATURATED = "saturated"
    EQUAL_GROUPS = "equal groups"
    TOO_HARD = "too hard"
    STILL_GAINING = "still gaining"
    FLAT = "flat"
    NOISE = "noise"


class Finding(NamedTuple):
    """A cause that the figures show."""

    cause: Cause
    evidence: str
    """A sentence with the figures."""
    remedy: Remedy


def causes(found: Evidence) -> list[Finding]:
    """All causes that the figures show, the main one first."""
    return [finding for look in TABLE if (finding := look(found)) is not None]


def _noise(found: Evidence) -> Finding | None:
    if found.questions is None:
        return None
    evidence = "So few questions cannot show so small a difference."
    return Finding(Cause.NOISE, evidence, more_questions(found.recipe, found.questions))


def _teacher(found: Evidence) -> Finding | None:
    """The teacher is seldom right, so that few rows are left; or the model has reached it, below the floor."""
    if found.teacher is None:
        return None
    evidence = f"The teacher is right on {found.teacher:.0%} of its questions"
    if found.teacher < SELDOM and found.rows is not None and found.rows < FEW_ROWS:
        return Finding(
            Cause.TEACHER, f"{evidence}, which leaves {found.rows} rows to learn from.", more_rows(found.recipe)
        )
    if found.paid or found.floor is None or found.teacher >= found.floor or found.end.right < found.teacher - NEAR:
        return None
    return Finding(
        Cause.TEACHER, f"{evidence}, and the model has reached that.", person("teacher", "a stronger teacher")
    )


def _diverged(found: Evidence) -> Finding | None:
    log = found.learning
    if log is None or not log.diverged:
        return None
    evidence = f"SFT's loss rose: {log.least:.3g} at its lowest, {log.last:.3g} at the end."
    return Finding(Cause.DIVERGED, evidence, gentler(found.recipe, "sft.learning_rate", MUCH_GENTLER))


def _not_learned(found: Evidence) -> Finding | None:
    log = found.learning
    if log is None or log.is_learned(LEARNED) or log.diverged:
        return None
    if log.barely_moved:
        evidence = (
            f"SFT has learned next to nothing: its loss was {log.first:.3g} at first and is {log.last:.3g} at the end."
        )
        return Finding(Cause.NOT_LEARNED, evidence, faster(found.recipe))
    factor = MUCH if log.is_learned(PLATEAU) else FAR
    if log.logs < FEWEST and log.token_accuracy is not None:
        evidence = f"SFT made few steps, and predicts {log.token_accuracy:.0%} of its rows' tokens."
        return Finding(Cause.NOT_LEARNED, evidence, more(found.recipe, "sft.epochs", factor))
    if not log.falling:
        return None
    known = "" if log.token_accuracy is None else f" predicts {log.token_accuracy:.0%} of its rows' tokens, and"
    evidence = f"SFT{known} was still learning: its loss was {log.middle:.3g} halfway and is {log.last:.3g} at the end."
    return Finding(Cause.NOT_LEARNED, evidence, more(found.recipe, "sft.epochs", factor))


def _writes_calls(found: Evidence) -> bool:
    return found.learning is None or found.learning.is_learned(PLATEAU)


def _thought_cut(found: Evidence) -> Finding | None:
    """Of answers, or of rollouts: a longer limit of the answer would not help these."""
    answers = found.supervised.thought_cut if _writes_calls(found) else 0.0
    if answers < NOTED and not (found.by_reward and _thoughts_are_clipped(found)):
        return None
    limit = value_of(found.recipe, "student.thinking.max_tokens")
    of_tokens = f" of {limit} tokens" if limit else ""
    who = f"{answers:.0%} of the answers" if answers >= NOTED else f"{found.thoughts_cut:.0%} of GRPO's rollouts"
    evidence = f"{who} reached the limit{of_tokens} within a thought. Shorter thoughts of the teacher help as well."
    costs = "longer answers in every stage"
    return Finding(Cause.THOUGHT_CUT, evidence, more(found.recipe, "student.thinking.max_tokens", FACTOR, costs))


def _thoughts_are_clipped(found: Evidence) -> bool:
    """Whether many rollouts end in a thought, or are most of those that reached their limit."""
    return found.thoughts_cut >= (found.clipped / 2 if found.clipped >= MANY else MANY)


def _cut(found: Evidence) -> Finding | None:
    if _writes_calls(found) and found.supervised.cut >= NOTED:
        limit = value_of(found.recipe, "evaluate.max_new_tokens")
        thought = value_of(found.recipe, "student.thinking.max_tokens")
        beside = f", and {thought} of thought," if thought else ""
        evidence = (
            f"{found.supervised.cut:.0%} of the answers reached their limit of {limit} tokens{beside} within a call."
        )
        return Finding(Cause.CUT, evidence, more(found.recipe, "evaluate.max_new_tokens", MUCH, "longer evaluations"))
    if found.by_reward and found.clipped >= MANY and not _thoughts_are_clipped(found):
        evidence = f"{found.clipped:.0%} of GRPO's rollouts reached their limit of tokens before they were whole."
        costs = "longer rollouts, and memory for them"
        return Finding(Cause.CUT, evidence, more(found.recipe, "grpo.max_completion_length", FACTOR, costs))
    return None


def _copying(found: Evidence) -> Finding | None:
    start = found.supervised
    if start.invented < NOTED or _knows_few_rows(found):
        return None
    evidence = (
        f"In {start.invented:.0%} of the episodes {code(start.invented_in)} is a value that stands neither in the "
        "question nor in a reply; the teacher copies it from there."
    )
    if not builds(found.recipe):
        return Finding(Cause.COPYING, evidence, more_rows(found.recipe))
    why = f"{evidence} A student built here does not learn to copy ids and digits from so few episodes."
    return Finding(Cause.COPYING, why, pretrained(found.recipe))


def _misplaced(found: Evidence) -> Finding | None:
    start = found.supervised
    if start.misplaced < NOTED or _knows_few_rows(found):
        return None
    whence = QUESTION if start.taken_from == QUESTION else f"the reply of {code(start.taken_from)}"
    evidence = (
        f"In {start.misplaced:.0%} of the episodes {code(start.misplaced_in)} is copied, but not from {whence}, where "
        "the teacher finds it."
    )
    return Finding(Cause.MISPLACED, evidence, more_rows(found.recipe))


def _ill_chosen(found: Evidence) -> Finding | None:
    """Of a run by rows alone: a training by reward is there to learn the choice."""
    if found.by_reward or found.end.ill_chosen < MANY:
        return None
    evidence = (
        f"{found.end.ill_chosen:.0%} of the episodes end with a value that stands where the teacher takes it from, "
        "and is the wrong one there."
    )
    return Finding(Cause.ILL_CHOSEN, evidence, more_rows(found.recipe))


def _too_small(found: Evidence) -> Finding | None:
    """A student built here whose loss has come to rest, though its rows are not learned."""
    log = found.learning
    if log is None or not builds(found.recipe) or log.is_learned(PLATEAU) or log.falling or log.barely_moved:
        return None
    known = "" if log.token_accuracy is None else f" at {log.token_accuracy:.0%} of its rows' tokens"
    evidence = f"SFT came to rest{known}: its loss was {log.middle:.3g} halfway and is {log.last:.3g} at the end."
    return Finding(Cause.TOO_SMALL, evidence, larger_student(found.recipe))


def _form(found: Evidence) -> Finding | None:
    start = found.supervised
    if found.learning is None or min(start.no_first_call, found.end.no_first_call) < FORM:
        return None
    evidence = (
        f"In {start.no_first_call:.0%} of SFT's episodes the first turn is no valid call: the form is not learned"
    )
    if found.learning.is_learned(LEARNED):
        return Finding(Cause.FORM, f"{evidence}, though its rows are: they are too few.", more_rows(found.recipe))
    return Finding(Cause.FORM, f"{evidence}.", more(found.recipe, "sft.epochs", MUCH))


def _stopping_pays(found: Evidence) -> Finding | None:
    end, before = found.end, found.start.broke_off if found.start else 0.0
    if not found.by_reward or end.broke_off < max(NOTED, before + GREW) or end.paid_for_stopping is None:
        return None
    wrong = end.paid_for_wrong
    if wrong is None and found.start is not None:
        wrong = found.start.paid_for_wrong
    if wrong is not None and end.paid_for_stopping < wrong:
        return None
    evidence = (
        f"The model breaks off after {code(end.broke_off_after)} in {end.broke_off:.0%} of the episodes ({before:.0%} "
        f"before GRPO). That earns {end.paid_for_stopping:.2g}"
        + (f", and a wrong end {wrong:.2g}" if wrong is not None else "")
        + ": GRPO learned to stop."
    )
    if value_of(found.recipe, "grpo.reward") == "exact":
        return Finding(Cause.STOPPING_PAYS, evidence, person("environment.version", "rewards of another version"))
    return Finding(Cause.STOPPING_PAYS, evidence, exactly(found.recipe))


def _one_answer(found: Evidence) -> Finding | None:
    start, usual = found.supervised, found.habits.constant if found.habits else 0.0
    if found.learning is None or start.constant < max(MOSTLY, usual + NOTED) or start.right >= MOSTLY:
        return None
    evidence = (
        f"{start.constant:.0%} of SFT's episodes end with {code(start.constant_call)}; {usual:.0%} of the teacher's "
        "end with one and the same call."
    )
    if found.learning.is_learned(LEARNED):
        return Finding(Cause.ONE_ANSWER, evidence, more_rows(found.recipe))
    return Finding(Cause.ONE_ANSWER, evidence, more(found.recipe, "sft.epochs", MUCH))


def _broke_off(found: Evidence) -> Finding | None:
    start = found.supervised
    if start.broke_off < NOTED or not start.missing or (_knows_few_rows(found) and _is_low(found, start.right)):
        return None
    evidence = (
        f"{start.broke_off:.0%} of SFT's episodes break off after {code(start.broke_off_after)}, where the teacher "
        f"calls {code(start.missing)}."
    )
    if found.learning is not None and not found.learning.is_learned(LEARNED):
        return Finding(Cause.BROKE_OFF, evidence, more(found.recipe, "sft.epochs", MUCH))
    return Finding(Cause.BROKE_OFF, evidence, more_rows(found.recipe))


def _overshot(found: Evidence) -> Finding | None:
    if found.gain is None or not (found.gain[1] < 0 or found.diagnosis == Diagnosis.FELL):
        return None
    evidence = f"{named(found.training)} went too far: the model was better before."
    is_lost = found.start is not None and found.end.right < found.start.right / 10
    rate = gentler(found.recipe, f"{found.training}.learning_rate", MUCH_GENTLER if is_lost else GENTLER)
    return Finding(Cause.OVERSHOT, evidence, rate)


def _saturated(found: Evidence) -> Finding | None:
    read = found.diagnosis in (Diagnosis.TOO_EASY, Diagnosis.SATURATED)
    if found.end.right < MOSTLY or not (found.did_not_start or read):
        return None
    evidence = "Most of GRPO's groups were right as a whole: a harder level leaves it something to learn."
    return Finding(Cause.SATURATED, evidence, person("environment.settings", "a new collection"))


def _memorised(found: Evidence) -> Finding | None:
    log, start = found.learning, found.supervised
    if log is None or not log.is_learned(LEARNED) or not _is_low(found, start.right):
        return None
    of_rows = "its own rows" if log.token_accuracy is None else f"{log.token_accuracy:.0%} of its own rows' tokens"
    rose = f"; its held-out loss rose from {log.held_out[0]:.3g} to {log.held_out[1]:.3g}" if log.held_out else ""
    evidence = (
        f"SFT predicts {of_rows} (loss {log.last:.2g}{rose if log.overfits else ''}), and is right on "
        f"{start.right:.0%} of new questions: it knows its rows by heart."
    )
    return Finding(Cause.MEMORISED, evidence, more_rows(found.recipe))


def _beyond(found: Evidence) -> Finding | None:
    """What a student built here cannot do however many rows it gets; the causes before this one were tried."""
    log, start = found.learning, found.supervised
    if log is None or not builds(found.recipe) or not _is_low(found, start.right):
        return None
    evidence = f"A student built here is right on {start.right:.0%} of new questions after SFT."
    return Finding(Cause.BEYOND, evidence, pretrained(found.recipe))


def _equal_groups(found: Evidence) -> Finding | None:
    equal, entropy = found.equal_groups, found.entropy
    if equal is None or equal < MANY or found.end.right >= MOST or (found.supervised.right <= LOW and not found.paid):
        return None
    evidence = f"{equal:.0%} of GRPO's groups had equal rewards and taught nothing"
    if entropy is not None and entropy < LOW_ENTROPY:
        evidence += f", at an entropy of {entropy:.2g} a token: SFT left the model hardly any variety"
    if (value_of(found.recipe, "grpo.num_generations") or 0) >= LARGE_GROUP:
        return Finding(Cause.EQUAL_GROUPS, f"{evidence}.", fewer(found.recipe, "sft.epochs"))
    return Finding(Cause.EQUAL_GROUPS, f"{evidence}. Larger ones differ more often.", larger_groups(found.recipe))


def _too_hard(found: Evidence) -> Finding | None:
    hopeless = found.did_not_start or (found.equal_groups or 0.0) >= MANY or found.diagnosis == Diagnosis.NO_SIGNAL
    if not hopeless or max(found.supervised.right, found.end.right) > LOW:
        return None
    evidence = (
        f"After SFT the model is right on {found.supervised.right:.1%} of the questions, so nearly all groups of GRPO "
        "were wrong as a whole."
    )
    remedy = (
        more_rows(found.recipe)
        if value_of(found.recipe, "sft.epochs")
        else person("environment.settings", "an easier level")
    )
    return Finding(Cause.TOO_HARD, evidence, remedy)


def _still_gaining(found: Evidence) -> Finding | None:
    if not found.paid:
        return None
    return Finding(Cause.STILL_GAINING, "GRPO was still gaining.", more(found.recipe, "grpo.max_steps", MUCH))


def _flat(found: Evidence) -> Finding | None:
    if not found.by_reward:
        return None
    evidence = "GRPO's reward moved no further than its noise."
    return Finding(Cause.FLAT, evidence, more(found.recipe, "grpo.max_steps", FACTOR))


def _too_few_rows(found: Evidence) -> Finding | None:
    if found.recipe and value_of(found.recipe, "sft.epochs") is None:
        return None
    evidence = "SFT has learned its rows, and they are too few for more."
    return Finding(Cause.MEMORISED, evidence, more_rows(found.recipe))


def _knows_few_rows(found: Evidence) -> bool:
    """Whether SFT has learned its rows, and these are too few to learn more from than themselves."""
    few = found.rows is not None and found.rows < TOO_FEW_TO_COPY
    return few and found.learning is not None and found.learning.is_learned(LEARNED)


def _is_low(found: Evidence, right: float) -> bool:
    """Whether a model that learned from rows is so seldom right that a training by reward has nothing to begin from."""
    alone = not found.by_reward and not found.did_not_start
    return right <= LOW or (alone and found.floor is not None and right < found.floor)


TABLE: tuple[Callable[[Evidence], Finding | None], ...] = (
    _noise,
    _teacher,
    _diverged,
    _not_learned,
    _thought_cut,
    _cut,
    _copying,
    _misplaced,
    _too_small,
    _form,
    _stopping_pays,
    _one_answer,
    _broke_off,
    _overshot,
    _saturated,
    _ill_chosen,
    _memorised,
    _equal_groups,
    _too_hard,
    _still_gaining,
    _beyond,
    _flat,
    _too_few_rows,
)
"""How each cause is recognised, in the order in which they hide one another."""
