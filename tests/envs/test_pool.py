"""A pool fills what the server grants, and no more."""

import threading
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.player import Player
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.breaker import Breaker
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Session, SessionLost, connect
from apprentice.envs.wire.waiting import wait_for
from tests.restartable import RestartableServer


class Counting:
    """Plays an episode slowly and notes how many are played at once."""

    def __init__(self):
        self.now = self.most = 0

    def __call__(self, environment: Player, seed: int) -> str:
        self.now += 1
        self.most = max(self.most, self.now)
        question = environment.ask(seed)
        wait_for(sleep(0.02))
        self.now -= 1
        return question


async def sleep(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)


@pytest.mark.long
def test_the_limit_of_a_server_is_found_kept_to_and_said(chain_sum: EnvironmentSpec, monkeypatch: pytest.MonkeyPatch):
    """With one session over it, by which it is found; the others are opened once and played in again and again."""
    opened: list[EnvironmentServer] = []

    async def noted(server: EnvironmentServer) -> Any:
        opened.append(server)
        return await connect(server)

    monkeypatch.setattr("apprentice.envs.wire.session.connect", noted)
    said: list[str] = []
    play = Counting()
    with (
        local_server("apprentice.envs.serving.serve", "reasoning_gym", "--max-sessions", "4") as url,
        EnvironmentPool(chain_sum, EnvironmentServer(url=url, sessions=16), say=said.append) as pool,
    ):
        played = dict(pool.map(play, range(60)))
    assert sorted(played) == list(range(60))
    assert play.most == 4
    assert len(opened) == 4 + 1
    assert len(said) == 1
    assert "grants only 4 concurrent sessions; this stage can use 16" in said[0]


@pytest.mark.long
def test_a_server_whose_sessions_are_all_taken_is_waited_for(chain_sum: EnvironmentSpec):
    said: list[str] = []
    with local_server("apprentice.envs.serving.serve", "reasoning_gym", "--max-sessions", "1") as url:
        other = chain_sum.make(Session(EnvironmentServer(url=url)))
        other.ask(1)
        threading.Timer(0.5, other.close).start()
        with EnvironmentPool(chain_sum, EnvironmentServer(url=url, sessions=2), say=said.append) as pool:
            assert len(list(pool.map(Counting(), range(3)))) == 3
    assert "grants no session: all are in use" in said[0]


@pytest.mark.long
def test_a_server_that_is_not_there_yet_is_waited_for_and_one_that_never_comes_is_lost(chain_sum: EnvironmentSpec):
    server = RestartableServer()
    server.kill()
    said: list[str] = []
    with EnvironmentPool(chain_sum, server.at(patience=0.5), 2) as pool, pytest.raises(SessionLost, match="was down"):
        list(pool.map(Counting(), range(3)))
    threading.Timer(0.5, server.start).start()
    with EnvironmentPool(chain_sum, server.at(patience=60), 2, said.append) as pool:
        assert len(list(pool.map(Counting(), range(3)))) == 3
    server.kill()
    assert "does not answer; waiting up to" in said[0]
    assert "is back after" in said[-1]


def test_what_was_running_is_finished_before_an_error_is_raised(chain_sum: EnvironmentSpec, server: EnvironmentServer):
    def play(environment: Player, seed: int) -> int:
        environment.ask(seed)
        if seed == 3:
            raise RuntimeError("midway")
        wait_for(sleep(0.05))
        return seed

    done: list[Any] = []
    with EnvironmentPool(chain_sum, server, 4) as pool, pytest.raises(RuntimeError, match="midway"):
        done.extend(result for _, result in pool.map(play, range(1000)))
    assert {0, 1, 2} <= set(done)
    assert len(done) < 20


def test_a_pool_that_is_left_in_the_middle_ends_at_once(chain_sum: EnvironmentSpec, server: EnvironmentServer):
    def play(environment: Player, seed: int) -> None:
        environment.ask(seed)
        if seed:
            wait_for(sleep(600))

    with EnvironmentPool(chain_sum, server, 4) as pool:
        next(pool.map(play, range(1000)))
    assert not any(session.is_open for session in pool.sessions)


def test_sessions_that_nobody_played_in_are_closed_with_the_pool(chain_sum: EnvironmentSpec, server: EnvironmentServer):
    with EnvironmentPool(chain_sum, server, 4) as pool:
        pool.open_all()
        assert pool.granted == 4
    assert pool.granted == 0


def test_of_several_that_are_done_together_the_first_failure_is_raised(
    chain_sum: EnvironmentSpec, server: EnvironmentServer
):
    def do(index: int) -> int:
        if index % 2:
            raise ValueError(f"failure of {index}")
        return index

    with EnvironmentPool(chain_sum, server, 4) as pool:
        assert pool.together(lambda index: 2 * index, 4) == [0, 2, 4, 6]
        with pytest.raises(ValueError, match="failure of 1"):
            pool.together(do, 4)


def test_a_probe_that_fails_in_an_unknown_way_leaves_nobody_waiting():
    async def broken() -> None:
        raise KeyError("something unheard of")

    async def outage() -> None:
        breaker = Breaker(EnvironmentServer(url="http://127.0.0.1:9"), broken, lambda text: None)
        for _ in range(3):
            breaker.failed()
        await breaker.wait()

    with pytest.raises(SessionLost, match="something unheard of"):
        wait_for(outage())


@pytest.mark.long
def test_a_server_that_comes_back_with_fewer_places_is_played_to_the_end(chain_sum: EnvironmentSpec):
    """Sessions that lost their place in the middle of an episode get those of sessions between two episodes."""
    server = RestartableServer(capacity=8)

    def play(environment: Player, seed: int) -> float | None:
        environment.ask(seed)
        wait_for(sleep(0.1))
        if seed == 20:
            server.kill()
            threading.Thread(target=server.start, args=(2,)).start()
        environment.act("answer", {"answer": "0"})
        return environment.reward

    with EnvironmentPool(chain_sum, server.at(patience=60), 8) as pool:
        played = dict(pool.map(play, range(60)))
    server.kill()
    assert sorted(played) == list(range(60))
    assert None not in played.values()


def test_sessions_that_are_opened_ahead_are_the_ones_that_are_played_in(task, server: EnvironmentServer):
    with EnvironmentPool(task, server, 3) as pool:
        pool.open_ahead().result()
        assert all(session.is_open for session in pool.sessions)
        clients = [session._client for session in pool.sessions]
        pool.together(lambda place: pool.players[place].ask(place), 3)
        assert [session._client for session in pool.sessions] == clients


def test_opening_ahead_tells_of_a_server_that_is_away(task):
    away = EnvironmentServer(url="http://127.0.0.1:9", patience=0.5)
    with EnvironmentPool(task, away, 2) as pool, pytest.raises(SessionLost):
        pool.open_ahead().result()


def test_a_servers_limit_is_told_once_and_asked_again_after_growing_whiles(monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    server = EnvironmentServer(url="http://there")
    pool = EnvironmentPool(EnvironmentSpec(name="echo"), server, 4, said.append)
    granted = [2]
    monkeypatch.setattr(EnvironmentPool, "granted", property(lambda _: granted[0]))
    assert [pool.at_limit() for _ in range(7)] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert len(said) == 1
    assert "http://there grants only 2 concurrent sessions; this stage can use 4. Continuing with 2" in said[0]
    granted[0] = 1
    assert pool.at_limit() == 30.0
    granted[0] = 3
    assert pool.at_limit() == 1.0
    assert "grants only 3" in said[1]
    other = EnvironmentPool(EnvironmentSpec(name="echo"), server, 4, said.append)
    granted[0] = 0
    assert other.at_limit() == 1.0
    assert said[2:] == ["http://there grants no session: all are in use. Waiting for one."]
