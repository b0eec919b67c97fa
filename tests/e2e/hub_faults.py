"""What a Hub can do to a publication, and people to a Hub: every fault costs time and words, nothing else.

In: a `Case`: a Hub of its own that is empty, and machines. Out: whether another machine found what it should, with the
same bytes. What is on the Hub afterwards is judged from outside.
"""

import json
import random
import shutil
from pathlib import Path
from typing import Any

from tests.e2e.cluster import until
from tests.e2e.hub_case import FAULTS, SEED, Case, fault
from tests.e2e.hub_judge import judge
from tests.e2e.hub_machines import toy

MODEL = ["BaseStudent"]
HUB = ["store.hub.namespace=team"]
TOY = {"store": "a", "project": "toy"}


def at_each_request(name: str, **how: Any) -> None:
    """Adds a fault that meets each request of an upload, in turn: that of a dataset and of a model."""

    def sweep(case: Case) -> bool:
        one, content = case.machine(), case.content()
        one.ask("publish", **content)
        requests = len(case.hub.requests())
        found = True
        for request in range(requests):
            content = case.content() | {"project": f"toy-{request}"}
            before = len(case.hub.requests())
            case.hub.fail({"match": "^(?!.*agent-harnesses)", "after": request, "times": 1, **how})
            made = one.ask("publish", **content)
            met = [line for line in case.hub.requests()[before:] if line.endswith(str(how["do"]))]
            assert len(met) == 1, (request, met, made)
            assert isinstance(made, list), made
            found = case.elsewhere(content["project"], *made) and found
            shutil.rmtree(one.folder / "a")
        case.name = f"{name} at each of {requests} requests"
        return found

    FAULTS[f"{name} at each request"] = sweep


at_each_request("500", do=500)
at_each_request("429 with Retry-After", do=429)
at_each_request("connection cut", do="cut")
at_each_request("connection cut after it was carried out", do="cut", done=True)


def refused(case: Case, token: str, words: str) -> bool:
    """The real command ends with the words; with a good token the next run sends what was made, once, and goes on."""
    said = case.machine(token=token).apprentice("run", *HUB, code=1)
    assert words in " ".join(said.split()), said
    assert "Traceback" not in said, said
    assert not judge(case.hub.folder).keys
    case.machine(token="write").drive("stage", *toy(*HUB))
    keys = [each for each in judge(case.hub.folder).keys if each.startswith("toy-questions:")]
    found = [case.machine("elsewhere").ask("fetch", **TOY, kind="Questions", key=key.split(":")[1]) for key in keys]
    return len(found) == 1 and found[0] is not None


@fault
def expired_token(case: Case) -> bool:
    return refused(case, "bad", "The Hub does not know the token (401): it is wrong, or it has expired.")


@fault
def read_only_token(case: Case) -> bool:
    return refused(case, "read", "The Hub refused (403): the token may not write to team")


@fault
def killed_between_upload_and_tag(case: Case) -> bool:
    """Its commit is there, and is nothing; the next run publishes it."""
    found = True
    for kind in ("Questions", "BaseStudent"):
        content = case.content() | {"kinds": [kind]}
        case.hub.fail({"match": "POST .*/tag/", "do": "hang"})
        hanging = len(case.hub.requests("hang$"))
        case.machine().tell("publish", **content)
        until("the tag's request hangs", lambda before=hanging: len(case.hub.requests("hang$")) > before)
        case.machine().end()
        case.hub.fail()
        assert len(case.hub.requests(f"POST .*toy-{named(kind)}/commit/main 200")) == 1
        assert case.is_nothing(content, kind), "a commit without its tag was found"
        made = case.machine().ask("publish", **content)
        found = case.elsewhere("toy", *made) and found
    return found


def named(kind: str) -> str:
    return {"Questions": "questions", "BaseStudent": "base"}[kind]


@fault
def two_publish_one_key_at_once(case: Case) -> bool:
    """Six times: the same content, then different content. One wins, both report its artifact."""
    two = [case.machine("one"), case.machine("two")]
    found = True
    for times in range(6):
        content = case.content()
        for place, machine in enumerate(two):
            machine.tell("publish", **content | {"content": [*content["content"], place if times % 2 else 0]})
        one, other = [machine.step() for machine in two]
        assert [each["revision"] for each in one] == [each["revision"] for each in other], (one, other)
        for first, second in zip(one, other, strict=True):
            won = [each for each in (first, second) if case.elsewhere("toy", each)]
            found = found and len(won) == (1 if times % 2 else 2)
    return found


@fault
def repositories_with_other_content(case: Case) -> bool:
    """What people pushed stays in history; the artifact holds its own files only (the judge looks)."""
    by_hand = {"notes.md": "mine", "data/old.bin": "old", "questions.jsonl": "{}\n", "model.safetensors": "no weights"}
    case.machine().ask("push", repository="team/toy", files=by_hand)
    found = True
    for _ in range(2):
        made = case.machine().ask("publish", **case.content())
        found = case.elsewhere("toy", *made) and found
    for repository in ("datasets/team/toy-questions", "models/team/toy-base"):
        commits = [
            json.loads(each.read_bytes()) for each in (case.hub.folder / "repos" / repository / "commits").iterdir()
        ]
        assert any(by_hand.keys() < each["files"].keys() for each in commits), repository
    return found


@fault
def quota_exceeded(case: Case) -> bool:
    """At each request that may say so: words, nothing by halves, and after room was made it is published."""
    found = True
    for where in ("info/lfs/objects/batch", "PUT /lfs/", "POST .*/commit/"):
        content = case.content() | {"kinds": MODEL}
        case.hub.fail({"match": where, "do": "quota"})
        refused = case.machine().ask("publish", **content)
        assert isinstance(refused, dict), (where, refused)
        assert "its storage is used up" in refused["stop"], refused
        assert case.is_nothing(content, "BaseStudent")
        case.hub.fail()
        found = case.elsewhere("toy", *case.machine().ask("publish", **content)) and found
    return found


@fault
def poisoned_cache_file(case: Case) -> bool:
    """A byte is flipped on a machine that has fetched it: it is fetched anew, the right bytes."""
    content = case.content() | {"kinds": MODEL}
    (made,) = case.machine().ask("publish", **content)
    other = case.machine("two")
    wanted = {"store": "a", "project": "toy", "kind": "BaseStudent", "key": content["key"]}
    first = other.ask("fetch", **wanted)
    other.end()
    (file,) = other.folder.glob("a/models/team/toy-base/snapshots/*/model.safetensors")
    flipped = bytearray(file.read_bytes())
    flipped[random.Random(SEED).randrange(len(flipped))] ^= 1
    file.write_bytes(flipped)
    again = other.ask("fetch", **wanted)
    assert "is damaged (model.safetensors): fetched anew" in " ".join((other.folder / "said.log").read_text().split())
    return first == again == {"revision": made["revision"], "files": made["files"]}


@fault
def hub_away_at_the_start(case: Case) -> bool:
    """A run that no other machine waits for keeps what it makes, and sends it later: the oldest first, once."""
    contents = [case.content() | {"needed": False, "patience": 2.0} for _ in range(3)]
    case.hub.kill()
    made = [case.machine().ask("publish", **each) for each in contents]
    case.machine().end()
    case.hub.start()
    assert not judge(case.hub.folder).keys
    where = {"store": "a", "project": "toy"}
    assert case.machine().ask("send", **where) == [each["key"] for each in contents for _ in range(2)]
    assert case.machine().ask("send", **where) == []
    return case.elsewhere("toy", *(each for both in made for each in both))


@fault
def hub_away_for_a_whole_run(case: Case) -> bool:
    """The real commands: `apprentice run` without the Hub, then `apprentice publish`; the oldest goes first, once."""
    one = case.machine()
    case.hub.kill()
    one.apprentice("run", *HUB, "store.hub.patience=2")
    marks = sorted(one.store.glob("*/team/toy-*/unsent/*"), key=lambda mark: mark.stat().st_mtime_ns)
    waiting = [(mark.parent.parent / "snapshots" / mark.read_text() / "artifact.json").read_text() for mark in marks]
    waiting = [json.loads(record) | {"revision": mark.read_text()} for record, mark in zip(waiting, marks, strict=True)]
    case.hub.start()
    one.apprentice("publish", *HUB)
    sent = [line.split()[-2] for line in case.hub.requests("POST .*/tag/.* 200")]
    assert len(sent) == len(waiting) > 10, (sent, waiting)
    assert "Nothing waits" in one.apprentice("publish", *HUB)
    assert len(case.hub.requests("POST .*/tag/")) == len(sent)
    there, where = case.machine("elsewhere"), {"store": "a", "project": "toy"}
    found = [there.ask("fetch", **where, kind=each["kind"], key=each["key"]) for each in waiting]
    assert in_order(case, [each["key"] for each in waiting])
    return [each and each["revision"] for each in found] == [each["revision"] for each in waiting]


def in_order(case: Case, keys: list[str]) -> bool:
    """Whether the commits of these keys were made in this order."""
    when = {}
    for state in case.hub.folder.glob("repos/*/*/*/repo.json"):
        for tag, commit in json.loads(state.read_bytes())["tags"].items():
            when[tag] = json.loads((state.parent / "commits" / commit).read_bytes())["date"]
    dates = [when[key] for key in keys]
    return dates == sorted(dates)


@fault
def a_large_file_and_a_cut(case: Case) -> bool:
    """300 MB, the connection cut in the middle of its PUT."""
    case.hub.fail({"match": "PUT /lfs/", "times": 1, "do": "cut"})
    made = case.machine().ask("publish", **case.content(), mib=300e6 / 2**20, kinds=MODEL)
    assert [line.split()[-1] for line in case.hub.requests("PUT /lfs/")] == ["cut", "200"], made
    return case.elsewhere("toy", *made)


@fault
def hub_killed_in_mid_upload(case: Case) -> bool:
    """Killed with -9 while a large file arrives, and started again: the same call goes on."""
    case.machine().ask("publish", **case.content())
    case.machine().tell("publish", **case.content(), mib=200, kinds=MODEL)
    arriving = case.hub.folder / "tmp"
    until("a file arrives", lambda: any(size(path) > 2**20 for path in arriving.iterdir()), every=0.001)
    case.hub.kill()
    assert len(case.hub.requests("PUT /lfs/.* 200")) == 1, "the upload was over already"
    case.hub.start()
    return case.elsewhere("toy", *case.machine().step())


def size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
