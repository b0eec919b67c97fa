"""A session survives what servers do, against real processes."""

import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Session, SessionLost
from tests.restartable import RestartableServer


@pytest.fixture
def restartable():
    server = RestartableServer()
    yield server
    server.kill()


@pytest.mark.long
def test_a_server_killed_between_reset_and_step_does_not_cost_the_episode(chain_sum: EnvironmentSpec, restartable):
    environment = chain_sum.make(Session(restartable.at()))
    question = environment.reset(seed=11)
    answer = str(sum(int(term) for term in question.split(":")[1].replace("- ", "+ -").rstrip(" =").split("+")))
    restartable.kill()
    back = threading.Timer(0.5, restartable.start)
    back.start()
    environment.answer(answer)  # type: ignore[attr-defined]
    back.join()
    assert environment.reward == 1.0


@pytest.mark.long
def test_a_server_that_stays_away_is_a_lost_session_and_no_reward(chain_sum: EnvironmentSpec, restartable):
    environment = chain_sum.make(Session(restartable.at(patience=0.3)))
    environment.reset(seed=11)
    restartable.kill()
    with pytest.raises(SessionLost):
        environment.answer("1")  # type: ignore[attr-defined]
    assert environment.reward is None
    assert environment.failure


@pytest.mark.long
def test_after_a_timeout_no_reply_is_taken_for_another(chain_sum: EnvironmentSpec, restartable):
    environment = chain_sum.make(Session(restartable.at(message_timeout=0.5)))
    first = environment.reset(seed=1)
    restartable.process.send_signal(signal.SIGSTOP)
    awake = threading.Timer(1.2, restartable.process.send_signal, (signal.SIGCONT,))
    awake.start()
    second = environment.reset(seed=2)
    awake.join()
    assert [environment.reset(seed=seed) for seed in (1, 2)] == [first, second]


def test_a_session_over_the_servers_limit_says_that_it_is_the_limit(chain_sum: EnvironmentSpec):
    with local_server("apprentice.envs.serving.serve", "reasoning_gym", "--max-sessions", "1") as url:
        first = chain_sum.make(Session(EnvironmentServer(url=url)))
        first.reset(seed=1)
        with pytest.raises(SessionLost, match="granted no session"):
            chain_sum.make(Session(EnvironmentServer(url=url, patience=0.2))).reset(seed=1)
        first._close()


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
