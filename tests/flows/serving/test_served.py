"""What `apprentice serve` and `apprentice export` are asked for, and what they refuse."""

import re
from pathlib import Path

import pytest

from apprentice.flows.exporting import export_gguf
from apprentice.flows.serving.request_log import RequestLog
from apprentice.flows.serving.served import target_of
from apprentice.flows.serving.target import only_project
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Release, Rollouts, SftCheckpoint
from apprentice.tasks.judgement.champions import Champions
from apprentice.tasks.reporting.errors import Stop
from tests.tasks.evaluations import published


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "artifacts", project="toy")


def made(store: LocalStore, project: str) -> Release:
    own = LocalStore(store.root, project)
    counts = {"weights": "w", "promoted": True, "parameters": 1, "stage": "champion"}
    release = published(own, Release, "a" * 20, {"model.txt": project}, counts)
    assert Champions(own).promote(release, None)
    return release


def rollouts(store: LocalStore) -> Rollouts:
    counts = dict.fromkeys(("failed", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens"), 0)
    return published(store, Rollouts, "d" * 20, {"rollouts.jsonl": ""}, counts | {"episodes": 0, "cost_usd": 0})


def test_a_key_of_a_dataset_is_no_model_for_serve_and_export(store: LocalStore):
    key = rollouts(store).key
    with pytest.raises(Stop, match=r"is Rollouts, not a model.\n→ Take the key of sft, grpo or release"):
        target_of(key, store.root, None, [], "transformers", 8, 64)
    with pytest.raises(Stop, match=r"is Rollouts, not a model.\n→ .*--format trl"):
        export_gguf(key, store.root, None, [], None)


def test_an_unknown_key_is_looked_for_in_the_folder_and_named(store: LocalStore):
    with pytest.raises(Stop, match=r"No artifact has the key, revision or tag abcdefabcdef"):
        target_of("abcdefabcdef", store.root, None, [], "transformers", 8, 64)


def test_a_key_is_served_as_it_is_and_without_one_the_only_champion_is_followed(store: LocalStore):
    sft = published(store, SftCheckpoint, "b" * 20, {"model.txt": "b"}, {"parameters": 1, "stage": "sft"})
    assert target_of(sft.key, store.root, None, [], "transformers", 8, 64).pinned == sft
    with pytest.raises(Stop, match=r"^0 projects in .* have a champion.\n→ Name a recipe or a model's key"):
        only_project(store.root)
    release = made(store, "toy")
    target = target_of(None, store.root, None, [], "transformers", 8, 64)
    assert target.pinned is None
    assert target.model() == release
    made(store, "other")
    with pytest.raises(Stop, match=r"^2 projects in .* have a champion: other, toy"):
        only_project(store.root)


def test_an_export_to_a_folder_that_exists_is_refused(store: LocalStore, tmp_path: Path):
    sft = published(store, SftCheckpoint, "b" * 20, {"model.txt": "b"}, {"parameters": 1, "stage": "sft"})
    with pytest.raises(Stop, match=r"exists.\n→ Name a new folder with --to"):
        export_gguf(sft.key, store.root, None, [], tmp_path)
    with pytest.raises(Stop, match=r"has no record of its recipe"):
        export_gguf(sft.key, store.root, None, [], tmp_path / "new")


def test_a_log_ends_at_its_size_and_goes_on_in_a_file_that_is_there(store: LocalStore, tmp_path: Path):
    model, file = made(store, "toy"), tmp_path / "log.jsonl"
    body = {"messages": [{"role": "user", "content": "a" * 1000}]}
    answer = {"choices": [{"message": {"role": "assistant", "content": "b"}}]}
    for _ in range(2):
        RequestLog(file).write(body, answer, model)
    assert len(file.read_bytes().splitlines()) == 3, "one first line"
    bounded = RequestLog(file, most_bytes=file.stat().st_size + 10)
    bounded.write(body, answer, model)
    assert len(file.read_bytes().splitlines()) == 3


def test_a_log_that_cannot_be_is_refused(tmp_path: Path):
    for mask in ("(", "(?<=a+)b"):
        with pytest.raises(Stop, match=re.escape(f"--log-mask {mask!r} is no regular expression")):
            RequestLog(tmp_path / "a", ["a", mask])
    with pytest.raises(Stop, match=r"--log-drop secrets is no field of a row.\n→ The fields: messages, tools"):
        RequestLog(tmp_path / "a", [], ["secrets"])
    with pytest.raises(Stop, match=r"cannot be written: No such file or directory"):
        RequestLog(tmp_path / "none" / "a")
    assert not [*tmp_path.iterdir()]
