"""The Hub as a store, against a local server that speaks its protocol to the unmodified client."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, constants
from pydantic import ValidationError

from apprentice.tasks.artifacts import hub_http
from apprentice.tasks.artifacts.foreign.rows import rows_of
from apprentice.tasks.artifacts.hub import HubStore
from apprentice.tasks.artifacts.hub_client import wait_until_hub_answers
from apprentice.tasks.artifacts.provenance import Parent
from apprentice.tasks.artifacts.types import Questions, Release
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import DatasetSpec
from tests.hub_server import LocalHub
from tests.tasks.artifacts.test_local import COUNTS, publish

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
    from apprentice.tasks.artifacts.local import LocalStore

    local = LocalStore(tmp_path / "local", "toy", "team")
    assert publish(store(tmp_path / "one"), "k1").revision == publish(local, "k1").revision


def test_without_its_tag_a_commit_is_nothing_and_is_published_once_later(hub: LocalHub, tmp_path: Path):
    hub.fail({"match": "POST .*/tag/", "times": 50, "do": 500})
    with pytest.raises(Exception, match="500"):
        publish(store(tmp_path / "one", patience=1.0), "k1")
    hub.fail()
    assert store(tmp_path / "two").find(Questions, "k1") is None
    made = store(tmp_path / "one").find(Questions, "k1")
    assert made is not None, "it is here already: the stage that made it does not run anew"
    assert store(tmp_path / "three").find(Questions, "k1") == made
    assert len(hub.requests("POST .*/tag/.* 200")) == 1


def test_what_was_not_sent_and_is_damaged_is_made_anew(hub: LocalHub, tmp_path: Path):
    hub.fail({"match": "POST .*/tag/", "times": 50, "do": 500})
    with pytest.raises(Exception, match="500"):
        publish(store(tmp_path / "one", patience=1.0), "k1")
    hub.fail()
    (file,) = (tmp_path / "one").rglob("questions.jsonl")
    file.write_text("[]\n")
    assert store(tmp_path / "one").find(Questions, "k1") is None
    made = publish(store(tmp_path / "one"), "k1")
    assert store(tmp_path / "two").find(Questions, "k1") == made


def test_what_another_machine_published_before_it_could_be_sent_has_won(hub: LocalHub, tmp_path: Path):
    hub.fail({"match": "POST .*/tag/", "times": 50, "do": 500})
    with pytest.raises(Exception, match="500"):
        publish(store(tmp_path / "one", patience=1.0), "k1", "ours\n")
    hub.fail()
    published = publish(store(tmp_path / "two"), "k1", "theirs\n")
    assert store(tmp_path / "one").find(Questions, "k1") == published
    assert store(tmp_path / "one").send_waiting() == []


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
@pytest.mark.parametrize("how", [500, *(pytest.param(each, marks=pytest.mark.long) for each in (429, "cut"))])
def test_a_fault_at_any_request_of_publishing_and_fetching_costs_time_only(hub, tmp_path: Path, where: str, how: Any):
    hub.fail({"match": where, "times": 1, "do": how})
    made = publish(store(tmp_path / "one"), "k1")
    other = store(tmp_path / "two")
    assert other.find(Questions, "k1") == made
    assert other.fetch(made)
    tags = [line for line in hub.requests("POST .*/tag/") if line.endswith("200")]
    assert len(tags) == 1


@pytest.mark.long
def test_a_hub_that_is_away_is_waited_for(hub: LocalHub, tmp_path: Path):
    hub.kill()
    threading.Timer(1.0, hub.start).start()
    made = publish(store(tmp_path / "one"), "k1")
    assert store(tmp_path / "two").find(Questions, "k1") == made


@pytest.mark.long
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
    from apprentice.tasks.judgement.champions import Champions

    def release(key: str) -> Release:
        here = store(tmp_path / "one")
        with here.staging() as folder:
            (folder / "model.safetensors").write_text(key)
            return here.publish(Release, key, folder, RELEASE | {"weights": key}, {"stage": "release"})

    first, second = release("r1"), release("r2")
    champions = Champions(store(tmp_path / "two"))
    assert champions.promote(first, None)
    assert champions.promote(second, first)
    elsewhere = Champions(store(tmp_path / "three"))
    assert elsewhere.current() == second
    assert [change.revision for change in elsewhere.history()] == [first.revision, second.revision]
    assert elsewhere.roll_back() == first
    assert champions.current() == first


def test_a_damaged_file_of_the_folder_is_fetched_anew(hub: LocalHub, tmp_path: Path):
    made = publish(store(tmp_path / "one"), "k1")
    file = store(tmp_path / "two").fetch(made) / "questions.jsonl"
    file.write_text("[]\n")
    assert (store(tmp_path / "two").fetch(made) / "questions.jsonl").read_text() == "{}\n"


def test_two_that_fetch_one_artifact_into_one_folder_at_once_both_have_it(hub: LocalHub, tmp_path: Path):
    made = publish(store(tmp_path / "one"), "k1")
    with ThreadPoolExecutor(4) as at_once:
        folders = set(at_once.map(lambda _: store(tmp_path / "two").fetch(made), range(4)))
    assert len(folders) == 1
    assert (folders.pop() / "questions.jsonl").read_text() == "{}\n"


def test_without_the_hub_a_run_of_one_machine_goes_on_and_publishes_later(hub: LocalHub, tmp_path: Path):
    hub.kill()
    exclusive = HubStore(tmp_path / "one", "toy", "team", patience=1.0, needed=False)
    first, second = publish(exclusive, "k1"), publish(exclusive, "k2", "other\n")
    assert not exclusive.in_reach
    assert exclusive.find(Questions, "k1") == first
    assert exclusive.find(Questions, "k3") is None
    hub.start()
    assert store(tmp_path / "two").find(Questions, "k1") is None
    assert store(tmp_path / "one").send_waiting() == [(first, True), (second, True)]
    assert store(tmp_path / "two").find(Questions, "k2") == second
    assert store(tmp_path / "one").send_waiting() == []
    assert len(hub.requests("POST .*/tag/")) == 2


def test_what_another_machine_published_meanwhile_keeps_the_key_and_ours_is_beside_it(hub: LocalHub, tmp_path: Path):
    hub.kill()
    ours = publish(HubStore(tmp_path / "one", "toy", "team", patience=1.0, needed=False), "k1", "ours\n")
    hub.start()
    published = publish(store(tmp_path / "two"), "k1", "theirs\n")
    assert store(tmp_path / "one").send_waiting() == [(ours, False)]
    elsewhere = store(tmp_path / "three")
    assert elsewhere.find(Questions, "k1") == published
    assert (elsewhere.fetch(ours) / "questions.jsonl").read_text() == "ours\n"
    assert elsewhere.record(Questions, "k1", ours.revision).key == "k1"


@pytest.mark.long
def test_a_hub_that_others_need_is_waited_for_and_not_done_without(hub: LocalHub, tmp_path: Path):
    hub.kill()
    with pytest.raises(Exception, match="refused"):
        publish(store(tmp_path / "one", patience=1.0), "k1")
    with pytest.raises(Exception, match="refused"):
        store(tmp_path / "one", patience=1.0).find(Questions, "k1")


def test_offline_mode_does_not_even_ask(hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    exclusive = HubStore(tmp_path / "one", "toy", "team", needed=False)
    made = publish(exclusive, "k1")
    assert exclusive.find(Questions, "k1") == made
    assert not hub.requests()


def test_who_is_champion_waits_for_the_hub(hub: LocalHub, tmp_path: Path):
    from apprentice.tasks.judgement.champions import Champions

    hub.kill()
    exclusive = HubStore(tmp_path / "one", "toy", "team", patience=1.0, needed=False)
    with exclusive.staging() as folder:
        (folder / "model.safetensors").write_text("w")
        release = exclusive.publish(Release, "r1", folder, RELEASE, {"stage": "release"})
    assert Champions(exclusive).current() is None
    assert not Champions(exclusive).promote(release, None)
    hub.start()
    store(tmp_path / "one").send_waiting()
    assert Champions(store(tmp_path / "two")).current() is None
    assert Champions(store(tmp_path / "one")).promote(release, None)
    assert Champions(store(tmp_path / "two")).current() == release


def test_what_is_damaged_in_the_folder_is_not_published(hub: LocalHub, tmp_path: Path):
    hub.kill()
    exclusive = HubStore(tmp_path / "one", "toy", "team", patience=1.0, needed=False)
    file = exclusive.fetch(publish(exclusive, "k1")) / "questions.jsonl"
    whole = publish(exclusive, "k2", "other\n")
    file.write_text("[]\n")
    hub.start()
    assert store(tmp_path / "one").send_waiting() == [(whole, True)]
    assert store(tmp_path / "two").find(Questions, "k1") is None
    assert store(tmp_path / "one").send_waiting() == []


def test_what_waits_knows_its_namespace(hub: LocalHub, tmp_path: Path):
    hub.kill()
    made = publish(HubStore(tmp_path / "one", "toy", "team", patience=1.0, needed=False), "k1")
    hub.start()
    assert HubStore(tmp_path / "one", "toy", "other").send_waiting() == []
    assert store(tmp_path / "one").send_waiting() == [(made, True)]


def test_what_waits_is_named_where_it_is_missed(hub: LocalHub, tmp_path: Path):
    hub.kill()
    made = publish(HubStore(tmp_path / "one", "toy", "team", patience=1.0, needed=False), "k1")
    hub.start()
    with pytest.raises(Stop, match="apprentice publish"):
        store(tmp_path / "one").tag(made, "best")


def test_whoever_fetches_what_lost_its_key_still_finds_what_won_it(hub: LocalHub, tmp_path: Path):
    hub.kill()
    ours = publish(HubStore(tmp_path / "one", "toy", "team", patience=1.0, needed=False), "k1", "ours\n")
    hub.start()
    published = publish(store(tmp_path / "two"), "k1", "theirs\n")
    store(tmp_path / "one").send_waiting()
    store(tmp_path / "three").fetch(ours)
    assert store(tmp_path / "three").find(Questions, "k1") == published


@pytest.mark.long
def test_as_long_as_the_hub_asks_for_is_waited(hub: LocalHub, tmp_path: Path):
    hub.fail({"match": "resolve", "times": 1, "do": 429, "retry_after": 3})
    began = time.monotonic()
    store(tmp_path / "one").find(Questions, "k1")
    assert time.monotonic() - began >= 3


LIMITED = {"ratelimit": '"api";r=0;t=900', "ratelimit-policy": '"fixed window";"api";q=500;w=300'}


@pytest.mark.parametrize(
    "match", ["resolve", "GET .*/datasets/", "POST .*/commit/", "POST .*/tag/", "POST .*/preupload"]
)
@pytest.mark.parametrize("headers", [{"Retry-After": "3600"}, LIMITED], ids=["Retry-After", "ratelimit"])
def test_a_wait_never_exceeds_the_patience(hub: LocalHub, tmp_path: Path, match: str, headers: dict[str, str]):
    hub.fail({"match": match, "do": 429, "headers": headers})
    began = time.monotonic()
    with pytest.raises(Exception, match="429"):
        publish(store(tmp_path / "one", patience=1.0), "k1")
    assert time.monotonic() - began < 15  # seconds; it was asked to wait for many minutes
    assert len(hub.requests(match)) == 2


@pytest.mark.long
def test_a_hub_without_an_answer_is_waited_for_no_longer_than_the_patience(hub: LocalHub, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(hub_http, "LEAST_TIMEOUT", 0.5)
    hub.fail({"match": "resolve", "do": "hang"})
    began = time.monotonic()
    with pytest.raises(Exception, match=r"nothing answers at|timed out"):
        store(tmp_path / "one", patience=1.0).find(Questions, "k1")
    assert time.monotonic() - began < 15
    assert len(hub.requests("resolve")) <= 4


@pytest.mark.parametrize("headers", [{"Retry-After": "3600"}, LIMITED], ids=["Retry-After", "ratelimit"])
def test_a_long_wait_at_the_beginning_uses_the_folder_at_once(hub: LocalHub, tmp_path: Path, headers: dict[str, str]):
    hub.fail({"match": ".", "do": 429, "headers": headers})
    alone = HubStore(tmp_path / "one", "toy", "team", patience=600.0, needed=False)
    began = time.monotonic()
    made = publish(alone, "k1")
    assert time.monotonic() - began < 15
    assert not alone.in_reach
    assert alone.find(Questions, "k1") == made
    assert len(hub.requests()) == 1


def test_a_dataset_that_may_not_be_read_is_no_matter_of_writing(hub: LocalHub, tmp_path: Path):
    hub.fail({"match": "GET .*rows", "do": 403})
    with pytest.raises(Stop, match=r"may not read .*datasets/elsewhere/rows.*\n.*Ask elsewhere for access"):
        list(rows_of(DatasetSpec(path="elsewhere/rows", revision="0" * 40)))


def test_files_that_no_record_names_are_neither_fetched_nor_believed(hub: LocalHub, tmp_path: Path):
    """A name in a record may look like a pattern: code-is-trusted is not ?ode-is-trusted."""
    one = store(tmp_path / "one")
    with one.staging() as folder:
        (folder / "?ode-is-trusted").write_text("")
        made = one.publish(Questions, "k1", folder, COUNTS, {"stage": "questions"})
    HfApi().upload_file(
        path_or_fileobj=b"", path_in_repo="code-is-trusted", repo_id=made.repository, repo_type="dataset"
    )
    HfApi().delete_tag(made.repository, tag="k1", repo_type="dataset")
    HfApi().create_tag(made.repository, tag="k1", repo_type="dataset")
    fetched = store(tmp_path / "two").fetch(made)
    assert sorted(file.name for file in fetched.iterdir()) == ["?ode-is-trusted", "artifact.json"]
    (fetched / "code-is-trusted").touch()
    assert not (store(tmp_path / "two").fetch(made) / "code-is-trusted").exists()


def test_a_name_that_leads_out_of_the_store_is_refused():
    for wrong in ("/etc/passwd", "../../x", "..", "a/b", "k\n"):
        with pytest.raises(ValidationError):
            Questions(repository="a/b", revision="c", key=wrong, **COUNTS)
        with pytest.raises(ValidationError):
            Parent(kind="Questions", repository="a/b", revision="c", key=wrong)
    with pytest.raises(ValidationError):
        Parent(kind="Questions", repository="../../a", revision="c", key="k")


def test_nothing_of_the_token_is_in_what_was_published(hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    publish(store(tmp_path / "one"), "k1")
    for path in (tmp_path / "one").rglob("*"):
        assert not path.is_file() or b"hf_very_secret" not in path.read_bytes(), path


def test_a_projects_repositories_are_in_one_collection_each_once(hub: LocalHub, tmp_path: Path):
    one = store(tmp_path / "one")
    publish(one, "k1")
    one.gather()
    with one.staging() as folder:
        (folder / "model.safetensors").write_text("w")
        one.publish(Release, "k2", folder, RELEASE, {"stage": "release"})
    one.gather()
    store(tmp_path / "two").gather()
    [slug] = {path.stem for path in (hub.folder / "collections" / "team").iterdir()}
    collection = HfApi().get_collection(f"team/{slug}")
    assert (collection.title, collection.private) == ("toy", True)
    assert {(each.item_type, each.item_id) for each in collection.items} == {
        ("dataset", "team/toy-questions"),
        ("model", "team/toy-model"),
    }
    assert len(collection.items) == 2


@pytest.mark.parametrize("do", [403, "quota"])
def test_a_token_that_may_make_no_collection_ends_nothing(
    hub: LocalHub, tmp_path: Path, do: int | str, monkeypatch: pytest.MonkeyPatch
):
    said: list[str] = []
    monkeypatch.setattr(announce, "warn", said.append)
    one = store(tmp_path / "one")
    publish(one, "k1")
    hub.fail({"match": "POST /api/collections", "do": do})
    one.gather()
    assert [line.partition(":")[0] for line in said] == ["The Hub shows no collection of toy"]
