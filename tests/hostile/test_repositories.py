"""Artifacts and repositories that somebody else wrote: a folder of artifacts, checkpoints, a Hub with other writers.

Each row ends survived, or in a clear stop; no code of an artifact runs, nothing outside of it is read or written, and
nothing that its record does not bear out is believed.
"""

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import CommitOperationAdd, HfApi

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.artifacts.hub import HubStore
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import LARGEST, RECORD, ArtifactRecord
from apprentice.tasks.artifacts.types import Artifact, Questions, Release
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.judgement.champions import Champions
from apprentice.tasks.lineage.lineage import lineage_of
from apprentice.tasks.lineage.locate import checkpoint_named
from apprentice.tasks.models.checkpoints import load_model, save
from apprentice.tasks.models.student_model import built_model
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import BuiltStudent
from tests.hostile.endings import assert_clear
from tests.hub_server import LocalHub
from tests.tasks.artifacts.test_hub import RELEASE, hub, store
from tests.tasks.artifacts.test_local import COUNTS, publish
from tests.tokenizers import build_tokenizer

assert hub  # a fixture
RAN = "CODE_OF_AN_ARTIFACT_RAN"
EVIL = f"import os\nos.environ[{RAN!r}] = os.environ.get('HF_TOKEN', 'yes')\n"
PICKLE = f"cos\nputenv\n(S'{RAN}'\nS'yes'\ntR.".encode()
CLASSES = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model", "AutoTokenizer": ["evil.Tokenizer", None]}


@pytest.fixture(autouse=True)
def _no_code_ran(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(RAN, raising=False)
    yield
    assert RAN not in os.environ


# Checkpoints: loaded as an evaluation loads them, by a recipe that trusts nobody's code.


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    spec = BuiltStudent(hidden_size=8, intermediate_size=8, layers=1, heads=1, max_positions=32)
    tokenizer = build_tokenizer(EnvironmentSpec(name="echo"), ["one", "two"])
    save(built_model(spec, tokenizer, 0), tokenizer, folder)
    return folder


def changed(name: str, **fields: Any) -> Callable[[Path], Any]:
    """Writes fields into a JSON file of a checkpoint."""

    def change(folder: Path) -> None:
        file = folder / name
        before = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(before | fields))

    return change


def with_code(name: str, **fields: Any) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        (folder / "evil.py").write_text(EVIL)
        (folder / "code-is-trusted").touch()
        changed(name, auto_map=CLASSES, **fields)(folder)

    return change


def claiming(model: str, revision: str) -> Callable[[Path], Any]:
    """Code that says that it is somebody's whom many trust."""

    def change(folder: Path) -> None:
        with_code("config.json", model_type="evil")(folder)
        changed("code.json", model=model, revision=revision)(folder)

    return change


def without_safetensors(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(PICKLE)


def linked(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": {"lm_head.weight": "../../elsewhere.safetensors"}})
    )


REFUSED = "brings Python code of"
CHECKPOINTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a marker, a Python file and an auto_map": (with_code("config.json", model_type="evil"), REFUSED),
    "an auto_map beside a model type that transformers knows": (with_code("config.json"), REFUSED),
    "an auto_map in the tokenizer's configuration": (with_code("tokenizer_config.json"), REFUSED),
    "an auto_map in a processor's configuration": (with_code("processor_config.json"), REFUSED),
    "an auto_map of another repository": (
        changed("config.json", auto_map={"AutoConfig": "stranger/model--evil.Config"}),
        REFUSED,
    ),
    "code that claims to be a well-known model's": (claiming("Qwen/Qwen3-1.7B", "main"), "which this run does not"),
    "a claim that is a list": (lambda folder: (folder / "code.json").write_text("[]"), ""),
    "pickled weights beside the others": (lambda folder: (folder / "pytorch_model.bin").write_bytes(PICKLE), ""),
    "a pickled optimizer": (lambda folder: (folder / "optimizer.pt").write_bytes(PICKLE), ""),
    "pickled weights only": (without_safetensors, "cannot be loaded"),
    "weights elsewhere, pickled": (
        changed("source.json", model="stranger/pickled", revision="main", safetensors_only=False),
        "cannot be loaded|is not on this machine|Hub",
    ),
    "weights in another folder of this machine": (
        changed("source.json", model="/etc", revision="main"),
        "names no model of the Hub",
    ),
    "weights at no revision": (changed("source.json", model="stranger/model"), "names no model of the Hub"),
    "an adapter of another model": (
        changed("adapter_config.json", base_model_name_or_path="stranger/model", peft_type="LORA"),
        "an adapter of another model",
    ),
    "attention by a kernel of the Hub": (
        changed("config.json", attn_implementation="stranger/kernel"),
        "asks for code of the Hub",
    ),
    "an index of weights outside": (linked, "are listed outside"),
    "weights that are none": (
        lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 64),
        "cannot be loaded",
    ),
    "a configuration that is HTML": (lambda folder: (folder / "config.json").write_text("<html>"), "cannot be loaded"),
    "a tokenizer that is a list": (lambda folder: (folder / "tokenizer.json").write_text("[]"), "cannot be loaded"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "cannot be loaded"),
}


def loaded(folder: Path) -> Any:
    load_tokenizer(folder)
    return load_model(folder)


@pytest.mark.parametrize("row", CHECKPOINTS)
def test_a_checkpoint_runs_nothing(row: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    change, says = CHECKPOINTS[row]
    folder = Path(shutil.copytree(whole, tmp_path / "checkpoint"))
    change(folder)
    if says:
        with pytest.raises(Stop, match=says) as stopped:
            loaded(folder)
        assert_clear(stopped.value)
        assert "hf_secret" not in str(stopped.value)
    else:
        assert type(loaded(folder)).__name__ == "Qwen3ForCausalLM"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__[-1].__subclasses__() }}",
        "{{ ''.__class__.__base__ }}",
        "{% set _ = messages.append(1) %}",
        "{% for i in range(10000000) %}x{% endfor %}",
        "{% include '/etc/passwd' %}",
        "{{ raise_exception('stop') }}",
        "{% for",
    ],
    ids=["subclasses", "a base class", "a change of the messages", "an endless loop", "a file", "a refusal", "torn"],
)
def test_a_chat_template_reaches_nothing(template: str, whole: Path, tmp_path: Path):
    """transformers renders it in Jinja's immutable sandbox: it ends, and gives nothing of the process away."""
    from jinja2.exceptions import TemplateError

    folder = Path(shutil.copytree(whole, tmp_path / "checkpoint"))
    (folder / "chat_template.jinja").write_text(template)
    tokenizer, messages = load_tokenizer(folder), [{"role": "user", "content": "one"}]
    with pytest.raises((TemplateError, OverflowError, TypeError)):
        tokenizer.apply_chat_template(messages, tokenize=False, **TEMPLATE_ARGUMENTS)
    assert messages == [{"role": "user", "content": "one"}]


# Records: of a folder of artifacts, and of the Hub. Nobody finds, fetches or follows what they say.


def with_record(**fields: Any) -> Callable[[bytes], bytes]:
    return lambda record: json.dumps(json.loads(record) | fields).encode()


def listing(name: str, sha256: str = "0" * 64) -> Callable[[bytes], bytes]:
    def change(record: bytes) -> bytes:
        record_fields = json.loads(record)
        return json.dumps(record_fields | {"files": record_fields["files"] | {name: sha256}}).encode()

    return change


def counting(**counts: Any) -> Callable[[bytes], bytes]:
    return with_record(counts=COUNTS | counts)


def deep(_: bytes) -> bytes:
    return b'{"key": "k1", "counts": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"


RECORDS: dict[str, Callable[[bytes], bytes]] = {
    "a path above": listing("../../../../outside.txt"),
    "an absolute path": listing("/etc/passwd"),
    "a path with a detour": listing("a/../questions.jsonl"),
    "a path with a backslash": listing("..\\outside.txt"),
    "an empty path": listing(""),
    "another kind": with_record(kind="Release"),
    "a kind that there is not": with_record(kind="os.system"),
    "no kind": with_record(kind=""),
    "a negative count": counting(collect=-1),
    "an absurd count": counting(collect=10**300),
    "a count that is a word": counting(collect="many"),
    "a count that nobody asked for": counting(promoted=True),
    "no counts": with_record(counts=None),
    "a key that leads elsewhere": with_record(key="../../k1"),
    "another key": with_record(key="k2"),
    "a hash that is none": listing("questions.jsonl", "0"),
    "inputs that are a list": with_record(made_by={"inputs": ["a"]}),
    "settings that are a word": with_record(made_by={"settings": "all"}),
    "a torn record": lambda record: record[: len(record) // 2],
    "an empty record": lambda record: b"",
    "a list": lambda record: b"[]",
    "HTML": lambda record: b"<!doctype html><title>Log in</title>",
    "no text": lambda record: gzip.compress(record),
    "a record of 200,000 brackets": deep,
    "a huge record": lambda record: record.rstrip() + b" " * LARGEST,
}


@pytest.mark.parametrize("row", RECORDS)
def test_a_record_in_the_folder_is_not_believed(row: str, tmp_path: Path):
    """Nothing is found under the key, so what it names is made anew; nothing leads to the artifact."""
    local = LocalStore(tmp_path / "artifacts", "toy")
    made = publish(local, "k1")
    record = local.fetch(made) / RECORD
    record.write_bytes(RECORDS[row](record.read_bytes()))
    assert local.find(Questions, "k1") is None
    with pytest.raises(Stop) as stopped:
        local.at(Questions, made.revision)
    assert_clear(stopped.value)
    assert publish(local, "k1") == local.find(Questions, "k1") == made


@pytest.mark.parametrize("row", RECORDS)
def test_a_record_on_the_hub_is_not_believed(row: str, hub: LocalHub, tmp_path: Path):
    """Another writer moved a key's tag to a commit of his own."""
    made = publish(store(tmp_path / "one"), "k1")
    record = (store(tmp_path / "one").fetch(made) / RECORD).read_bytes()
    retagged(made, "k1", RECORDS[row](record))
    with pytest.raises(Stop) as stopped:
        store(tmp_path / "two").find(Questions, "k1")
    assert_clear(stopped.value)
    assert "delete its tag" in str(stopped.value)
    assert not (tmp_path / "two" / "datasets").exists()
    with pytest.raises(Stop) as stopped:
        publish(store(tmp_path / "three"), "k1", "other\n")
    assert_clear(stopped.value)


def retagged(artifact: Artifact, tag: str, record: bytes) -> None:
    """Commits a record of one's own, and sets a tag there."""
    where: Any = {"repo_id": artifact.repository, "repo_type": artifact.repo_type}
    commit = HfApi().create_commit(**where, operations=[CommitOperationAdd(RECORD, record)], commit_message="mine")
    if tag in [each.name for each in HfApi().list_repo_refs(**where).tags]:
        HfApi().delete_tag(tag=tag, **where)
    HfApi().create_tag(tag=tag, revision=commit.oid, **where)


# Files: of a folder in which others write.


def link_to(path: str) -> Callable[[Path], Any]:
    def change(snapshot: Path) -> None:
        (snapshot / "questions.jsonl").unlink()
        (snapshot / "questions.jsonl").symlink_to(path)

    return change


def linked_record(snapshot: Path) -> None:
    (snapshot / RECORD).rename(snapshot.parent / "elsewhere.json")
    (snapshot / RECORD).symlink_to(snapshot.parent / "elsewhere.json")


FILES: dict[str, Callable[[Path], Any]] = {
    "a changed file": lambda snapshot: (snapshot / "questions.jsonl").write_text("[]\n"),
    "a missing file": lambda snapshot: (snapshot / "questions.jsonl").unlink(),
    "a file more": lambda snapshot: (snapshot / "pytorch_model.bin").write_bytes(PICKLE),
    "a marker more": lambda snapshot: (snapshot / "code-is-trusted").touch(),
    "a link to another file": link_to("/etc/passwd"),
    "a link to nothing": link_to("nowhere"),
    "a link to itself": link_to("questions.jsonl"),
    "a folder that is a link": lambda snapshot: (snapshot / "more").symlink_to("/etc"),
    "a folder in place of a file": lambda snapshot: (
        (snapshot / "questions.jsonl").unlink(),
        (snapshot / "questions.jsonl").mkdir(),
    ),
    "a record that is a link": linked_record,
}


@pytest.mark.parametrize("row", FILES)
def test_files_of_a_folder_are_what_was_published(row: str, tmp_path: Path):
    local = LocalStore(tmp_path, "toy")
    made = publish(local, "k1")
    FILES[row](local.fetch(made))
    with pytest.raises(Stop, match="is not what was published") as stopped:
        local.fetch(made)
    assert_clear(stopped.value)


@pytest.mark.parametrize(
    "points_to",
    ["../../../../outside", "/etc", "", "\0", "a" * 5000, "k1\n"],
    ids=["above", "/etc", "", "0", "long", "\\n"],
)
def test_what_a_key_points_to_is_a_revision_or_nothing(points_to: str, tmp_path: Path):
    local = LocalStore(tmp_path, "toy")
    made = publish(local, "k1")
    (local.root / "datasets" / made.repository / "refs" / "k1").write_text(points_to)
    assert local.find(Questions, "k1") is None
    assert local.tags(Questions, "k") == {}


# Tags: anybody with the right to write sets them.


def released(key: str, promoted: bool, at: LocalStore) -> Release:
    with at.staging() as folder:
        (folder / "model.safetensors").write_text(key)
        counts = RELEASE | {"weights": key, "promoted": promoted}
        return at.publish(Release, key, folder, counts, {"stage": "release"})


def no_release(at: HubStore, champion: Release) -> None:
    retagged(champion, "champion-v9", b"{}")


def a_word(at: HubStore, champion: Release) -> None:
    at.tag(released("r2", True, at), "champion-of-the-world")


def refused_one(at: HubStore, champion: Release) -> None:
    at.tag(released("r2", False, at), "champion-0009-20260101T000000Z-promoted")


TAGS: dict[str, Callable[[HubStore, Release], Any]] = {
    "champion-v9 on a commit that is no release": no_release,
    "a tag that begins like a champion's": a_word,
    "a number of champions on a release that the gate refused": refused_one,
    "a change on a commit that is HTML": lambda at, champion: retagged(
        champion, "champion-0002-20260101T000000Z-promoted", b"<html>"
    ),
}


@pytest.mark.parametrize("row", TAGS)
def test_a_tag_makes_no_champion(row: str, hub: LocalHub, tmp_path: Path):
    """The champion stays, and the next one can become it."""
    here = store(tmp_path / "one")
    champion, better = released("r1", True, here), released("r3", True, here)
    assert Champions(here).promote(champion, None)
    TAGS[row](here, champion)
    elsewhere = Champions(store(tmp_path / "two"))
    assert elsewhere.current() == champion
    assert elsewhere.promote(better, champion)
    assert Champions(store(tmp_path / "three")).current() == better


@pytest.mark.parametrize("on", ["a release that the gate refused", "a commit that is no release"])
def test_the_champion_s_tag_is_believed_on_a_promoted_release_only(on: str, hub: LocalHub, tmp_path: Path):
    here = store(tmp_path / "one")
    champion = released("r1", True, here)
    assert Champions(here).promote(champion, None)
    if "refused" in on:
        here.tag(released("r2", False, here), "champion")
    else:
        retagged(champion, "champion", b"[]")
    for ask in (Champions(store(tmp_path / "two")).current, Champions(store(tmp_path / "three")).roll_back):
        with pytest.raises(Stop, match=r"[Dd]elete (that|its) tag") as stopped:
            ask()
        assert_clear(stopped.value)


# Names: what a person types, and what a stranger's lineage says.


@pytest.mark.parametrize("name", ["../../etc/passwd", "*", "[a-f]*", "k\n", "", "a/b@../c", "local/toy-base@..", "…"])
def test_a_name_leads_nowhere_else(name: str, tmp_path: Path):
    local = LocalStore(tmp_path, "toy")
    publish(local, "k1")
    with pytest.raises(Stop) as stopped:
        lineage_of(name, tmp_path)
    assert_clear(stopped.value)
    assert checkpoint_named(local, name) is None


def test_an_ambiguous_name_lists_a_few_candidates_and_not_a_thousand(tmp_path: Path):
    local = LocalStore(tmp_path, "toy")
    made = [publish(local, f"abcdef{place:014x}", f"{place}\n") for place in range(40)]
    with pytest.raises(Stop, match=r"Several artifacts are named abcdef: .*and 32 more") as stopped:
        lineage_of("abcdef", tmp_path)
    assert len(str(stopped.value)) < 1500
    assert lineage_of(made[7].revision[:12], tmp_path).root.named.key == made[7].key


@pytest.mark.parametrize(
    "rows", ["[]\n", '{"seed": 1}\n', "<html>\n", "[" * 100_000], ids=["a list", "a field", "HTML", "deep"]
)
def test_what_a_stranger_s_model_says_it_learned_from_is_rows_or_a_stop(rows: str, tmp_path: Path):
    local = LocalStore(tmp_path, "toy")
    with local.staging() as folder:
        (folder / "learned.jsonl").write_text(rows)
        made = local.publish(Release, "abcdef0123", folder, RELEASE, {"stage": "release"})
    with pytest.raises(Stop, match="is not what its name says") as stopped:
        lineage_of(made.key, tmp_path).as_json()
    assert_clear(stopped.value)


def test_every_record_that_a_stage_writes_is_read(tmp_path: Path):
    """The rows above are refused for what they are: what is ours passes."""
    local = LocalStore(tmp_path, "toy")
    made = publish(local, "k1")
    record = (local.fetch(made) / RECORD).read_bytes()
    assert ArtifactRecord.model_validate_json(record).revision == made.revision
