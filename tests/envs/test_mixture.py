"""A mixture's session and breaker are those of all its parts."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from apprentice.envs import mixture
from apprentice.envs.mixture import SessionOfParts, SeveralBreakers
from apprentice.envs.wire.server import EnvironmentServer

PARTS = {name: EnvironmentServer(url=f"http://{name}") for name in ("a", "b")}
SERVER = EnvironmentServer(parts=PARTS)


class Part:
    """A breaker or a session of one server; keeps what it is told."""

    def __init__(self, *given: Any):
        self.given = given
        self.calls: list[Any] = []
        self.gave_up: str | None = None
        self.is_open = True
        self.turned_away = False

    async def wait(self) -> None:
        self.calls.append("wait")

    async def until_there(self) -> None:
        self.calls.append("until there")

    def stop(self) -> None:
        self.calls.append("stop")

    async def open(self, patient: bool) -> None:
        self.calls.append(("open", patient))

    async def shut(self) -> None:
        self.calls.append("shut")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    monkeypatch.setattr(mixture, "breaker_of", Part)
    monkeypatch.setattr(mixture, "Session", Part)
    breaker = SeveralBreakers(PARTS, print)
    session = SessionOfParts(SERVER, breaker, lambda part: f"lease of {part.url}")  # type: ignore[arg-type, return-value]
    return SimpleNamespace(breaker=breaker, session=session, parts=breaker.parts, sessions=session._sessions)


def test_each_part_has_a_session_of_its_own_over_its_own_server(made: SimpleNamespace):
    for name, server in PARTS.items():
        assert made.parts[name].given == (server, print)
        assert made.session.part(name) is made.sessions[name]
        assert made.sessions[name].given == (server, made.parts[name], f"lease of {server.url}")
    assert made.session.server == SERVER


def test_the_breaker_waits_for_all_servers_and_gives_up_with_the_first(made: SimpleNamespace):
    assert made.breaker.gave_up is None
    asyncio.run(made.breaker.wait())
    asyncio.run(made.breaker.until_there())
    made.breaker.stop()
    assert [part.calls for part in made.parts.values()] == [["wait", "until there", "stop"]] * 2
    made.parts["b"].gave_up = "b is gone"
    assert made.breaker.gave_up == "b is gone"
    made.parts["a"].gave_up = "a is gone"
    assert made.breaker.gave_up == "a is gone"


@pytest.mark.parametrize("patient", [True, False])
def test_the_session_is_open_when_all_are_and_turned_away_when_one_is(patient: bool, made: SimpleNamespace):
    asyncio.run(made.session.open(patient))
    asyncio.run(made.session.shut())
    assert [each.calls for each in made.sessions.values()] == [[("open", patient), "shut"]] * 2
    assert (made.session.is_open, made.session.turned_away) == (True, False)
    made.sessions["b"].is_open, made.sessions["b"].turned_away = False, True
    assert (made.session.is_open, made.session.turned_away) == (False, True)


def test_the_mixture_itself_is_not_played_and_waits_for_its_servers(made: SimpleNamespace):
    for play in (made.session.reset, made.session.step):
        with pytest.raises(TypeError, match="through the sessions of its parts"):
            play(seed=1)
    made.session.wait_for_server()
    assert [part.calls for part in made.parts.values()] == [["wait"]] * 2
