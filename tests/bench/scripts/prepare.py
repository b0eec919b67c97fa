"""Filters by reward, builds the student, measures the texts."""

import json

from apprentice.tasks.episodes.rendering import row_ids, training_row
from apprentice.tasks.models.student_model import built_model
from apprentice.tasks.models.tokenizer import build_tokenizer
from apprentice.tasks.sft import summarise
from tests.bench.scripts.given import Given, Row


def main(given: Given) -> None:
    examined = {row["question"].casefold() for row in given.read("evaluate.jsonl")}
    kept = [row for row in given.read("rollouts.jsonl") if is_kept(row, examined)]
    given.write("kept.jsonl", kept)
    tokenizer = build(given)
    rows = (training_row(row["messages"], json.loads(row["tools"])) for row in kept)
    measured = [len(row_ids(tokenizer, row)) for row in rows]
    positions = given.recipe.student.build
    assert positions is not None
    given.write("lengths.jsonl", [summarise(measured, given.recipe.lengths, positions.max_positions)])


def is_kept(row: Row, examined: set[str]) -> bool:
    return row["reward"] == 1.0 and row["messages"][1]["content"].casefold() not in examined


def build(given: Given) -> object:
    spec = given.recipe.student.build
    assert spec is not None
    texts = [row["question"] for row in given.read("collect.jsonl")]
    tokenizer = build_tokenizer(given.recipe.environment, texts)
    built_model(spec, tokenizer, given.recipe.seed).save_pretrained(given.folder / "base")
    tokenizer.save_pretrained(given.folder / "base")
    return tokenizer
