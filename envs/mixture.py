"""Several servers that are used as one: those of a mixture, or copies of one server.

In: the server of each environment of the mixture, or of each copy. Out: what a pool uses in place of a `Session` and a
`Breaker`.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from apprentice.envs.wire.breaker import Breaker
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Reply, Session, breaker_of
from apprentice.envs.wire.waiting import wait_for


class SeveralBreakers(Breaker):
    """Several servers that are available when all of them are: those of a mixture by name, or copies of one by URL."""

    def __init__(self, servers: dict[str, EnvironmentServer], say: Callable[[str], None]):
        self.parts = {name: breaker_of(part, say) for name, part in servers.items()}

    @property
    def gave_up(self) -> str | None:  # type: ignore[override]
        return next((part.gave_up for part in self.parts.values() if part.gave_up), None)

    async def wait(self) -> None:
        for part in self.parts.values():
            await part.wait()

    async def until_there(self) -> None:
        for part in self.parts.values():
            await part.until_there()

    def stop(self) -> None:
        for part in self.parts.values():
            part.stop()


class SessionOfParts(Session):
    """One session per server; each environment of the mixture plays over its own."""

    def __init__(
        self,
        server: EnvironmentServer,
        breaker: SeveralBreakers,
        lease: Callable[[EnvironmentServer], Callable[[], AbstractAsyncContextManager[Any]]],
    ):
        self.server = server
        self._breaker = breaker
        self._sessions = {name: Session(part, breaker.parts[name], lease(part)) for name, part in server.parts.items()}

    def part(self, name: str) -> Session:
        return self._sessions[name]

    @property
    def is_open(self) -> bool:
        return all(session.is_open for session in self._sessions.values())

    def join(self, host: Session) -> None:
        """Take turns with `host` in the session of every part."""
        assert isinstance(host, SessionOfParts)
        for name, session in self._sessions.items():
            session.join(host.part(name))

    @property
    def turned_away(self) -> bool:  # type: ignore[override]
        return any(session.turned_away for session in self._sessions.values())

    def reset(self, **question: Any) -> Reply:
        raise TypeError("a mixture is played through the sessions of its parts")

    step = reset  # type: ignore[assignment]

    async def open(self, patient: bool = False) -> None:
        """Open the sessions of all parts. Raises the same as `Session.open`."""
        for session in self._sessions.values():
            await session.open(patient)

    async def shut(self) -> None:
        await asyncio.gather(*(session.shut() for session in self._sessions.values()))

    @property
    def is_guest(self) -> bool:
        return any(session.is_guest for session in self._sessions.values())

    @property
    def is_shared(self) -> bool:  # type: ignore[override]
        return any(session.is_shared for session in self._sessions.values())

    def wait_for_server(self) -> None:
        wait_for(self._breaker.wait())
