"""Each cause is told from the others by its figures, and names one field with one value."""

from pathlib import Path
from typing import Any

import pytest

from apprentice.tasks.advice import ending as endings
from apprentice.tasks.advice.behaviour import Behaviour, Habits
from apprentice.tasks.advice.causes import TABLE, Cause, causes
from apprentice.tasks.advice.course import Evidence
from apprentice.tasks.advice.learning import Learning
from tests.tasks.advice.test_ending import decided, judged

RECIPE: dict[str, Any] = {
    "student": {"build": {"hidden_size": 32, "intermediate_size": 64}},
    "sft": {"epochs": 20, "learning_rate": 1e-3},
    "grpo": {"max_steps": 40, "num_generations": 8, "batch_size": 64, "learning_rate": 3e-4, "reward": "score"},
    "windows": {"collect": {"size": 100}, "evaluate": {"size": 400}},
    "evaluate": {"max_new_tokens": 48, "questions": 200},
}
THINKS = RECIPE | {"student": RECIPE["student"] | {"thinking": {"mode": "text", "max_tokens": 96}}}
PRETRAINED = RECIPE | {"student": {"model": "SmolLM2", "build": None}}
LARGE_GROUPS = RECIPE | {"grpo": RECIPE["grpo"] | {"num_generations": 32}}
EXACT = RECIPE | {"grpo": RECIPE["grpo"] | {"reward": "exact"}}
LEARNED = Learning(first=5.0, middle=0.1, last=0.01, least=0.01, token_accuracy=0.99, held_out=None)
BY_HEART = LEARNED._replace(held_out=(0.7, 1.1))
FALLING = Learning(5.0, 1.4, 0.9, 0.9, 0.68, None)
BARELY = Learning(5.0, 4.9, 4.8, 4.8, 0.1, None)
AT_REST = Learning(5.0, 1.0, 0.99, 0.99, 0.7, None)
ROSE = Learning(5.0, 1.0, 6.0, 0.9, 0.1, None)
HABITS = Habits(90, 3.0, {"find": "list"}, {("refund", "order"): "list"}, 0.05)
NOTHING = Behaviour(100)
DESK_STOPS = {
    "start": NOTHING._replace(broke_off=0.34, broke_off_after="list", right=0.3, paid_for_wrong=0.0),
    "end": NOTHING._replace(
        broke_off=0.83, broke_off_after="list", right=0.16, paid_for_stopping=0.2, paid_for_wrong=0.0
    ),
    "gain": (-0.2, -0.1),
    "diagnosis": "fell",
}


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder into which no pretrained student was put."""
    monkeypatch.chdir(tmp_path)


def evidence(**known: Any) -> Evidence:
    """Of a run below its floor whose SFT has learned its rows, without GRPO."""
    about: dict[str, Any] = {"recipe": RECIPE, "training": "sft", "start": None, "end": NOTHING._replace(right=0.2)}
    about |= {"habits": HABITS, "learning": LEARNED, "teacher": 0.9, "rows": 90, "floor": 0.45}
    return Evidence(**about | known)


def grpo(**known: Any) -> Evidence:
    """The same after GRPO, which neither gained nor lost."""
    about = {"training": "grpo", "start": NOTHING._replace(right=0.2), "gain": (-0.02, 0.02), "equal_groups": 0.2}
    return evidence(**about | known)


RUNS = {
    "few rows of a teacher that is seldom right": (
        evidence(teacher=0.2, rows=12),
        (Cause.TEACHER, "windows.collect.size", 400),
    ),
    "few rows of such a teacher, and a GRPO that gained": (
        grpo(teacher=0.2, rows=12, gain=(0.1, 0.2)),
        (Cause.TEACHER, "windows.collect.size", 400),
    ),
    "the teacher's accuracy is reached, below the floor": (
        evidence(teacher=0.6, floor=0.9, end=NOTHING._replace(right=0.58)),
        (Cause.TEACHER, "teacher", None),
    ),
    "SFT diverged": (evidence(learning=ROSE), (Cause.DIVERGED, "sft.learning_rate", 3.3e-5)),
    "SFT has hardly begun": (evidence(learning=BARELY), (Cause.NOT_LEARNED, "sft.learning_rate", 1e-2)),
    "SFT has hardly begun at a tiny rate": (
        evidence(recipe=RECIPE | {"sft": {"epochs": 20, "learning_rate": 1e-6}}, learning=BARELY),
        (Cause.NOT_LEARNED, "sft.learning_rate", 1e-3),
    ),
    "SFT made few steps, and its answers never end": (
        evidence(learning=FALLING._replace(logs=2), end=NOTHING._replace(cut=1.0, no_first_call=1.0)),
        (Cause.NOT_LEARNED, "sft.epochs", 160),
    ),
    "SFT came to rest, and its answers never end": (
        evidence(learning=AT_REST, end=NOTHING._replace(cut=1.0, no_first_call=1.0)),
        (Cause.TOO_SMALL, "student.build.hidden_size", 128),
    ),
    "a pretrained student has hardly begun": (
        evidence(recipe=PRETRAINED | {"sft": {"epochs": 2, "learning_rate": 1e-6}}, learning=BARELY),
        (Cause.NOT_LEARNED, "sft.learning_rate", 2e-5),
    ),
    "SFT was still learning": (evidence(learning=FALLING), (Cause.NOT_LEARNED, "sft.epochs", 160)),
    "SFT was still learning the last of its rows": (
        evidence(learning=FALLING._replace(token_accuracy=0.95)),
        (Cause.NOT_LEARNED, "sft.epochs", 80),
    ),
    "SFT came to rest": (evidence(learning=AT_REST), (Cause.TOO_SMALL, "student.build.hidden_size", 128)),
    "calls are cut": (
        evidence(end=NOTHING._replace(cut=0.6, no_first_call=0.6)),
        (Cause.CUT, "evaluate.max_new_tokens", 192),
    ),
    "thoughts are cut": (
        evidence(recipe=THINKS, end=NOTHING._replace(thought_cut=0.6, no_first_call=0.6)),
        (Cause.THOUGHT_CUT, "student.thinking.max_tokens", 192),
    ),
    "calls are cut after their thoughts": (
        evidence(recipe=THINKS, end=NOTHING._replace(cut=0.6, thought_cut=0.1, no_first_call=0.7)),
        (Cause.CUT, "evaluate.max_new_tokens", 192),
    ),
    "rollouts are cut within their thoughts": (
        grpo(recipe=THINKS, clipped=0.7, thoughts_cut=0.6),
        (Cause.THOUGHT_CUT, "student.thinking.max_tokens", 192),
    ),
    "rollouts have thoughts over their budget, which end": (
        grpo(recipe=THINKS, thoughts_cut=0.6),
        (Cause.THOUGHT_CUT, "student.thinking.max_tokens", 192),
    ),
    "rollouts are cut after their thoughts": (
        grpo(recipe=THINKS, clipped=0.7, thoughts_cut=0.1),
        (Cause.CUT, "grpo.max_completion_length", None),
    ),
    "rollouts are cut": (grpo(clipped=0.7), (Cause.CUT, "grpo.max_completion_length", None)),
    "ids are invented by a built student": (
        evidence(end=NOTHING._replace(invented=0.8, invented_in="refund.order")),
        (Cause.COPYING, "student", {"model": "HuggingFaceTB/SmolLM2-135M-Instruct"}),
    ),
    "ids are invented by a student that had few rows": (
        evidence(rows=20, end=NOTHING._replace(invented=0.8, invented_in="refund.order")),
        (Cause.MEMORISED, "windows.collect.size", 400),
    ),
    "ids are invented by a pretrained one": (
        evidence(recipe=PRETRAINED, end=NOTHING._replace(invented=0.8, invented_in="refund.order")),
        (Cause.COPYING, "windows.collect.size", 400),
    ),
    "ids are taken from another turn": (
        evidence(end=NOTHING._replace(misplaced=0.5, misplaced_in="refund.order", taken_from="list")),
        (Cause.MISPLACED, "windows.collect.size", 400),
    ),
    "ids are taken from another turn, and few rows known by heart": (
        evidence(rows=20, end=NOTHING._replace(misplaced=0.5, misplaced_in="refund.order", taken_from="list")),
        (Cause.MEMORISED, "windows.collect.size", 400),
    ),
    "the wrong one of the right reply is chosen": (
        evidence(end=NOTHING._replace(ill_chosen=0.6, right=0.3)),
        (Cause.ILL_CHOSEN, "windows.collect.size", 400),
    ),
    "GRPO was there to learn the choice": (
        grpo(end=NOTHING._replace(ill_chosen=0.6, right=0.3)),
        (Cause.FLAT, "grpo.max_steps", 80),
    ),
    "the first call is unreadable": (
        evidence(recipe=PRETRAINED, learning=AT_REST, end=NOTHING._replace(no_first_call=0.9)),
        (Cause.FORM, "sft.epochs", 80),
    ),
    "the first call is unreadable, though the rows are learned": (
        evidence(end=NOTHING._replace(no_first_call=0.9)),
        (Cause.FORM, "windows.collect.size", 400),
    ),
    "the reward pays for stopping": (grpo(**DESK_STOPS), (Cause.STOPPING_PAYS, "grpo.reward", "exact")),
    "it still pays where only whole successes count": (
        grpo(recipe=EXACT, **DESK_STOPS),
        (Cause.STOPPING_PAYS, "environment.version", None),
    ),
    "one answer for everything": (
        evidence(end=NOTHING._replace(constant=0.9, constant_call="answer(yes)", right=0.3)),
        (Cause.ONE_ANSWER, "windows.collect.size", 400),
    ),
    "SFT breaks off where the teacher goes on": (
        evidence(end=NOTHING._replace(broke_off=0.5, broke_off_after="find", missing="list")),
        (Cause.BROKE_OFF, "windows.collect.size", 400),
    ),
    "few rows are known by heart, and new ones broken off": (
        evidence(rows=20, end=NOTHING._replace(right=0.05, broke_off=0.5, broke_off_after="find", missing="list")),
        (Cause.MEMORISED, "windows.collect.size", 400),
    ),
    "GRPO overshot": (grpo(gain=(-0.2, -0.05)), (Cause.OVERSHOT, "grpo.learning_rate", 1e-4)),
    "GRPO spoilt the model": (
        grpo(gain=(-0.8, -0.7), start=NOTHING._replace(right=0.8), end=NOTHING),
        (Cause.OVERSHOT, "grpo.learning_rate", 1e-5),
    ),
    "groups are right as a whole": (
        grpo(diagnosis="saturated", end=NOTHING._replace(right=0.8)),
        (Cause.SATURATED, "environment.settings", None),
    ),
    "learned by heart": (
        evidence(learning=BY_HEART, end=NOTHING._replace(right=0.0)),
        (Cause.MEMORISED, "windows.collect.size", 400),
    ),
    "equal groups at a low entropy": (
        grpo(equal_groups=0.6, entropy=0.03),
        (Cause.EQUAL_GROUPS, "grpo.num_generations", 16),
    ),
    "equal groups, though they are large": (
        grpo(recipe=LARGE_GROUPS, equal_groups=0.6, entropy=0.03),
        (Cause.EQUAL_GROUPS, "sft.epochs", 10),
    ),
    "no group has a right answer": (
        grpo(recipe=PRETRAINED, learning=AT_REST, start=NOTHING, end=NOTHING, equal_groups=0.9),
        (Cause.TOO_HARD, "windows.collect.size", 400),
    ),
    "GRPO was still gaining": (grpo(gain=(0.05, 0.15)), (Cause.STILL_GAINING, "grpo.max_steps", 160)),
    "GRPO moved nothing": (grpo(), (Cause.FLAT, "grpo.max_steps", 80)),
    "too few questions": (grpo(questions=900), (Cause.NOISE, "evaluate.questions", 900)),
}


@pytest.mark.parametrize(("found", "named"), RUNS.values(), ids=RUNS)
def test_the_first_cause_is_the_one_that_the_figures_show(found: Evidence, named: tuple):
    first = causes(found)[0]
    cause, field, value = named
    assert (first.cause, first.remedy.name) == (cause, field)
    to = first.remedy.to
    assert value.items() <= to.items() if isinstance(value, dict) else to == value


def test_the_evidence_of_a_cause_has_its_figures():
    [stops, *_] = causes(grpo(**DESK_STOPS))
    assert stops.evidence == (
        "The model breaks off after `list` in 83% of the episodes (34% before GRPO). That earns 0.2, and a wrong end "
        "0: GRPO learned to stop."
    )
    [equal, *_] = causes(grpo(equal_groups=0.6, entropy=0.03))
    assert "60% of GRPO's groups" in equal.evidence
    assert "0.03 a token" in equal.evidence
    [copied, *_] = causes(evidence(end=NOTHING._replace(invented=0.8, invented_in="refund.order")))
    assert "In 80% of the episodes `refund.order`" in copied.evidence
    [placed, *_] = causes(evidence(end=NOTHING._replace(misplaced=0.5, misplaced_in="refund.order", taken_from="list")))
    assert placed.evidence == (
        "In 50% of the episodes `refund.order` is copied, but not from the reply of `list`, where the teacher finds it."
    )


def test_a_limit_of_tokens_is_named_as_it_was():
    def of(**shares: float) -> str:
        return causes(evidence(recipe=THINKS, end=NOTHING._replace(**shares)))[0].evidence

    assert of(thought_cut=0.6).startswith("60% of the answers reached the limit of 96 tokens within a thought.")
    assert of(cut=0.6) == "60% of the answers reached their limit of 48 tokens, and 96 of thought, within a call."
    [alone, *_] = causes(evidence(end=NOTHING._replace(cut=0.6)))
    assert alone.evidence == "60% of the answers reached their limit of 48 tokens within a call."
    [rollouts, *_] = causes(grpo(recipe=THINKS, clipped=0.7, thoughts_cut=0.55))
    assert rollouts.evidence.startswith("55% of GRPO's rollouts reached the limit of 96 tokens within a thought.")


def test_a_student_that_changes_takes_its_settings_along():
    [first, *_] = causes(evidence(end=NOTHING._replace(invented=0.8, invented_in="refund.order")))
    changes = first.remedy.changes
    assert (changes["sft.learning_rate"], changes["sft.epochs"]) == (1e-4, 4)
    assert changes["grpo.max_steps"] == 30
    assert changes["student"]["chat_template"] == "qwen2_5"


def test_a_pretrained_student_that_is_here_is_not_downloaded(tmp_path: Path):
    (tmp_path / "build" / "smollm2" / "model").mkdir(parents=True)
    [first, *_] = causes(evidence(end=NOTHING._replace(invented=0.8, invented_in="refund.order")))
    assert first.remedy.to == {"model": "build/smollm2/model", "chat_template": "qwen2_5"}


def test_a_larger_group_keeps_whole_groups_in_a_step():
    odd = RECIPE | {"grpo": RECIPE["grpo"] | {"batch_size": 24}}
    [first, *_] = causes(grpo(recipe=odd, equal_groups=0.6))
    assert first.remedy.changes == {"grpo.num_generations": 16, "grpo.batch_size": 48}


def test_every_row_of_the_table_is_reached_by_some_run():
    shown = {look for look in TABLE for found, _ in RUNS.values() if look(found) is not None}
    assert shown == set(TABLE)


@pytest.fixture
def below() -> tuple[Any, Any]:
    verdict = judged(0.0, 0.0)
    return endings.VerdictContents.model_validate(verdict), endings.GateDecision.model_validate(decided(verdict))


def test_a_field_that_was_changed_in_vain_is_not_named_again(below: tuple):
    known = evidence(learning=BY_HEART, end=NOTHING)
    advised = endings.ending(below[0], below[1], RECIPE, known).advised
    assert advised[0].field == "windows.collect.size"
    left = endings.ending(below[0], below[1], RECIPE, known, {"windows.collect.size"}).advised
    assert [each.field for each in left] == ["student"]
    assert left[0].cause == Cause.BEYOND


def test_where_all_was_tried_the_sentence_says_so(below: tuple):
    known = evidence(learning=BY_HEART, end=NOTHING)
    ended = endings.ending(below[0], below[1], RECIPE, known, {"windows.collect.size", "student"})
    assert ended.change is None
    assert ended.next.startswith("Nothing is left to try")
    assert "Nothing needs to be changed" not in ended.sentence()


def test_rows_are_not_blamed_where_nothing_learned_from_rows():
    alone = RECIPE | {"sft": None}
    found = causes(grpo(recipe=alone, learning=None, habits=None, rows=None))
    assert [each.remedy.name for each in found] == ["grpo.max_steps"]


def test_each_field_is_advised_once_with_its_main_cause(below: tuple):
    fields = [each.field for each in endings.ending(below[0], below[1], RECIPE, evidence(learning=FALLING)).advised]
    assert len(fields) == len(set(fields))
    assert fields[0] == "sft.epochs"
