"""Every mutant of `make mutants` still fits the product: a patch that applies once, and tests that exist."""

import ast
from pathlib import Path

import pytest

from tests.mutants.table import ROOT, read_mutants

MUTANTS = read_mutants()


@pytest.mark.parametrize("file", sorted({mutant.file for mutant in MUTANTS}))
def test_every_patch_applies_exactly_once_and_is_python(file: str):
    text = (ROOT / file).read_text()
    for mutant in MUTANTS:
        if mutant.file == file:
            broken = mutant.broken(text)
            assert broken != text
            assert not file.endswith(".py") or ast.parse(broken)


def test_every_mutant_says_what_it_breaks_and_names_tests_that_exist():
    for mutant in MUTANTS:
        assert mutant.breaks
        assert mutant.tests
        for test in mutant.tests:
            file, _, name = test.partition("::")
            assert f"def {name}" in Path(ROOT / file).read_text(), test


def test_no_mutant_is_there_twice():
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)
