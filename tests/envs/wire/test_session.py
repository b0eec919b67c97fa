"""A session survives what servers do, against real processes."""

import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.reply import Reply
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import AtCapacity, Session, SessionLost
from apprentice.envs.wire.waiting import wait_for
from tests.restartable import RestartableServer


@pytest.fixture
def restartable():
    server = RestartableServer()
    yield server
    server.kill()


@pytest.mark.long
def test_a_server_killed_between_reset_and_step_does_not_cost_the_episode(chain_sum: EnvironmentSpec, restartable):
    environment = chain_sum.make(Session(restartable.at()))
    question = environment.ask(11)
    answer = str(sum(int(term) for term in question.split(":")[1].replace("- ", "+ -").rstrip(" =").split("+")))
    restartable.kill()
    back = threading.Timer(0.5, restartable.start)
    back.start()
    environment.environment.answer(answer)  # type: ignore[attr-defined]
    back.join()
    assert environment.reward == 1.0


class Wire:
    """A connection that is cut at the asking of that number, and then answers nothing."""

    def __init__(self, cut_at: int = 0):
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self._cut_at = cut_at

    async def ask(self, kind: str, payload: dict[str, Any]) -> Reply:
        self.requests.append((kind, payload))
        if len(self.requests) == self._cut_at:
            raise EOFError("cut")
        return Reply({"asked": len(self.requests)}, 0.0, False)

    async def ask_state(self) -> dict[str, Any]:
        return {"asked": (await self.ask("state", {})).observation["asked"]}

    async def disconnect(self) -> None:
        """Has nothing to close."""


def test_an_episode_of_several_turns_is_rebuilt_with_its_turns(monkeypatch: pytest.MonkeyPatch):
    wires = [Wire(cut_at=4), Wire(cut_at=6), Wire()]
    ahead = iter(wires)

    async def connected(server: EnvironmentServer) -> Any:
        return next(ahead)

    monkeypatch.setattr("apprentice.envs.wire.session.connect", connected)
    session = Session(EnvironmentServer(url="http://127.0.0.1:9"))
    session.reset(seed=1)
    replies = [session.step({"turn": turn}).observation["asked"] for turn in (1, 2, 3)]
    assert replies == [2, 3, 4], "the last one is that of the turn, after the reset and two turns"
    first = [("reset", {"seed": 1}), *(("step", {"turn": turn}) for turn in (1, 2, 3))]
    assert wires[0].requests == wires[1].requests == first
    session.reset(seed=2)
    session.step({"turn": 9})
    assert wires[2].requests == [("reset", {"seed": 2}), ("step", {"turn": 9})], (
        "and without those of the episode before"
    )
    session.close()


def test_the_state_is_that_of_the_episode_on_a_new_session_too(monkeypatch: pytest.MonkeyPatch):
    wires = [Wire(cut_at=3), Wire()]
    ahead = iter(wires)

    async def connected(server: EnvironmentServer) -> Any:
        return next(ahead)

    monkeypatch.setattr("apprentice.envs.wire.session.connect", connected)
    session = Session(EnvironmentServer(url="http://127.0.0.1:9"))
    session.reset(seed=1)
    session.step({"turn": 1})
    assert session.state() == {"asked": 3}
    assert wires[0].requests == wires[1].requests == [("reset", {"seed": 1}), ("step", {"turn": 1}), ("state", {})]
    session.close()


@pytest.mark.long
def test_a_server_that_stays_away_is_a_lost_session_and_no_reward(chain_sum: EnvironmentSpec, restartable):
    environment = chain_sum.make(Session(restartable.at(patience=0.3)))
    environment.ask(11)
    restartable.kill()
    with pytest.raises(SessionLost):
        environment.environment.answer("1")  # type: ignore[attr-defined]
    assert environment.reward is None
    assert environment.failure


@pytest.mark.long
def test_after_a_timeout_no_reply_is_taken_for_another(chain_sum: EnvironmentSpec, restartable):
    environment = chain_sum.make(Session(restartable.at(message_timeout=0.5)))
    first = environment.ask(1)
    restartable.process.send_signal(signal.SIGSTOP)
    awake = threading.Timer(1.2, restartable.process.send_signal, (signal.SIGCONT,))
    awake.start()
    second = environment.ask(2)
    awake.join()
    assert [environment.ask(seed) for seed in (1, 2)] == [first, second]


@pytest.mark.long
def test_a_session_over_the_servers_limit_says_that_it_is_the_limit(chain_sum: EnvironmentSpec):
    with local_server("apprentice.envs.serving.serve", "reasoning_gym", "--max-sessions", "1") as url:
        first = chain_sum.make(Session(EnvironmentServer(url=url)))
        first.ask(1)
        with pytest.raises(SessionLost, match="granted no session"):
            chain_sum.make(Session(EnvironmentServer(url=url, patience=0.2))).ask(1)
        first.close()


class TurnedAway(Session):
    """A session for which the server has no place."""

    tries = 0

    async def _connected(self) -> Any:
        self.tries += 1
        raise AtCapacity("all sessions are taken")


def test_a_full_server_is_asked_again_now_and_then_until_the_patience_ends():
    session = TurnedAway(EnvironmentServer(url="http://127.0.0.1:1", patience=1.0))
    with pytest.raises(SessionLost, match="granted no session for 1 s"):
        wait_for(session.open(patient=True))
    assert 2 <= session.tries <= 100, "not as fast as it can"
    assert not session.turned_away


def test_who_does_not_want_to_wait_for_a_place_is_told_at_once():
    session = TurnedAway(EnvironmentServer(url="http://127.0.0.1:1", patience=60.0))
    with pytest.raises(AtCapacity):
        wait_for(session.open())
    assert session.tries == 1


@pytest.mark.long
def test_a_local_server_goes_when_its_parent_is_killed():
    code = (
        "from apprentice.envs.serving.process import local_server; import time\n"
        "with local_server('apprentice.envs.serving.serve', 'reasoning_gym') as url:\n"
        "    print(url, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    port = int(parent.stdout.readline().rsplit(":", 1)[1])
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            return
        time.sleep(0.05)
    raise AssertionError("the server outlived its parent")
