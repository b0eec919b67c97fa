"""An artifact is found by a unique beginning of its key, and what fits nothing is named."""

from pathlib import Path

import pytest

from apprentice.tasks.artifacts.hub import HubStore
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.lineage.lineage import lineage_of
from apprentice.tasks.reporting.errors import Stop
from tests.hub_server import LocalHub
from tests.tasks.artifacts.test_hub import hub
from tests.tasks.lineage.test_lineage import QUESTION_SETTINGS, RATES_OF_QUESTIONS, Toys, publish, store

assert store  # a fixture
assert hub  # a fixture


def test_a_unique_beginning_of_a_key_is_enough(store: LocalStore):
    toys = Toys(store)
    assert lineage_of(toys.grpo.key[:6], store.root).root.named.key == toys.grpo.key


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("champion", "No artifact has the key, revision or tag champion"),
        ("abcde", "the first 6 may do"),
        ("../../etc/passwd", "is no artifact's key"),
    ],
)
def test_what_is_no_key_is_told(store: LocalStore, key: str, says: str):
    with pytest.raises(Stop, match=says):
        lineage_of(key, store.root)


def test_a_key_that_there_is_not_is_told_with_the_nearest_and_with_where_else_to_look(store: LocalStore):
    key = Toys(store).grpo.key
    mistyped = key[:10] + ("0" if key[10] != "0" else "1") + key[11:]
    with pytest.raises(Stop, match=rf"The nearest there: {key} \(toy-grpo\).*--store.*--hub"):
        lineage_of(mistyped, store.root)
    with pytest.raises(Stop, match="No artifact is there at all"):
        lineage_of(mistyped, store.root / "empty")


def test_a_key_that_several_have_is_told_and_a_whole_name_helps(store: LocalStore):
    """Two recipes that differ in nothing but their names give the same keys."""
    toys, other = Toys(store), Toys(LocalStore(store.root, "another"))
    assert toys.grpo.key == other.grpo.key
    assert lineage_of(toys.grpo.key, store.root).root.named.key == toys.grpo.key  # and the same content: either does
    publish(
        LocalStore(store.root, "another"),
        Questions,
        RATES_OF_QUESTIONS,
        {"questions.jsonl": [1]},
        {},
        **QUESTION_SETTINGS,
    )
    with pytest.raises(Stop, match=r"Several artifacts are named .*local/another-questions@.*local/toy-questions@"):
        lineage_of(toys.questions.key, store.root)
    named = f"local/toy-questions@{toys.questions.key}"
    assert lineage_of(named, store.root).root.ref == named


def test_a_hub_that_is_away_is_told_and_not_needed_for_what_the_folder_has(hub: LocalHub, tmp_path: Path, monkeypatch):
    from apprentice.tasks.lineage import locate

    toys = Toys(HubStore(tmp_path / "maker", "toy", "team", patience=20.0))
    hub.kill()
    monkeypatch.setattr(locate, "PATIENCE", 0.5)
    assert len(lineage_of(toys.release.key, tmp_path / "maker", "team").episodes) == 5
    with pytest.raises(Stop, match="The Hub was away"):
        lineage_of(toys.release.key, tmp_path / "empty", "team")
