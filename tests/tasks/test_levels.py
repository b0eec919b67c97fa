"""Law 3 on every rung: what an examination asks is trained on under no other settings either."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.reasoning_gym import datasets
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.rendering import prompt_ids
from apprentice.tasks.episodes.texts import same_text
from apprentice.tasks.files.question_lists import read_questions
from apprentice.tasks.questions import probe_questions, rung_questions
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import Window
from tests.tokenizers import build_tokenizer

WINDOW = Window(start=10_000, size=60)


def words(shortest: int, longest: int) -> EnvironmentSpec:
    config = {"min_word_len": shortest, "max_word_len": longest}
    return EnvironmentSpec(name="reasoning_gym", settings={"dataset": "spell_backward", "config": config})


def question_texts(task: EnvironmentSpec, seeds: range) -> list[str]:
    return [datasets.entry(task.settings["dataset"], task.settings["config"], seed)[1]["question"] for seed in seeds]


def published(context: StageContext, key: str, rows: list[tuple[str, str, bool]]) -> Questions:
    """Questions of these purposes and texts; used or not."""
    lines = [
        json.dumps({"purpose": purpose, "seed": seed, "question": text, "used": used})
        for seed, (purpose, text, used) in enumerate(rows)
    ]
    with context.run.store.staging() as folder:
        (folder / "questions.jsonl").write_text("\n".join([*lines, ""]))
        counts = dict(collect=0, grpo=0, evaluate=len(rows), dropped_from_grpo=0)
        return context.run.store.publish(Questions, key, folder, counts, {"stage": "questions"})


def used(rows: list[dict[str, Any]]) -> list[str]:
    return [row["question"] for row in rows if row["used"]]


def test_what_an_evaluation_or_a_regression_evaluation_asks_is_in_no_rung(context: StageContext):
    """By its text: under other settings, another seed, in another case."""
    own = question_texts(words(3, 4), WINDOW.seeds())
    held_out = published(context, "k1", [("evaluate", own[0].upper(), True), ("evaluate", own[1], False)])
    regression_set = published(context, "k2", [("evaluate", f" {own[2]} ", True), ("collect", own[3], True)])
    counts = rung_questions.body(context, words(3, 4), WINDOW, {"held_out": held_out, "guard": regression_set})
    rows = read_questions(context.out, "grpo")
    kept_out = {same_text(text) for text in (own[0], own[2])}
    assert [row["seed"] for row in rows] == list(WINDOW.seeds())
    assert [row["used"] for row in rows] == [same_text(text) not in kept_out for text in own]
    assert {own[1], own[3]} <= set(used(rows))
    assert counts["dropped_from_grpo"] == 60 - counts["grpo"] >= 2


def test_a_rung_of_which_the_examinations_ask_most_is_refused(context: StageContext):
    own = question_texts(words(3, 3), WINDOW.seeds())
    held_out = published(context, "k1", [("evaluate", text, True) for text in own[:40]])
    with pytest.raises(Stop, match=r"A level of grpo\.auto_difficulty is too small(?s:.)*'max_word_len': 3"):
        rung_questions.body(context, words(3, 3), WINDOW, {"held_out": held_out})


def test_settings_that_the_environment_refuses_are_refused_when_the_rung_is_read():
    with pytest.raises(ValidationError, match="max_word_len must be >= min_word_len"):
        words(5, 3)


def test_a_probe_plays_the_first_questions_that_grpo_would_train_on_each_once(context: StageContext):
    rows = [("evaluate", "no", True), ("grpo", "no", False), ("grpo", "a", True), ("grpo", "A ", True)]
    rows += [("collect", "no", True), ("grpo", "b", True), ("grpo", "c", True)]
    counts = probe_questions.body(context, published(context, "k1", rows), 2)
    assert used(read_questions(context.out, "evaluate")) == ["a", "b"]
    assert not read_questions(context.out, "grpo")
    assert counts["evaluate"] == 2


def test_a_student_that_was_built_for_short_words_reads_longer_ones_in_the_same_frame():
    """Law 1 on every rung: no token of the frame is another one, and each letter is still one token."""
    recipe, level = words(3, 5), words(6, 9)
    tokenizer = build_tokenizer(recipe, question_texts(recipe, range(60)))

    def ids(task: EnvironmentSpec, question: str) -> list[int]:
        instance = task.make()
        return prompt_ids(tokenizer, prompt(instance, question), instance.schemas)

    frames = set()
    for task in (recipe, level):
        for question in question_texts(task, range(30)):
            word = question.split()[-1]
            rendered = ids(task, question)
            letters = tokenizer.convert_tokens_to_ids(list(word))
            place = next(at for at in range(len(rendered)) if rendered[at : at + len(word)] == letters)
            frames.add((*rendered[:place], None, *rendered[place + len(word) :]))
            assert question in tokenizer.decode(rendered)
    assert len(frames) == 1
