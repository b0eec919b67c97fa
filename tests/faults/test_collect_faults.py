"""Whatever happens while the teacher plays, the dataset is the one that an undisturbed run gives.

Each test disturbs a collection that runs as a process of its own against real servers, and then compares the episodes
with those that must be there: none lost, none twice, no teacher call made again for an episode that was finished.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.reasoning_gym import datasets
from apprentice.envs.serving.process import local_server
from tests.conftest import TASKS
from tests.restartable import RestartableServer

EPISODES = 600
BEFORE = 100
"""Episodes that are finished when the fault strikes."""


class Collection:
    """One disturbed collection: its servers, its process, what it left."""

    def __init__(self, folder: Path, teacher_url: str, rows: list[dict[str, Any]]):
        self.folder = folder
        self.rows = rows
        self.teacher_url = teacher_url
        self.environment = RestartableServer()
        self.server: dict[str, Any] = {"sessions": 16}
        self.teacher: dict[str, Any] = {}
        self.episodes = EPISODES
        self.stale = 0.0
        self.finished_at: list[tuple[int, set[str]]] = []
        self.say("ok")

    def say(self, mode: str) -> None:
        (self.folder / "mode").write_text(mode)

    def command(self) -> list[str]:
        given = {
            "folder": str(self.folder),
            "teacher_url": self.teacher_url,
            "episodes": self.episodes,
            "stale": self.stale,
            "server": {"url": self.environment.url} | self.server,
            "teacher": self.teacher,
        }
        return [sys.executable, "-m", "tests.faults.collector", json.dumps(given)]

    def start(self) -> "subprocess.Popen[str]":
        environment = os.environ | {"OPENAI_API_KEY": "none-needed"}
        return subprocess.Popen(self.command(), stdout=subprocess.PIPE, text=True, env=environment)

    def journal(self) -> list[bytes]:
        path = self.folder / "scratch" / "episodes.jsonl"
        path = next((self.folder / "store" / ".scratch").glob("*/episodes.jsonl"), path) if self.stale else path
        return [line for line in path.read_bytes().splitlines(True) if line.endswith(b"\n")] if path.exists() else []

    def requests(self) -> list[dict[str, Any]]:
        path = self.folder / "asked.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def until(self, episodes: int, process: "subprocess.Popen[str]") -> None:
        wait_for(lambda: len(self.journal()) >= episodes or process.poll() is not None)

    def note_finished(self) -> None:
        """Remembers which questions are finished now: from here on nobody may ask the teacher about them."""
        finished = {json.loads(line)["messages"][1]["content"] for line in self.journal()}
        self.finished_at.append((len(self.requests()), finished))

    def disturbed(self, fault: Callable[[], None], code: int = 0) -> str:
        """Runs the collection, lets `fault` happen in the middle, and returns what was said."""
        process = self.start()
        self.until(BEFORE, process)
        assert process.poll() is None, "it ended before the fault struck"
        self.note_finished()
        fault()
        out, _ = process.communicate(timeout=180)
        assert process.returncode == code, out
        return out

    def questions(self) -> dict[int, str]:
        """What an undisturbed collection asks, by seed; a few questions belong to two seeds."""
        config = TASKS["chain_sum"].settings["config"]
        return {seed: datasets.entry("chain_sum", config, seed)[1]["question"] for seed in range(self.episodes)}

    def check(self, name: str) -> None:
        """The dataset is whole and right; notes the row for the summary."""
        wanted = self.questions()
        once = {question for question, count in Counter(wanted.values()).items() if count == 1}
        records = [json.loads(line) for line in (self.folder / "rollouts.jsonl").read_text().splitlines()]
        got = [(record["seed"], record["messages"][1]["content"]) for record in records if not record["failed_at"]]
        requests = self.requests()
        repeated = sum(
            request["question"] in finished & once
            for since, finished in self.finished_at
            for request in requests[since:]
        )
        row = {
            "name": name,
            "lost": len(wanted) - len({seed for seed, _ in got}),
            "duplicated": len(got) - len({seed for seed, _ in got}),
            "repeated_teacher_calls": repeated,
            "digest_equal": digest(got) == digest(list(wanted.items())),
        }
        self.rows.append(row)
        assert row == {"name": name, "lost": 0, "duplicated": 0, "repeated_teacher_calls": 0, "digest_equal": True}
        assert all(record["reward"] == 1.0 for record in records)

    def answered_once(self) -> None:
        """No answer was paid for twice: what the environment lost was rebuilt with the answer that was there."""
        allowed = Counter(self.questions().values())
        assert not Counter(request["question"] for request in self.requests() if request["answered"]) - allowed


def digest(questions: list[tuple[int, str]]) -> str:
    return hashlib.sha256(json.dumps(sorted(questions)).encode()).hexdigest()


def wait_for(condition: Callable[[], Any], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about"
        time.sleep(0.02)


def later(seconds: float, do: Callable[[], Any]) -> None:
    timer = threading.Timer(seconds, do)
    timer.start()


@pytest.fixture
def run(tmp_path: Path, rows: list[dict[str, Any]]) -> Iterator[Collection]:
    with local_server("tests.faults.endpoint", str(tmp_path), "--latency-ms", "100") as url:
        collection = Collection(tmp_path, url, rows)
        yield collection
        collection.environment.kill()


def test_an_environment_server_killed_and_back_after_ten_seconds(run: Collection):
    quiet: list[int] = []

    def fault() -> None:
        run.environment.kill()
        later(3.0, lambda: quiet.append(len(run.requests())))
        later(9.0, lambda: quiet.append(len(run.requests())))
        later(10.0, run.environment.start)

    out = run.disturbed(fault)
    run.check("environment server killed, back after 10 s")
    run.answered_once()
    assert quiet[0] == quiet[1], "the teacher was asked while the environment was down"
    assert "does not answer; waiting up to" in out
    assert "is back after" in out


def test_an_environment_server_stopped_for_thirty_seconds(run: Collection):
    def fault() -> None:
        run.environment.stop()
        later(30.0, run.environment.go_on)

    run.disturbed(fault)
    run.check("environment server stopped for 30 s")
    run.answered_once()


def test_sessions_that_timed_out_are_thrown_away(run: Collection):
    """The server's late replies must not be taken for those of the next episode."""
    run.server["message_timeout"] = 1.0

    def fault() -> None:
        for _ in range(3):
            run.environment.stop()
            time.sleep(1.5)
            run.environment.go_on()
            time.sleep(1.0)

    run.disturbed(fault)
    run.check("sessions timed out")
    run.answered_once()


@pytest.mark.parametrize("capacity", [4, 200])
def test_a_server_restarted_with_another_capacity(run: Collection, capacity: int):
    run.server["sessions"] = 32

    def fault() -> None:
        run.environment.kill()
        run.environment.start(capacity)

    out = run.disturbed(fault)
    run.check(f"server restarted with capacity {capacity} instead of 64")
    run.answered_once()
    assert ("grants only" in out) == (capacity < 32)


def test_an_environment_server_that_stays_away_stops_the_stage_to_be_resumed(run: Collection):
    run.server["patience"] = 5.0
    out = run.disturbed(run.environment.kill, code=1)
    assert "The environment is out of reach" in out
    assert "collection resumes from there" in out
    run.environment.start()
    run.note_finished()
    assert run.start().wait(120) == 0
    run.check("environment server gone for good, then resumed")


@pytest.mark.parametrize("mode", ["429", "told", "500", "inside", "hang", "cut"])
def test_a_teacher_that_fails_for_five_seconds(run: Collection, mode: str):
    run.teacher["timeout"] = 3.0

    def fault() -> None:
        run.say(mode)
        later(5.0, lambda: run.say("ok"))

    run.disturbed(fault)
    run.check(f"teacher: {mode} for 5 s")
    run.answered_once()


@pytest.mark.parametrize("mode", ["429", "500", "hang", "cut"])
def test_a_teacher_that_fails_for_good_stops_the_stage_to_be_resumed(run: Collection, mode: str):
    run.teacher |= {"timeout": 2.0, "patience": 6.0}
    out = run.disturbed(lambda: run.say(mode), code=1)
    assert "has not answered for 6 s" in out
    assert "finished episodes are kept" in out
    run.say("ok")
    run.note_finished()
    assert run.start().wait(120) == 0
    run.check(f"teacher: {mode} for good, then resumed")
    run.answered_once()


@pytest.mark.parametrize(
    ("mode", "said"),
    [("402", "Insufficient credits"), ("budget", "Budget has been"), ("401", "This key was")],
)
def test_an_account_that_runs_dry_stops_the_stage_at_once_to_be_resumed(run: Collection, mode: str, said: str):
    out = run.disturbed(lambda: run.say(mode), code=1)
    assert said in out
    assert "episodes are finished and kept" in out
    refused = sum(not request["answered"] for request in run.requests())
    assert refused <= run.server["sessions"], "no question was asked of an account without credit twice"
    run.say("ok")
    run.note_finished()
    assert run.start().wait(120) == 0
    run.check(f"account: {mode}, then resumed")
    run.answered_once()


def test_a_budget_that_is_used_up_stops_the_stage_to_be_resumed(run: Collection):
    run.teacher |= {"prices": {"prompt": 1.0, "completion": 1.0}, "budget_usd": 0.05}
    process = run.start()
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "The budget of 0.05 USD is used up" in out
    assert BEFORE < len(run.journal()) < EPISODES
    spent = sum(json.loads(line)["cost_usd"] for line in run.journal())
    assert spent <= 0.05
    run.note_finished()
    run.teacher["budget_usd"] = 1.0
    assert run.start().wait(120) == 0
    run.check("budget used up, then raised")
    run.answered_once()


def test_a_collector_killed_at_random_points_twenty_times(run: Collection):
    seed = random.randrange(2**32)
    print(f"random seed {seed}")
    draw = random.Random(seed)
    run.episodes = 3000
    run.server["sessions"] = 64
    for _ in range(20):
        process = run.start()
        run.until(len(run.journal()) + draw.randrange(1, 200), process)
        time.sleep(draw.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        time.sleep(0.3)  # what was on its way to the teacher arrives
        run.note_finished()
    assert run.start().wait(120) == 0
    run.check("collector killed twenty times")


def test_a_torn_last_line_is_played_again(run: Collection):
    process = run.start()
    run.until(BEFORE, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    journal = run.folder / "scratch" / "episodes.jsonl"
    whole = run.journal()
    journal.write_bytes(b"".join(whole[:-1]) + whole[-1][: len(whole[-1]) // 2])
    time.sleep(0.3)
    run.note_finished()
    assert run.start().wait(120) == 0
    run.check("last line torn")


def test_a_full_disk_stops_the_stage_to_be_resumed(run: Collection):
    """On a file system of 250 KB of its own; then it is made larger and the same command goes on."""
    disk = run.folder / "disk"
    disk.mkdir()
    given = json.loads(run.command()[-1]) | {"folder": str(disk)}
    collector = f"{sys.executable} -m tests.faults.collector '{json.dumps(given)}'"
    script = f"""
        mount -t tmpfs -o size=250k tmpfs {disk} || exit 77
        {collector}
        echo "code $?"
        wc -l < {disk}/scratch/episodes.jsonl
        cp {disk}/scratch/episodes.jsonl {run.folder}/half.jsonl
        cp {run.folder}/asked.jsonl {run.folder}/asked-half.jsonl
        mount -o remount,size=50m {disk} && {collector} && cp {disk}/rollouts.jsonl {run.folder}/rollouts.jsonl
    """
    environment = os.environ | {"OPENAI_API_KEY": "none-needed"}
    namespace = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    done = subprocess.run([*namespace, "sh", "-c", script], env=environment, capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("this machine grants no mount namespace")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No space left on device" in done.stdout
    assert "code 1" in done.stdout
    half = [line for line in (run.folder / "half.jsonl").read_bytes().splitlines(True) if line.endswith(b"\n")]
    assert 50 < len(half) < EPISODES
    finished = {json.loads(line)["messages"][1]["content"] for line in half}
    run.finished_at.append(((run.folder / "asked-half.jsonl").read_text().count("\n"), finished))
    run.check("disk full, then resumed")


def test_a_second_collector_on_one_folder_is_refused(run: Collection):
    def fault() -> None:
        second = run.start()
        out, _ = second.communicate(timeout=60)
        assert second.returncode == 1
        assert "Another run is playing the same episodes" in out

    run.episodes = 3000
    run.disturbed(fault)
    run.check("two collectors on one folder")
    run.answered_once()


@pytest.fixture
def blind(run: Collection) -> Collection:
    """A collection on a store where flock says yes to everybody, as Lustre's localflock does; a lease ends in 6 s."""
    run.stale = 6.0
    run.server["sessions"] = 4  # so that it lasts until a second one has begun
    return run


def waiting(run: Collection) -> "subprocess.Popen[str]":
    """A second collection, that has found the first one."""
    second = run.start()
    assert second.stdout is not None
    said: list[str] = []
    while "Another run makes this very artifact" not in "".join(said):
        said.append(second.stdout.readline())
        assert said[-1], said
    return second


def test_of_two_collections_on_a_store_with_blind_locks_one_waits_and_finds_it(blind: Collection):
    second: list[subprocess.Popen[str]] = []
    blind.disturbed(lambda: second.append(waiting(blind)))
    assert second[0].wait(60) == 0
    blind.check("two collections, blind locks")
    blind.answered_once()


def test_a_collection_that_is_killed_on_a_store_with_blind_locks_is_resumed_by_the_one_that_waits(blind: Collection):
    first = blind.start()
    blind.until(BEFORE, first)
    second = waiting(blind)
    blind.note_finished()
    first.kill()
    first.wait()
    assert second.wait(60) == 0
    blind.check("holder killed, blind locks")


def test_a_collection_that_was_suspended_on_a_store_with_blind_locks_writes_and_buys_no_more(blind: Collection):
    first = blind.start()
    blind.until(BEFORE, first)
    second = waiting(blind)
    first.send_signal(signal.SIGSTOP)
    time.sleep(0.3)  # what was on its way to the teacher arrives
    blind.note_finished()
    assert second.wait(90) == 0
    bought = len(blind.requests())
    assert bought <= EPISODES + blind.server["sessions"]
    first.send_signal(signal.SIGCONT)
    out, _ = first.communicate(timeout=60)
    assert first.returncode == 1
    assert "another run took over" in out
    assert len(blind.requests()) == bought
    blind.check("holder suspended, blind locks")


def test_a_suspended_collection_that_goes_on_beside_its_successor_ends(blind: Collection):
    blind.episodes = 1500
    first = blind.start()
    blind.until(BEFORE, first)
    second = waiting(blind)
    first.send_signal(signal.SIGSTOP)
    time.sleep(0.3)  # what was on its way to the teacher arrives
    blind.note_finished()
    blind.until(len(blind.journal()) + BEFORE, second)
    first.send_signal(signal.SIGCONT)
    out, _ = first.communicate(timeout=60)
    assert (first.returncode, second.poll()) == (1, None)
    assert "another run took over" in out
    assert second.wait(120) == 0
    blind.check("holder suspended and back, blind locks")
