"""The questions of a round: none that an earlier round asked, fewer of the kinds that are mastered."""

from pathlib import Path

import pytest

from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.sections import RoundSpec
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.texts import same_text
from apprentice.tasks.files.question_lists import read_questions
from apprentice.tasks.questions import fresh_questions
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import SeedWindows, Shares, Window
from tests.tasks.test_levels import published, question_texts, words

FLYWHEEL = Path(__file__).parents[2] / "deployments" / "recipes" / "flywheel.yaml"
WINDOWS = SeedWindows(
    collect=Window(start=0, size=60), grpo=Window(start=1000, size=60), evaluate=Window(start=2000, size=60)
)


def texts(context: StageContext, purpose: str, used: bool = True) -> set[str]:
    return {same_text(row["question"]) for row in read_questions(context.out, purpose) if row["used"] == used}


def test_what_an_earlier_round_asked_for_any_purpose_is_not_asked_again(context: StageContext):
    task = words(3, 8)
    repeated = [question_texts(task, window.seeds())[0] for _, window in WINDOWS]
    rows = [
        (purpose, text.upper(), True) for purpose, text in zip(("evaluate", "collect", "grpo"), repeated, strict=True)
    ]
    earlier = {"0": published(context, "k1", rows)}
    fresh_questions.body(context, task, WINDOWS, 30, earlier, None)
    for purpose, text in zip(("collect", "grpo", "evaluate"), repeated, strict=True):
        assert same_text(text) in texts(context, purpose, used=False)
        assert same_text(text) not in texts(context, purpose)
    assert not texts(context, "evaluate") & (texts(context, "collect") | texts(context, "grpo"))
    assert len(texts(context, "evaluate")) == 30


def test_a_question_of_an_earlier_window_that_was_not_asked_is_a_new_one(context: StageContext):
    task = words(3, 8)
    unused = [("evaluate", text, False) for text in question_texts(task, WINDOWS.evaluate.seeds())]
    fresh_questions.body(context, task, WINDOWS, 30, {"0": published(context, "k1", unused)}, None)
    assert len(texts(context, "evaluate")) == 30


def test_fewer_questions_are_asked_of_a_kind_with_a_small_share(context: StageContext):
    task = words(3, 4)
    shares = Shares(trait="word_len", of={"3": 0.0})
    counts = fresh_questions.body(context, task, WINDOWS, 10, {"0": published(context, "k1", [])}, shares)
    drawn = [row for row in read_questions(context.out, "collect") if row["used"]]
    assert 0 < len(drawn) == counts["collect"] < 60
    instance = task.make()
    assert {instance.slices(row["seed"], row["question"])["word_len"] for row in drawn} == {4}


def test_a_space_that_is_used_up_is_told_with_the_rounds_that_it_lasts(context: StageContext):
    task = words(3, 8)
    everything = [("collect", text, True) for _, window in WINDOWS for text in question_texts(task, window.seeds())]
    with pytest.raises(Stop, match=r"used up: .* 0 new ones of 30.* last about \d+ rounds"):
        fresh_questions.body(context, task, WINDOWS, 30, {"0": published(context, "k1", everything)}, None)


def test_a_window_of_one_question_that_no_training_uses_ends_no_rounds(context: StageContext):
    task, windows = words(3, 8), WINDOWS.model_copy(update={"grpo": Window(start=1000, size=1)})
    earlier = {
        "0": published(context, "k1", [("collect", text, True) for text in question_texts(task, windows.grpo.seeds())])
    }
    counts = fresh_questions.body(context, task, windows, 30, earlier, None)
    assert (counts["grpo"], counts["evaluate"]) == (0, 30)


@pytest.mark.long
def test_the_recipe_that_a_schedule_runs_finds_new_questions_for_half_a_dozen_rounds(context: StageContext):
    recipe = load_recipe(FLYWHEEL, [])
    earlier: dict[str, Questions] = {}
    for number in range(1, 7):
        windows = recipe.round_of(RoundSpec(number=number)).seed_windows()
        counts = fresh_questions.body(context, recipe.environment, windows, recipe.evaluate.questions, earlier, None)
        assert counts["evaluate"] == recipe.evaluate.questions
        rows = [
            (row["purpose"], row["question"], row["used"])
            for purpose, _ in windows
            for row in read_questions(context.out, purpose)
        ]
        earlier[str(number)] = published(context, f"k{number}", rows)
