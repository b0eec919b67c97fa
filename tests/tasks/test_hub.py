"""The Hub as a store, against a local server that speaks its protocol to the unmodified client."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from apprentice.tasks.artifacts import Questions, Release
from apprentice.tasks.errors import Stop
from apprentice.tasks.hub import HubStore
from apprentice.tasks.hub_client import wait_until_hub_answers
from tests.hub_server import LocalHub
from tests.tasks.test_store import publish

RELEASE = {"parameters": 1, "stage": "champion", "weights": "w", "promoted": True}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """A server that is empty; the client is pointed at it and has a token."""
    running = LocalHub(tmp_path / "hub")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "ENDPOINT", running.url)
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.partition("/{repo_id}")
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", running.url + "".join(template[1:]))
    monkeypatch.setenv("HF_TOKEN", "write")
    yield running
    running.kill()


def store(at: Path, patience: float = 20.0) -> HubStore:
    return HubStore(at, "toy", "team", patience=patience)


def test_another_machine_finds_an_artifact_by_its_key_and_fetches_the_same_bytes(hub: LocalHub, tmp_path: Path):
    made = publish(store(tmp_path / "one"), "k1")
    other = store(tmp_path / "two")
    assert other.find(Questions, "k1") == made
    assert (other.fetch(made) / "questions.jsonl").read_text() == "{}\n"
    assert other.find(Questions, "k2") is None
    before = len(hub.requests())
    assert other.find(Questions, "k1") == made
    other.fetch(made)
    assert len(hub.requests()) == before, "what the folder has is not asked for again"


def test_finding_a_key_is_one_request(hub: LocalHub, tmp_path: Path):
    publish(store(tmp_path / "one"), "k1")
    other = store(tmp_path / "two")
    before = len(hub.requests())
    other.find(Questions, "k1")
    other.find(Questions, "missing")
    assert len(hub.requests()) - before == 2


def test_a_revision_names_the_content_and_is_the_same_in_a_local_store(hub: LocalHub, tmp_path: Path):
    from apprentice.tasks.store import LocalStore

    local = LocalStore(tmp_path / "local", "toy", "team")
    assert publish(store(tmp_path / "one"), "k1").revision == publish(local, "k1").revision


def test_without_its_tag_a_commit_is_nothing_and_is_published_once_later(hub: LocalHub, tmp_path: Path):
    hub.fail({"match": "POST .*/tag/", "times": 50, "do": 500})
    with pytest.raises(Exception, match="500"):
        publish(store(tmp_path / "one", patience=1.0), "k1")
    hub.fail()
    assert store(tmp_path / "two").find(Questions, "k1") is None
    assert store(tmp_path / "one").find(Questions, "k1") is None
    made = publish(store(tmp_path / "one"), "k1")
    assert store(tmp_path / "three").find(Questions, "k1") == made


def test_whoever_publishes_a_key_first_has_won(hub: LocalHub, tmp_path: Path):
    first = publish(store(tmp_path / "one"), "k1")
    assert publish(store(tmp_path / "two"), "k1", "another text\n") == first


def test_two_that_publish_into_one_repository_at_once_do_not_mix_their_files(hub: LocalHub, tmp_path: Path):
    one, two = store(tmp_path / "one"), store(tmp_path / "two")
    publish(one, "k0")
    publish_as = {"k1": (one, "one's\n"), "k2": (two, "two's\n"), "k3": (one, "a third\n"), "k4": (two, "{}\n")}
    with ThreadPoolExecutor(4) as at_once:
        made = list(at_once.map(lambda key: publish(publish_as[key][0], key, publish_as[key][1]), publish_as))
    for key, artifact in zip(publish_as, made, strict=True):
        elsewhere = store(tmp_path / f"to-{key}")
        assert elsewhere.find(Questions, key) == artifact
        assert (elsewhere.fetch(artifact) / "questions.jsonl").read_text() == publish_as[key][1]


@pytest.mark.parametrize("where", ["preupload", "LFS|lfs", "/commit/", "/tag/", "create", "/tree/", "resolve"])
@pytest.mark.parametrize("how", [500, 429, "cut"])
def test_a_fault_at_any_request_of_publishing_and_fetching_costs_time_only(hub, tmp_path: Path, where: str, how: Any):
    hub.fail({"match": where, "times": 1, "do": how})
    made = publish(store(tmp_path / "one"), "k1")
    other = store(tmp_path / "two")
    assert other.find(Questions, "k1") == made
    assert other.fetch(made)
    tags = [line for line in hub.requests("POST .*/tag/") if line.endswith("200")]
    assert len(tags) == 1


def test_a_hub_that_is_away_is_waited_for(hub: LocalHub, tmp_path: Path):
    hub.kill()
    threading.Timer(1.0, hub.start).start()
    made = publish(store(tmp_path / "one"), "k1")
    assert store(tmp_path / "two").find(Questions, "k1") == made


def test_a_busy_hub_is_asked_again_and_one_that_stays_away_ends_the_wait_with_words(hub: LocalHub, tmp_path: Path):
    hub.fail({"match": "resolve", "times": 2, "do": 429})
    assert store(tmp_path / "one").find(Questions, "k1") is None
    hub.kill()
    with pytest.raises(Stop, match="The Hub was away for 1 s"):
        wait_until_hub_answers(1.0)


@pytest.mark.parametrize(("token", "says"), [("bad", "does not know the token"), ("read", "may not write to team")])
def test_a_token_without_the_right_is_named_and_never_shown(hub, tmp_path, monkeypatch, token, says):
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(Stop, match=says) as stopped:
        publish(store(tmp_path / "one"), "k1")
    assert f"Bearer {token}" not in str(stopped.value)


def test_a_file_that_is_not_what_the_record_says_is_not_used(hub: LocalHub, tmp_path: Path):
    made = publish(store(tmp_path / "one"), "k1")
    for blob in (tmp_path / "hub").rglob("*"):
        if blob.is_file() and blob.read_bytes() == b"{}\n":
            blob.write_bytes(b"[]\n")
    with pytest.raises(Stop, match=r"not what its record says: questions\.jsonl"):
        store(tmp_path / "two").fetch(made)
    assert not list((tmp_path / "two").rglob("questions.jsonl"))


def test_a_champion_s_tag_moves_and_its_history_stays(hub: LocalHub, tmp_path: Path):
    from apprentice.tasks.champion import Champions

    def release(key: str) -> Release:
        here = store(tmp_path / "one")
        with here.staging() as folder:
            (folder / "model.safetensors").write_text(key)
            return here.publish(Release, key, folder, RELEASE | {"weights": key}, {"stage": "release"})

    first, second = release("r1"), release("r2")
    champions = Champions(store(tmp_path / "two"))
    assert champions.settle(first, None)
    assert champions.settle(second, first)
    elsewhere = Champions(store(tmp_path / "three"))
    assert elsewhere.current() == second
    assert [change.revision for change in elsewhere.history()] == [first.revision, second.revision]
    assert elsewhere.roll_back() == first
    assert champions.current() == first


def test_nothing_of_the_token_is_in_what_was_published(hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    publish(store(tmp_path / "one"), "k1")
    for path in (tmp_path / "one").rglob("*"):
        assert not path.is_file() or b"hf_very_secret" not in path.read_bytes(), path
