"""The store publishes whole or not at all, also on a full disk."""

import subprocess
import sys
from pathlib import Path
from threading import Event, Thread

import pytest

from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import Provenance
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.reporting.errors import MadeElsewhere, Stop

COUNTS = dict(collect=1, grpo=2, evaluate=3, dropped_from_grpo=0)


def publish(store: LocalStore, key: str, text: str = "{}\n") -> Questions:
    with store.staging() as folder:
        (folder / "questions.jsonl").write_text(text)
        return store.publish(Questions, key, folder, COUNTS, {"stage": "questions"})


def test_what_was_published_is_found_by_key_and_fetched_by_revision(tmp_path: Path):
    store = LocalStore(tmp_path, project="toy")
    made = publish(store, "k1")
    assert store.find(Questions, "k1") == made
    assert (store.fetch(made) / "questions.jsonl").read_text() == "{}\n"
    assert store.find(Questions, "k2") is None


def test_without_its_ref_an_artifact_does_not_exist(tmp_path: Path):
    store = LocalStore(tmp_path, project="toy")
    made = publish(store, "k1")
    (tmp_path / "datasets" / made.repository / "refs" / "k1").unlink()
    assert store.find(Questions, "k1") is None


def test_equal_content_has_one_revision_and_other_content_another(tmp_path: Path):
    one, two = LocalStore(tmp_path / "1", project="toy"), LocalStore(tmp_path / "2", project="toy")
    assert publish(one, "k").revision == publish(two, "k").revision
    assert publish(one, "k2", "other\n").revision != publish(two, "k").revision


FULL_DISK = """
import sys; sys.path[:0] = []
from pathlib import Path
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.artifacts.provenance import Provenance
from apprentice.tasks.artifacts.local import LocalStore
store = LocalStore(Path(sys.argv[1]), project="toy")
try:
    with store.staging() as folder:
        (folder / "questions.jsonl").write_text("x" * 4_000_000)
        store.publish(Questions, "k", folder, dict(collect=1, grpo=1, evaluate=1, dropped_from_grpo=0), {})
except Stop as stop:
    print(stop)
print("found" if store.find(Questions, "k") else "nothing", len(list(store.root.rglob("*.jsonl"))))
"""


def test_a_full_disk_ends_in_a_clear_error_and_nothing_half_written(tmp_path: Path):
    """On a real file system of one megabyte, mounted in a namespace of its own."""
    mount = f"mount -t tmpfs -o size=1M tmpfs {tmp_path}"
    namespaces = (["unshare", "--user", "--map-root-user", "--mount"], ["unshare", "--mount"])
    namespace = next((each for each in namespaces if not subprocess.run([*each, "sh", "-c", mount]).returncode), None)
    if namespace is None:
        pytest.skip("this machine grants no mount namespace")
    script = f"{mount} && exec {sys.executable} -c '{FULL_DISK}' {tmp_path}"
    out = subprocess.run([*namespace, "sh", "-c", script], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    assert "No space left on device" in out.stdout
    assert "Make room there" in out.stdout
    assert out.stdout.splitlines()[-1] == "nothing 0"


def test_a_store_that_may_not_be_written_says_so(tmp_path: Path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(Stop, match="cannot be written: Not a directory"):
        publish(LocalStore(file, project="toy"), "k")


def test_a_tag_moves_in_one_step_and_a_key_does_not(tmp_path: Path):
    store = LocalStore(tmp_path, project="toy")
    one, two = publish(store, "k1"), publish(store, "k2", "other\n")
    assert store.tagged(Questions, "best") is None
    store.tag(one, "best")
    store.tag(two, "best")
    assert store.tagged(Questions, "best") == two
    assert store.find(Questions, "k1") == one
    assert store.tags(Questions, "be") == {"best": two.revision}


def test_an_artifact_whose_snapshot_is_gone_is_told_by_its_revision(tmp_path: Path):
    store = LocalStore(tmp_path, project="toy")
    with pytest.raises(Stop, match="toy-questions at 000000000000 is not in the store"):
        store.at(Questions, "0" * 40)


def test_what_was_changed_in_the_folder_is_not_used(tmp_path: Path):
    made = publish(LocalStore(tmp_path, project="toy"), "k1")
    folder = LocalStore(tmp_path, project="toy").fetch(made)
    (folder / "questions.jsonl").write_text("[]\n")
    with pytest.raises(Stop, match=r"is not what was published: questions\.jsonl"):
        LocalStore(tmp_path, project="toy").fetch(made)
    (folder / "questions.jsonl").unlink()
    with pytest.raises(Stop, match=r"questions\.jsonl"):
        LocalStore(tmp_path, project="toy").fetch(made)
    again = publish(LocalStore(tmp_path, project="toy"), "k1")
    assert (LocalStore(tmp_path, project="toy").fetch(again) / "questions.jsonl").read_text() == "{}\n"


def test_a_record_that_was_changed_or_torn_is_not_believed(tmp_path: Path):
    made = publish(LocalStore(tmp_path, project="toy"), "k1")
    record = LocalStore(tmp_path, project="toy").fetch(made) / "artifact.json"
    text = record.read_text()
    record.write_text(text.replace('"collect": 1', '"collect": 9'))
    with pytest.raises(Stop, match=r"is not what was published: artifact\.json"):
        LocalStore(tmp_path, project="toy").fetch(made)
    record.write_text(text[: len(text) // 2])
    assert LocalStore(tmp_path, project="toy").find(Questions, "k1") is None


def test_code_recipe_time_and_card_do_not_enter_a_revision(tmp_path: Path):
    def made(project: str, card: str, provenance: Provenance) -> Questions:
        store = LocalStore(tmp_path / card, project=project)
        with store.staging() as folder:
            (folder / "questions.jsonl").write_text("{}\n")
            (folder / "README.md").write_text(card)
            return store.publish(Questions, "k1", folder, COUNTS, {"stage": "questions"}, provenance)

    one = made("toy", "one", Provenance(code="a", made_at="today"))
    other = made("other", "two", Provenance(code="b", recipe={"seed": 1}))
    assert one.revision == other.revision


def test_what_a_killed_process_left_unpublished_is_removed_when_the_same_is_made_again(tmp_path: Path):
    store = LocalStore(tmp_path, project="toy")
    left = tmp_path / ".staging" / "sft-0123"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half of it")
    with store.staging("sft-0123") as folder:
        assert not [*folder.iterdir()]
    assert not left.exists()


def test_who_makes_the_same_waits_until_the_other_is_done_or_says_that_it_will_not(tmp_path: Path):
    local, said, order = LocalStore(tmp_path, "toy"), [], []
    waiting = Event()

    def second() -> None:
        with LocalStore(tmp_path, "toy").exclusive("k", lambda text: said.append(text) or waiting.set()):
            order.append("second")

    other = Thread(target=second)
    with local.exclusive("k", said.append):
        third = LocalStore(tmp_path, "toy").exclusive("k", said.append, wait=False)
        with local.exclusive("another", said.append), pytest.raises(MadeElsewhere, match="makes this very"), third:
            raise AssertionError("two at once")
        other.start()
        assert waiting.wait(60)
        other.join(0.2)
        order.append("first")
    other.join(60)
    assert order == ["first", "second"]
    assert said == ["Another run makes this very artifact; waiting for it."]
    with local.exclusive("k", said.append, wait=False):
        assert len(said) == 1
