"""Law 3, from the artifacts: whether a model learned from what it is examined on."""

import json
from pathlib import Path
from unicodedata import normalize

import pytest

from apprentice.tasks.files.question_lists import read_learned, write_learned
from apprentice.tasks.judgement.contamination import contamination, count_seen
from tests.tasks.evaluations import episodes, learned

RECORDS = episodes([1.0] * 10)  # "Question 0?" … "Question 9?", seeds 5000 …


@pytest.fixture
def rollouts(tmp_path: Path) -> Path:
    """What was bought: questions 8 and 9 of the evaluation among it, as the filter has yet to find."""
    folder = tmp_path / "rollouts"
    folder.mkdir()
    texts = ["Question 8?", "question  9? ", "Something else?"]
    rows = [{"seed": seed, "messages": [{}, {"content": text}]} for seed, text in enumerate(texts)]
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def of(checkpoint: Path, rows: str, rollouts: Path, limit: float = 0.0) -> dict:
    checkpoint.mkdir(exist_ok=True)
    (checkpoint / "learned.jsonl").write_text(rows)
    return contamination(RECORDS, checkpoint, rollouts, limit)


def test_a_model_that_saw_other_questions_is_clean(tmp_path: Path, rollouts: Path):
    found = of(tmp_path / "m", learned(("sft", 1, "Else?"), ("grpo", 2, "More?"), ("grpo", 3, "Most?")), rollouts)
    assert found["clean"]
    assert found["learned_from"] == {"sft": 1, "grpo": 2}
    assert (found["shared_with_training"], found["shared_with_rollouts"], found["questions"]) == (0, 2, 10)


def test_a_question_that_was_seen_under_another_seed_case_and_spacing_counts(tmp_path: Path, rollouts: Path):
    found = of(tmp_path / "m", learned(("grpo", 77, " question 3? ")), rollouts)
    assert (found["shared_with_training"], found["shared_seeds"], found["clean"]) == (1, 0, False)


@pytest.mark.parametrize(
    "seen",
    [
        normalize("NFD", "Zähle bis fünf: ﬁ?"),
        "ＺÄhle bis\u00a0fünf: fi?",
        "Zähle bis fünf:\r\nﬁ?\u200b",
        "zähle\u00ad bis FÜNF: FI?",
    ],
)
@pytest.mark.parametrize("question", ["Zähle bis fünf: ﬁ?", normalize("NFD", "Zähle bis fünf: ﬁ?")])
def test_a_question_that_was_seen_in_another_unicode_form_counts(tmp_path: Path, question: str, seen: str):
    checkpoint, rollouts = tmp_path / "m", tmp_path / "rollouts"
    for folder in (checkpoint, rollouts):
        folder.mkdir()
    (checkpoint / "learned.jsonl").write_text(learned(("sft", 77, seen)))
    row = {"seed": 1, "messages": [{}, {"content": seen}]}
    (rollouts / "rollouts.jsonl").write_text(json.dumps(row) + "\n")
    records = [RECORDS[0].model_copy(update={"question": question}), *RECORDS[1:]]
    found = contamination(records, checkpoint, rollouts, 0.0)
    assert (found["shared_with_training"], found["shared_with_rollouts"], found["clean"]) == (1, 1, False)
    assert count_seen(checkpoint, records) == 1


def test_a_seed_that_was_seen_counts_whatever_its_text_was(tmp_path: Path, rollouts: Path):
    found = of(tmp_path / "m", learned(("sft", 5004, "An older version's text?")), rollouts, limit=0.5)
    assert (found["shared_with_training"], found["shared_seeds"], found["clean"]) == (0, 1, False)


def test_the_recipes_limit_is_a_share_of_the_questions(tmp_path: Path, rollouts: Path):
    rows = learned(("sft", 1, "Question 1?"), ("grpo", 2, "Question 2?"))
    assert not of(tmp_path / "m", rows, rollouts, limit=0.19)["clean"]
    assert of(tmp_path / "m", rows, rollouts, limit=0.2)["clean"]


def test_a_checkpoint_carries_on_what_the_one_before_learned_from(tmp_path: Path):
    sft, grpo = tmp_path / "sft", tmp_path / "grpo"
    sft.mkdir()
    grpo.mkdir()
    write_learned(sft, "sft", [(1, "a"), (2, "ä")])
    write_learned(grpo, "grpo", [(3, "c")], before=sft)
    assert [(row["stage"], row["question"]) for row in read_learned(grpo)] == [
        ("sft", "a"),
        ("sft", "ä"),
        ("grpo", "c"),
    ]


def test_tries_of_the_same_few_questions_are_clean_and_say_how_many_there_are(tmp_path: Path, rollouts: Path):
    assert not of(tmp_path / "m", learned(("grpo", 77, "question 3?")), rollouts)["clean"]
    found = contamination(RECORDS, tmp_path / "m", rollouts, 0.0, repeated=3)
    assert (found["clean"], found["repeated"]) == (True, 3)
