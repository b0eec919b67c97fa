"""Waits for a server that is away: one probe for all sessions of a pool, and a restart of its Space.

In: the success or failure of the sessions' messages. Out: a wait that ends when the server is back, or SessionLost.
Why: otherwise every session would retry by itself, and a teacher would be paid for turns that cannot be played.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tenacity

from apprentice.envs.wire.metrics import count
from apprentice.envs.wire.server import EnvironmentServer, SessionLost, outage_listeners

if TYPE_CHECKING:
    from huggingface_hub import HfApi

RESTARTED = ("SLEEPING", "PAUSED", "STOPPED", "RUNTIME_ERROR")
"""Stages in which a restart helps."""


@dataclass
class Space:
    """A Space on the Hub. `str(space)` describes its last known stage."""

    repository: str
    _api: "HfApi | None" = None
    _known: str = "its stage is unknown"
    _restarted: str | None = None

    def __str__(self) -> str:
        return f"Space {self.repository}: {self._known}"

    def wake(self) -> None:
        """Read the stage, and request one restart each time the Space enters a stage in which a restart helps."""
        from huggingface_hub import HfApi

        api = self._api or HfApi()
        try:
            stage = str(api.get_space_runtime(self.repository).stage)
        except Exception as error:  # the server itself may be back: the probe decides
            self._known = f"the Hub did not return its stage ({_brief(error)})"
            return
        if stage not in RESTARTED:
            self._known, self._restarted = f"stage {stage}", None
        elif self._restarted != stage:
            self._restarted = stage
            try:
                api.restart_space(self.repository)
                self._known = f"stage {stage}; a restart was requested"
            except Exception as error:
                self._known = f"stage {stage}; a restart was refused ({_brief(error)}): its owner must restart it"


def _brief(error: Exception) -> str:
    """Describe an error without its message, which may quote a token."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return f"status {status}" if status else type(error).__name__


FAILURES = 3
"""Consecutive connection failures after which the circuit opens."""


class Breaker:
    """Shared by all sessions of one server. Runs on the event loop of `waiting`.

    Args:
        probe: Checks that the server answers; raises OSError or EOFError if it does not.
        say: Called with a message about the outage.

    Attributes:
        gave_up: Why the breaker no longer waits for the server; None while it does.
        opening: Held while a session is opened: one at a time, so that the server's limit is exceeded by one at most.
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
        """Wait while the circuit is open. Raises SessionLost if the breaker gave up."""
        await self._closed.wait()
        if self.gave_up:
            raise SessionLost(self.gave_up)

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        """Count a connection failure; the third in a row opens the circuit and starts the probe."""
        self._failures += 1
        if self._failures >= FAILURES and self._closed.is_set() and not self.gave_up:
            self._closed.clear()
            self._probing = asyncio.create_task(self._until_back())

    def stop(self) -> None:
        """End the probe; callers that still wait get SessionLost."""
        if self._probing is not None:
            self._probing.cancel()
        self.gave_up = self.gave_up or f"{self._server.url}: stopped waiting for it"
        self._closed.set()

    async def until_there(self) -> None:
        """Wait until the server answers. Raises SessionLost if it does not within `patience`."""
        try:
            await self._wake_and_probe()
        except (OSError, EOFError):
            await self._until_back()
            await self.wait()
        else:
            for listener in outage_listeners:  # a breaker that gave up did not report the end of the outage
                listener("ended", self._server)

    async def _until_back(self) -> None:
        began = time.monotonic()
        for listener in outage_listeners:
            listener("began", self._server)
        self._say(f"{self._server.url} does not answer; waiting up to {self._server.patience:.0f} s for it.")
        try:
            await tenacity.AsyncRetrying(
                retry=tenacity.retry_if_exception_type((OSError, EOFError)),
                wait=tenacity.wait_exponential(multiplier=0.25, max=20.0) + tenacity.wait_random(0.0, 0.25),
                stop=tenacity.stop_before_delay(self._server.patience),
                before_sleep=self._report,
                reraise=True,
            )(self._wake_and_probe)
        except Exception as error:
            stage = f" ({self._space})" if self._space else ""
            self.gave_up = f"{self._server.url} was down for {time.monotonic() - began:.0f} s: {why(error)}{stage}"
        else:
            self._say(f"{self._server.url} is back after {time.monotonic() - began:.0f} s.")
        finally:
            count("waited_s", time.monotonic() - began)
            if not self.gave_up:
                for listener in outage_listeners:
                    listener("ended", self._server)
            self._failures = 0
            self._closed.set()

    async def _wake_and_probe(self) -> None:
        if self._space is not None:
            await asyncio.to_thread(self._space.wake)
        await self._probe()

    def _report(self, state: tenacity.RetryCallState) -> None:
        assert state.outcome is not None
        assert state.next_action is not None
        error = state.outcome.exception()
        assert error is not None
        stage = f" {self._space}." if self._space else ""
        self._say(f"Waiting for {self._server.url} ({why(error)}).{stage} Next try in {state.next_action.sleep:.1f} s.")


def why(error: BaseException) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) and not str(error) else str(error)
