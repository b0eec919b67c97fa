import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from apprentice.tasks.reporting import progress


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """Closes the log with the test: it is the process's."""
    progress.keep_in(tmp_path / "store", "toy")
    yield tmp_path / "store"
    progress.keep_in(tmp_path / "none", "toy")


def lines(store: Path) -> list[str]:
    return [json.loads(line)["message"] for line in (store / "logs" / "toy.jsonl").read_text().splitlines()]


def test_a_line_whose_folder_is_gone_costs_nobody_anything(store: Path):
    shutil.rmtree(store)  # as after `reproduce`, whose store is temporary
    progress.note("nobody reads this")
    assert not store.exists()


def test_a_log_that_cannot_be_opened_costs_nobody_anything(store: Path):
    (store / "logs" / "toy.jsonl").mkdir()
    progress.note("nobody reads this")


def test_what_follows_goes_to_the_store_that_was_named_last(store: Path, tmp_path: Path):
    progress.note("first")
    progress.keep_in(tmp_path / "second", "toy")
    progress.note("second")
    assert (lines(store), lines(tmp_path / "second")) == (["first"], ["second"])
