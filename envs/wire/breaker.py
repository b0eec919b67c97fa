"""A circuit breaker for one environment server: while it is away nobody tries but one probe.

In: what happened to the sessions' messages. Out: a wait that ends when the server is back, or SessionLost.
Why: during an outage every session would knock by itself, and a teacher would be paid for turns that cannot be played.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Literal

import tenacity

from apprentice.envs.wire.metrics import count
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.space import Space

FAILURES = 3
"""Connection failures in a row after which the circuit opens."""


outage_listeners: "list[Callable[[Literal['began', 'ended'], EnvironmentServer], None]]" = []
"""Told of every outage that sessions of this process wait for."""


class SessionLost(Exception):
    """The server could not be reached, or went away, for longer than one is patient with it."""


class Breaker:
    """What all sessions of one server share. Lives on the loop of `waiting`.

    Args:
        probe: Asks the server for any sign of life; raises OSError or EOFError when there is none.
        say: Told what is waited for, and that it is over.

    Attributes:
        gave_up: Why the server is not waited for any more, once that is so.
        opening: Held while a session is opened: one after another, so that the server's limit is passed by one at most.
    """

    def __init__(self, server: EnvironmentServer, probe: Callable[[], Awaitable[None]], say: Callable[[str], None]):
        self._server = server
        self._probe = probe
        self._say = say
        self.opening = asyncio.Lock()
        self._space = Space(server.space) if server.space else None
        self._failures = 0
        self._closed = asyncio.Event()
        self._closed.set()
        self.gave_up: str | None = None
        self._probing: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        """Returns when the server is there, as far as is known. Raises SessionLost when it was given up."""
        await self._closed.wait()
        if self.gave_up:
            raise SessionLost(self.gave_up)

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        """Counts a connection failure; the third in a row opens the circuit and starts the probe."""
        self._failures += 1
        if self._failures >= FAILURES and self._closed.is_set() and not self.gave_up:
            self._closed.clear()
            self._probing = asyncio.create_task(self._until_back())

    def stop(self) -> None:
        """Ends the probe; whoever still waits is told that the server is lost."""
        if self._probing is not None:
            self._probing.cancel()
        self.gave_up = self.gave_up or f"{self._server.url}: not waited for any longer"
        self._closed.set()

    async def until_there(self) -> None:
        """Returns when the server answers, at once if it does. Raises SessionLost when it does not for `patience`."""
        try:
            await self._knock()
        except (OSError, EOFError):
            await self._until_back()
            await self.wait()
        else:
            for hear in outage_listeners:  # whoever gave it up before did not see it come back
                hear("ended", self._server)

    async def _until_back(self) -> None:
        away = time.monotonic()
        for hear in outage_listeners:
            hear("began", self._server)
        self._say(f"{self._server.url} does not answer; waiting for it, for {self._server.patience:.0f} s at most.")
        try:
            await tenacity.AsyncRetrying(
                retry=tenacity.retry_if_exception_type((OSError, EOFError)),
                wait=tenacity.wait_exponential(multiplier=0.25, max=20.0) + tenacity.wait_random(0.0, 0.25),
                stop=tenacity.stop_before_delay(self._server.patience),
                before_sleep=self._tell,
                reraise=True,
            )(self._knock)
        except Exception as error:
            stage = f" ({self._space})" if self._space else ""
            self.gave_up = f"{self._server.url} was away for {time.monotonic() - away:.0f} s: {why(error)}{stage}"
        else:
            self._say(f"{self._server.url} is back after {time.monotonic() - away:.0f} s.")
        finally:
            count("waited_s", time.monotonic() - away)
            if not self.gave_up:
                for hear in outage_listeners:
                    hear("ended", self._server)
            self._failures = 0
            self._closed.set()

    async def _knock(self) -> None:
        if self._space is not None:
            await asyncio.to_thread(self._space.wake)
        await self._probe()

    def _tell(self, state: tenacity.RetryCallState) -> None:
        assert state.outcome is not None
        assert state.next_action is not None
        error = state.outcome.exception()
        assert error is not None
        stage = f" {self._space}." if self._space else ""
        self._say(f"Waiting for {self._server.url} ({why(error)}).{stage} Next try in {state.next_action.sleep:.1f} s.")


def why(error: BaseException) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) and not str(error) else str(error)
