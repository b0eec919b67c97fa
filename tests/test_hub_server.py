"""The local Hub answers the unmodified client as the Hub does, keeps what it acknowledged, and fails when told to."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, set_client_factory
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils._http import default_client_factory

from tests.hub_server import LocalHub

REPO = "team/model"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LocalHub]:
    hub = LocalHub(tmp_path / "hub")
    yield hub
    hub.kill()


@pytest.fixture
def api(hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HfApi:
    """The client in this process; its module read the environment long ago."""
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    settings = {"ENDPOINT": hub.url, "HUGGINGFACE_CO_URL_TEMPLATE": template, "HF_HUB_CACHE": str(tmp_path / "cache")}
    for name, value in {**settings, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}.items():
        monkeypatch.setattr(constants, name, value)
    set_client_factory(default_client_factory)  # a test before may have set the store's own
    api = HfApi(endpoint=hub.url, token="write")
    api.create_repo(REPO)
    return api


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the client would have slept."""
    waits: list[float] = []
    tests, sleep = threading.get_ident(), time.sleep
    # threads that an earlier test left to themselves sleep on
    monkeypatch.setattr(time, "sleep", lambda s: waits.append(s) if threading.get_ident() == tests else sleep(s))
    return waits


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Small files, one in a folder, one that is large by its name and one that is by its size."""
    folder = tmp_path / "files"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A card\n")
    (folder / "deep" / "er" / "notes.txt").write_text("ä")
    (folder / "empty.json").write_bytes(b"")
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "big.jsonl").write_bytes(b"0123456789abcde\n" * 750_000)
    return folder


def push(api: HfApi, text: str = "one", **more: Any) -> str:
    operations = [CommitOperationAdd("file.txt", text.encode())]
    return api.create_commit(REPO, operations, commit_message=text, **more).oid


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".gitattributes"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_folder_goes_up_and_comes_back_the_same_by_tag_and_by_commit(api: HfApi, hub: LocalHub, folder: Path):
    commit = api.upload_folder(repo_id=REPO, folder_path=folder, commit_message="all").oid
    api.create_tag(REPO, tag="stage/k1", revision=commit)
    info = api.model_info(REPO, revision="stage/k1", files_metadata=True)
    assert info.sha == commit
    large = {file.rfilename: file.lfs.size for file in info.siblings or [] if file.lfs}
    assert large == {"model.safetensors": 7, "big.jsonl": 12_000_000}
    snapshot = Path(api.snapshot_download(REPO, revision=commit))
    assert contents(snapshot) == contents(folder)
    before = len(hub.requests())
    assert Path(api.snapshot_download(REPO, revision=commit)) == snapshot
    assert len(hub.requests()) == before, "a snapshot that is pinned and cached makes no request"


def test_a_push_makes_these_requests(api: HfApi, hub: LocalHub, folder: Path):
    before = len(hub.requests())
    commit = api.upload_folder(repo_id=REPO, folder_path=folder, delete_patterns="*")
    api.create_tag(REPO, tag="t", revision=commit.oid)
    made = [re.sub("[0-9a-f]{40,}", "*", text) for text in hub.requests()[before:]]
    assert made[:5] == [
        "GET /api/models/team/model/tree/main 200",
        "POST /api/validate-yaml 200",
        "POST /api/validate-yaml 200",
        "POST /api/models/team/model/preupload/main 200",
        "POST /team/model.git/info/lfs/objects/batch 200",
    ]
    lfs = ["PUT /lfs/models/team/model/* 200", "POST /lfs/models/team/model/*/verify 200"]
    assert sorted(made[5:-2]) == sorted(lfs * 2)
    assert made[-2:] == ["POST /api/models/team/model/commit/main 200", "POST /api/models/team/model/tag/* 200"]
    assert api.upload_folder(repo_id=REPO, folder_path=folder).oid == commit.oid
    assert not hub.requests("/commit/")[1:], "what is the same is not committed again"


def test_a_very_large_file_goes_up_in_parts_of_which_one_may_fail(
    api: HfApi, hub: LocalHub, tmp_path: Path, waits: list[float]
):
    big = tmp_path / "model.safetensors"
    big.write_bytes(bytes(range(256)) * (40 * 2**20 // 256))
    hub.fail({"match": "PUT /lfs/.*/part/2", "do": 503, "times": 1})
    api.upload_file(path_or_fileobj=big, path_in_repo="model.safetensors", repo_id=REPO)
    parts = [request for request in hub.requests("PUT /lfs/")]
    assert [request.rpartition("/")[2] for request in parts] == ["1 200", "2 503", "2 200", "3 200"]
    back = api.hf_hub_download(REPO, "model.safetensors", local_dir=tmp_path / "back")
    assert Path(back).read_bytes() == big.read_bytes()


def test_a_download_that_is_cut_goes_on_where_it_was(
    api: HfApi, hub: LocalHub, folder: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 2**20)  # it keeps whole chunks only, of 10 MB otherwise
    api.upload_file(repo_id=REPO, path_or_fileobj=folder / "big.jsonl", path_in_repo="big.jsonl")
    hub.fail({"match": "GET .*/resolve/", "do": "cut", "times": 1})
    path = api.hf_hub_download(REPO, "big.jsonl")
    assert Path(path).read_bytes() == (folder / "big.jsonl").read_bytes()
    assert [text.split()[-1] for text in hub.requests("GET .*/resolve/")] == ["cut", "206"]


def test_the_tree_the_paths_and_the_history_are_told(api: HfApi, folder: Path):
    api.upload_folder(repo_id=REPO, folder_path=folder, commit_message="all")
    here = {".gitattributes", "README.md", "big.jsonl", "deep", "empty.json", "model.safetensors"}
    assert {entry.path for entry in api.list_repo_tree(REPO)} == here
    below = api.list_repo_tree(REPO, "deep", recursive=True)
    assert [entry.path for entry in below] == ["deep/er", "deep/er/notes.txt"]
    file, deep = api.get_paths_info(REPO, ["README.md", "deep", "none"], expand=True)
    assert (file.path, deep.path) == ("README.md", "deep")
    assert file.last_commit is not None
    assert file.last_commit.title == "all"
    api.create_commit(REPO, [CommitOperationDelete("deep/"), CommitOperationDelete("README.md")], commit_message="less")
    assert "deep/er/notes.txt" not in api.list_repo_files(REPO)
    assert [commit.title for commit in api.list_repo_commits(REPO)] == ["less", "all", "initial commit"]


def test_a_tag_is_made_once_listed_and_deleted(api: HfApi):
    commit = push(api)
    api.create_tag(REPO, tag="t", revision=commit)
    push(api, "two")
    with pytest.raises(HfHubHTTPError) as refused:
        api.create_tag(REPO, tag="t")
    assert refused.value.response.status_code == 409
    refs = api.list_repo_refs(REPO)
    assert [(ref.name, ref.ref, ref.target_commit) for ref in refs.tags] == [("t", "refs/tags/t", commit)]
    assert [ref.name for ref in refs.branches] == ["main"]
    api.delete_tag(REPO, tag="t")
    with pytest.raises(RevisionNotFoundError):
        api.delete_tag(REPO, tag="t")


def test_a_commit_on_a_parent_that_is_not_the_last_is_refused(api: HfApi):
    first = push(api)
    second = push(api, "two", parent_commit=first)
    with pytest.raises(HfHubHTTPError, match="A commit has happened since") as refused:
        push(api, "three", parent_commit=first)
    assert refused.value.response.status_code == 412
    assert api.repo_info(REPO).sha == second
    assert push(api, "two", parent_commit=second) == second


def test_what_is_not_there_has_the_client_s_own_names(api: HfApi):
    for kind in ("model", "dataset", "space"):
        with pytest.raises(RepositoryNotFoundError):
            api.repo_info("team/none", repo_type=kind)
    with pytest.raises(RevisionNotFoundError):
        api.repo_info(REPO, revision="none")
    with pytest.raises(RevisionNotFoundError):
        api.create_tag(REPO, tag="t", revision="0" * 40)
    with pytest.raises(RevisionNotFoundError):
        api.hf_hub_download(REPO, "x", revision="none")
    with pytest.raises(EntryNotFoundError):
        api.hf_hub_download(REPO, "none.txt")
    assert not api.file_exists(REPO, "none.txt")
    with pytest.raises(EntryNotFoundError):
        api.delete_file("none.txt", REPO)


def test_a_repo_is_made_once_listed_by_its_owner_and_deleted(api: HfApi):
    assert api.create_repo(REPO, exist_ok=True).repo_id == REPO
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_repo(REPO)
    assert api.create_repo("own", repo_type="dataset", private=True).repo_id == "tester/own"
    assert [repo.id for repo in api.list_datasets(author="tester")] == ["tester/own"]
    assert [repo.id for repo in api.list_models(author="tester")] == []
    push(api)
    api.delete_repo(REPO)
    api.create_repo(REPO)
    assert api.list_repo_files(REPO) == [".gitattributes"]


def test_a_space_tells_its_stage_and_is_restarted(api: HfApi, hub: LocalHub):
    api.create_repo("team/space", repo_type="space", space_sdk="docker")
    (hub.folder / "repos" / "spaces" / "team" / "space" / "stage").write_text("PAUSED")
    assert api.get_space_runtime("team/space").stage == "PAUSED"
    assert api.restart_space("team/space").stage == "RUNNING"


def test_a_bad_token_and_one_that_may_only_read_are_refused(api: HfApi, hub: LocalHub, tmp_path: Path):
    assert api.whoami()["auth"]["accessToken"]["role"] == "write"
    bad, read = HfApi(hub.url, token="bad"), HfApi(hub.url, token="read")
    with pytest.raises(HfHubHTTPError, match="Invalid user token") as refused:
        bad.whoami()
    assert refused.value.response.status_code == 401
    with pytest.raises(HfHubHTTPError, match="Invalid credentials"):
        bad.repo_info(REPO)
    assert read.repo_info(REPO).id == REPO
    for write in (lambda: push(read), lambda: read.create_tag(REPO, tag="t"), lambda: read.create_repo("team/other")):
        with pytest.raises(HfHubHTTPError) as refused:
            write()
        assert refused.value.response.status_code == 403
    api.create_repo("team/secret", private=True)
    with pytest.raises(RepositoryNotFoundError):
        HfApi(hub.url, token=False).repo_info("team/secret")


def test_what_was_acknowledged_outlives_kill_9_and_nothing_is_half(
    api: HfApi, hub: LocalHub, folder: Path, waits: list[float]
):
    tagged = api.upload_folder(repo_id=REPO, folder_path=folder).oid
    api.create_tag(REPO, tag="t", revision=tagged)
    commits = [push(api, "0")]
    threading.Timer(0.3, hub.process.kill).start()
    with pytest.raises((httpx2.HTTPError, HfHubHTTPError)):  # noqa: PT012
        while True:
            commits.append(push(api, f"{len(commits)}"))
    hub.kill()
    hub.start()
    assert set(commits) <= {commit.commit_id for commit in api.list_repo_commits(REPO)}
    assert contents(Path(api.snapshot_download(REPO, revision="t"))) == contents(folder)
    assert int(Path(api.hf_hub_download(REPO, "file.txt")).read_text()) in (len(commits) - 1, len(commits))
    assert not list((hub.folder / "tmp").iterdir())


def test_faults_meet_the_stated_requests_across_a_restart(api: HfApi, hub: LocalHub):
    hub.fail({"match": "^GET /api/models/team/model$", "do": 403, "times": 3, "after": 1})

    def statuses(count: int) -> list[int]:
        return [httpx2.get(f"{hub.url}/api/models/{REPO}").status_code for _ in range(count)]

    assert statuses(3) == [200, 403, 403]
    hub.kill()
    hub.start()
    assert statuses(3) == [403, 200, 200]
    hub.fail({"match": "^GET /api/models/team/model$", "do": "quota"})
    assert statuses(3) == [403, 403, 403]
    hub.fail()
    assert statuses(1) == [200]


def test_the_client_does_not_try_a_commit_again(api: HfApi, hub: LocalHub, waits: list[float]):
    for do, error in ((500, "500"), (503, "503"), (429, "429"), ("cut", "."), ("quota", "storage limit")):
        hub.fail({"match": "/commit/", "do": do, "times": 1})
        with pytest.raises((HfHubHTTPError, httpx2.HTTPError), match=error):
            push(api)
    assert api.list_repo_files(REPO) == [".gitattributes"]
    assert not waits
    push(api)


def test_a_commit_can_be_there_although_its_answer_was_lost(api: HfApi, hub: LocalHub, waits: list[float]):
    for count, do in enumerate((500, "cut"), 1):
        hub.fail({"match": "/commit/", "do": do, "times": 1, "done": True})
        with pytest.raises((HfHubHTTPError, httpx2.HTTPError)):
            push(api, f"{do}")
        assert push(api, f"{do}") == api.repo_info(REPO).sha
        assert api.list_repo_commits(REPO)[0].title == f"{do}"
        assert len(hub.requests("/commit/")) == count


def test_the_client_tries_these_again_by_itself(api: HfApi, hub: LocalHub, folder: Path, waits: list[float]):
    (folder / "big.jsonl").unlink()
    for match in ("/preupload/", "/batch", "PUT /lfs/", "/verify", "/tree/"):
        for do in (500, 503, 429, "cut"):
            waits.clear()
            (folder / "model.safetensors").write_text(f"{match} {do}")
            hub.fail({"match": match, "do": do, "times": 1})
            api.upload_folder(repo_id=REPO, folder_path=folder, delete_patterns="*")
            assert waits == [2.0 if do == 429 else 1.0]
            assert [text.split()[-1] for text in hub.requests(match)][-2:] == [str(do), "200"]


def test_a_request_that_hangs_hangs_until_the_client_gives_up(api: HfApi, hub: LocalHub):
    hub.fail({"match": "whoami", "do": "hang"})
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.get(f"{hub.url}/api/whoami-v2", timeout=0.3)
    assert hub.requests("whoami") == ["GET /api/whoami-v2 hang"]


def test_the_server_ends_with_its_standard_input(hub: LocalHub):
    assert hub.process.stdin is not None
    hub.process.stdin.close()
    assert hub.process.wait(timeout=10) == 0


@pytest.mark.long
def test_datasets_loads_what_was_pushed(api: HfApi, hub: LocalHub, tmp_path: Path):
    """In a process of its own, which has the variables before it imports anything."""
    api.create_repo("team/rows", repo_type="dataset")
    rows = b"".join(json.dumps({"question": f"{number}?"}).encode() + b"\n" for number in range(3))
    commit = api.upload_file(repo_id="team/rows", repo_type="dataset", path_or_fileobj=rows, path_in_repo="train.jsonl")
    code = "import datasets, sys; print(*datasets.load_dataset('team/rows', revision=sys.argv[1])['train']['question'])"
    variables = {
        "HF_ENDPOINT": hub.url,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(tmp_path / "home"),
    }
    out = subprocess.run(
        [sys.executable, "-c", code, commit.oid], env=os.environ | variables, capture_output=True, text=True, check=True
    )
    assert out.stdout.split() == ["0?", "1?", "2?"]
