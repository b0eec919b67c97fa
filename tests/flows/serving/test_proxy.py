"""`apprentice serve` keeps its promises with a real store, a real proxy and engines that are processes."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import uvicorn

from apprentice.envs.serving.process import server_settings
from apprentice.flows.runtime.servers import listening
from apprentice.flows.serving.backends import Backends
from apprentice.flows.serving.proxy import REVISION, Proxy
from apprentice.flows.serving.request_log import RequestLog
from apprentice.flows.serving.target import Target
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Checkpoint, Release
from apprentice.tasks.formats.served_log import HEADER
from apprentice.tasks.judgement.champions import Champions
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.serving.engine import Engine, Launch
from tests.tasks.evaluations import published

TOY = Path(__file__).parents[2] / "toy_engine.py"
PATIENCE = 60.0


@dataclass(frozen=True)
class ToyTarget(Target):
    """Serves every model by an engine that answers with its key; of one that is called broken it exits at once."""

    def start(self, model: Checkpoint) -> Engine:
        wrong = ["-c", "import sys; sys.exit(7)"]
        words = [*wrong, "{port}"] if model.key.startswith("broken") else [str(TOY), "{port}", model.key]
        return Engine(Launch([sys.executable, *words], "toy", thinks=model.key.startswith("thinker")))


def made(store: LocalStore, name: str) -> Release:
    counts = {"weights": f"weights of {name}", "promoted": True, "parameters": 1, "stage": "champion"}
    return published(store, Release, name.ljust(20, "0"), {"model.txt": name}, counts)


@pytest.fixture
def champions(tmp_path: Path) -> Champions:
    return Champions(LocalStore(tmp_path / "store", project="toy"))


def promote(champions: Champions, name: str) -> Release:
    release = made(champions._store, name)
    assert champions.promote(release, champions.current())
    return release


class Served:
    """A running `apprentice serve`."""

    def __init__(self, url: str, backends: Backends):
        self.url, self.backends = url, backends

    def ask(self, **body: Any) -> httpx.Response:
        asked = {"model": "student", "messages": [{"role": "user", "content": "Hello 4711"}]} | body
        return httpx.post(f"{self.url}/v1/chat/completions", json=asked, timeout=PATIENCE)

    def engine(self) -> int:
        """The process of the engine in force."""
        assert self.backends.current is not None
        return psutil.Process(self.backends.current.engine._process.pid).children(recursive=True)[-1].pid


@contextmanager
def serving(
    champions: Champions, most: int = 8, log: RequestLog | None = None, target: type[ToyTarget] = ToyTarget
) -> Iterator[Served]:
    backends = Backends(target(champions._store, None, "transformers", most, 64))
    backends.start()
    with listening(0) as listener:
        server = uvicorn.Server(server_settings(Proxy(backends, most, log).app()))
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        running = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        running.start()
        try:
            yield Served(f"http://127.0.0.1:{listener.getsockname()[1]}", backends)
        finally:
            server.should_exit = True
            running.join()


def until(holds: Callable[[], bool]) -> float:
    """Seconds until a condition holds."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.05)
    return time.monotonic() - began


def said(answer: httpx.Response) -> str:
    return answer.raise_for_status().json()["choices"][0]["message"]["content"]


@pytest.mark.long
def test_a_promotion_and_a_rollback_under_load_of_8_clients_fail_no_request(champions: Champions):
    first, ended = promote(champions, "first"), threading.Event()
    with serving(champions, most=16) as served, ThreadPoolExecutor(8) as clients:

        def load() -> list[tuple[int, str]]:
            answers = []
            while not ended.is_set():
                answer = served.ask(pause=0.05)
                answers.append((answer.status_code, answer.json()["choices"][0]["message"]["content"]))
            return answers

        running = [clients.submit(load) for _ in range(8)]
        until(lambda: said(served.ask()) == first.key)
        second = promote(champions, "second")
        until(lambda: said(served.ask()) == second.key)
        assert champions.roll_back() == first
        until(lambda: said(served.ask()) == first.key)
        ended.set()
        answers = [each for client in running for each in client.result()]
        assert {status for status, _ in answers} == {200}
        assert {text for _, text in answers} == {first.key, second.key}
        assert len(answers) > 50


def test_a_student_that_thinks_is_sent_no_switch_which_its_parser_would_read(champions: Champions):
    promote(champions, "thinker")
    with serving(champions) as served:
        asked = served.ask(chat_template_kwargs={"enable_thinking": False, "other": 1}).json()["asked"]
        assert asked["chat_template_kwargs"] == {"other": 1}


def test_the_models_list_names_key_and_revision_and_answers_name_the_revision(champions: Champions):
    release = promote(champions, "first")
    with serving(champions) as served:
        [model] = httpx.get(f"{served.url}/v1/models").json()["data"]
        assert (model["id"], model["key"], model["revision"]) == ("student", release.key, release.revision)
        answer = served.ask(model=release.key)
        assert answer.headers[REVISION] == release.revision
        assert answer.json()["model"] == "student", "an engine's own name may be a folder of this machine"
        assert answer.json()["asked"]["model"] == "toy"
        assert answer.json()["asked"]["chat_template_kwargs"] == {"enable_thinking": False}
        assert httpx.get(f"{served.url}/health").json()["status"] == "ok"
        unknown = served.ask(model="gpt-5")
        assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "model_not_found")
        assert served.ask(messages="x").status_code == 200
        assert httpx.post(f"{served.url}/v1/chat/completions", content=b"[").status_code == 400
        assert httpx.get(f"{served.url}/health", headers={"Host": "evil.example"}).status_code == 400


@pytest.mark.long
def test_more_requests_than_allowed_get_429_with_retry_after_and_the_others_are_answered(champions: Champions):
    promote(champions, "first")
    with serving(champions, most=2) as served, ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda _: served.ask(pause=1.0), range(8)))
        refused = [each for each in answers if each.status_code == 429]
        assert [each.status_code for each in answers].count(200) >= 2
        assert refused
        assert all(int(each.headers["Retry-After"]) > 0 for each in refused)
        assert "2 requests" in refused[0].json()["error"]["message"]
        assert served.ask().status_code == 200


def test_a_killed_engine_is_started_again_within_seconds_and_its_requests_are_told(champions: Champions):
    promote(champions, "first")
    with serving(champions) as served, ThreadPoolExecutor(4) as clients:
        waiting = clients.submit(served.ask, pause=60.0)
        until(lambda: httpx.get(f"{served.url}/health").json()["requests"] == 1)
        os.kill(served.engine(), signal.SIGKILL)
        answer = waiting.result()
        assert answer.status_code == 502
        assert "The engine ended while it answered" in answer.json()["error"]["message"]
        mended = until(lambda: served.ask().status_code == 200)
        assert mended < 20
        assert httpx.get(f"{served.url}/health").json()["restarts"] == 1


@pytest.mark.long
def test_a_stream_whose_engine_ends_ends_with_an_error(champions: Champions):
    promote(champions, "first")
    asked = {"model": "student", "messages": [], "stream": True, "pause": 0.5}
    with serving(champions) as served:
        lines = []
        with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=asked, timeout=PATIENCE) as answer:
            for line in answer.iter_lines():
                if line:
                    lines.append(line)
                    if len(lines) == 1:
                        os.kill(served.engine(), signal.SIGKILL)
        assert json.loads(lines[0][6:])["choices"][0]["delta"]["content"].startswith("first")
        assert json.loads(lines[-2][6:])["error"]["type"] == "engine_ended"
        assert lines[-1] == "data: [DONE]"
        until(lambda: httpx.get(f"{served.url}/health").json().get("requests") == 0)


def test_a_stream_without_an_event_takes_its_own_place_only(champions: Champions):
    promote(champions, "first")
    with serving(champions) as served:
        assert served.ask(stream=True, silent=True).text == ""
        assert httpx.get(f"{served.url}/health").json()["requests"] == 0


def test_how_an_engine_ended_is_known_also_once_it_is_stopped(champions: Champions):
    engine = ToyTarget(champions._store, None, "transformers", 1, 64).start(promote(champions, "broken"))
    until(lambda: not engine.is_alive)
    ended = engine.end()
    engine.stop()
    assert "exited with code 7" in ended
    assert engine.end() == ended


@pytest.mark.long
def test_a_champion_that_cannot_be_loaded_leaves_the_one_before(champions: Champions, capsys: pytest.CaptureFixture):
    first = promote(champions, "first")
    with serving(champions) as served:
        broken = promote(champions, "broken")
        until(lambda: served.backends._refused == broken.revision)
        assert said(served.ask()) == first.key
        third = promote(champions, "third")
        until(lambda: said(served.ask()) == third.key)


class UnreadableTarget(ToyTarget):
    """Finds its champion once, and then a fault of this project's own code."""

    looks = 0

    def model(self) -> Checkpoint:
        type(self).looks += 1
        if self.looks > 1:
            raise LookupError("no such shelf")
        return super().model()


@pytest.mark.long
def test_what_is_watched_no_more_is_said_and_is_not_healthy(champions: Champions, caplog: pytest.LogCaptureFixture):
    release = promote(champions, "first")
    with serving(champions, target=UnreadableTarget) as served:
        until(lambda: httpx.get(f"{served.url}/health").status_code == 503)
        assert httpx.get(f"{served.url}/health").json()["status"] == "LookupError: no such shelf"
        assert said(served.ask()) == release.key, "the engine still answers"
    assert "watched no more (LookupError: no such shelf)" in caplog.text


def test_without_a_champion_nothing_is_served_and_the_remedy_is_named(champions: Champions):
    with pytest.raises(
        Stop, match=r"toy has no champion yet[^→]*\n→ Run the recipe, or serve another model by its key"
    ):
        Backends(ToyTarget(champions._store, None, "transformers", 8, 64))


def test_a_first_engine_that_ends_says_how(champions: Champions):
    promote(champions, "broken")
    with pytest.raises(Stop, match=r"exited with code 7[^→]*\n→ Choose another engine"):
        Backends(ToyTarget(champions._store, None, "transformers", 8, 64)).start()


def test_a_port_in_use_is_named():
    with listening(0) as listener, pytest.raises(Stop, match=r"is not available: Address already in use"):
        listening(listener.getsockname()[1])


def test_the_log_has_questions_and_answers_streamed_or_not_without_what_is_masked(champions: Champions, tmp_path: Path):
    release = promote(champions, "first")
    file = tmp_path / "log.jsonl"
    with serving(champions, log=RequestLog(file, [r"\d{4}"], ["at"])) as served:
        served.ask()
        asked = {"model": "student", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
        with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=asked) as answer:
            assert "[DONE]" in "".join(answer.iter_text())
        until(lambda: len(file.read_bytes().splitlines()) == 3)
    head, one, two = map(json.loads, file.read_text().splitlines())
    assert HEADER in head
    assert "conversation" in head["fields"]["messages"]
    assert [each["content"] for each in one["messages"]] == ["Hello ***", release.key.replace("0000", "***")]
    assert [each["content"] for each in two["messages"]][-1].endswith("...")
    assert "at" not in one
    assert (file.stat().st_mode & 0o777) == 0o600
