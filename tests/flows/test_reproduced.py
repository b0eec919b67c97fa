"""What a reproduction says of each artifact, and whose code it would run; nothing is made again here."""

from types import SimpleNamespace
from typing import Any

import pytest

from apprentice.flows.reproduce import Outcome, rows, students_of
from apprentice.tasks.artifacts.types import BaseStudent, Questions


@pytest.mark.parametrize(
    ("same", "differing", "words"),
    [
        (True, [], "the same weights"),
        (True, ["a.txt", "b.txt"], "the same weights; other files differ: a.txt, b.txt"),
        (False, ["model.safetensors"], "NOT the same weights: model.safetensors"),
    ],
)
def test_an_artifact_is_the_same_or_is_not_and_the_files_that_differ_are_named(
    same: bool, differing: list[str], words: str
):
    repository, key = "local/toy-sft", "0123456789abcdef"
    outcome = Outcome("Sft", repository, key, "r", "sft", same, "weights", "d", "e", differing, [], 12.34)
    expected = {"artifact": "toy-sft@0123456789ab", "stage": "sft", "result": words, "seconds": "12.3"}
    assert rows([outcome]) == [expected]


def node(kind: Any, spec: Any, named: str | None = None) -> Any:
    made_by = {"settings": {"spec": spec}} if spec is not None else {}
    record = SimpleNamespace(made_by=made_by, provenance=SimpleNamespace(recipe={"student": {"model": named}}))
    return SimpleNamespace(kind=kind, record=record)


def test_the_students_whose_code_was_trusted_are_found_and_what_is_no_record_of_one_is_passed_over():
    trusted = {"model": "me/code", "revision": "c", "trust_remote_code": True}
    pickled = {"content": "0" * 40, "safetensors_only": False}
    gone = SimpleNamespace(kind=BaseStudent, record=None)
    nodes = [
        node(Questions, trusted),
        gone,
        node(BaseStudent, {"model": 5}),
        node(BaseStudent, None),
        node(BaseStudent, {"model": "me/plain", "revision": "c"}),
        node(BaseStudent, trusted, "another"),
        node(BaseStudent, pickled, "/a/folder"),
    ]
    lineage: Any = SimpleNamespace(nodes=dict(enumerate(nodes)))
    assert [each.model for each in students_of(lineage)] == ["me/code", "/a/folder"]
