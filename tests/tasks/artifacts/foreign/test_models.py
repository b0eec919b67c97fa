"""Whose code and weights a checkpoint has, as it says itself."""

from pathlib import Path

import pytest

from apprentice.tasks.artifacts.foreign.models import ModelSource, code_of, grant, name_code, source_of
from apprentice.tasks.settings.spec import StudentSpec


@pytest.mark.parametrize("source", [ModelSource("me/code", "c" * 40), ModelSource(None, "d" * 40)])
def test_a_checkpoint_names_the_owner_of_its_code_until_it_is_read_again(source: ModelSource, tmp_path: Path):
    assert code_of(tmp_path) is None
    name_code(tmp_path, source)
    assert code_of(tmp_path) == source
    assert "None" not in str(source)


def test_a_run_trusts_the_model_that_it_was_granted_and_no_other_revision():
    named = StudentSpec(model="me/code", revision="c" * 40, trust_remote_code=True)
    folder = StudentSpec(content="d" * 40, trust_remote_code=True)
    assert (source_of(named), source_of(folder)) == (ModelSource("me/code", "c" * 40), ModelSource(None, "d" * 40))
    assert grant(ModelSource("me/code", "c" * 40), [folder, named]) == named
    assert grant(ModelSource(None, "d" * 40), [named, folder]) == folder
    assert grant(ModelSource("me/code", "e" * 40), [folder, named]) is None
    assert grant(None, [folder, named]) is None
