import gc
import weakref
from collections.abc import Iterator
from contextlib import suppress

import pytest

from apprentice.envs.defaults import no_collection, old_objects_ignored


class Cycle:
    """Garbage that only the collector frees, once nothing else refers to it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def nothing_is_frozen() -> Iterator[None]:
    gc.unfreeze()
    gc.collect()  # so that none begins by itself within a test
    yield
    gc.freeze()  # as the tests' own set-up left it


def test_what_was_there_before_is_not_walked_in_the_block_and_is_collected_after_it():
    old = weakref.ref(Cycle())
    with old_objects_ignored():
        gc.collect()
        assert old() is not None
    gc.collect()
    assert old() is None


def test_garbage_made_in_the_block_is_collected_in_it():
    with old_objects_ignored():
        new = weakref.ref(Cycle())
        gc.collect()
        assert new() is None


def test_what_the_block_made_is_freed_when_it_ends():
    with old_objects_ignored():
        new = weakref.ref(Cycle())
    assert new() is None


def test_a_block_within_another_leaves_what_is_frozen_to_the_outer_one():
    with old_objects_ignored():
        with old_objects_ignored():
            pass
        assert gc.get_freeze_count()
    assert not gc.get_freeze_count()


def test_the_collector_is_back_after_an_import_that_fails():
    with suppress(ImportError), no_collection():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()
    assert not gc.get_freeze_count()
