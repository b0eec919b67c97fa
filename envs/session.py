"""One session of an OpenEnv server that comes back after a fault.

In: resets and steps as plain dictionaries. Out: `Reply`.
Why: OpenEnv's client keeps a dead socket for ever, and after a message timed out it hands every later call the reply
of the one before. So a session that failed in any way is thrown away, and the episode is rebuilt on a new one: the same
full reset, the same actions again, then the one that failed.
"""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, NamedTuple, TypeVar

import tenacity

T = TypeVar("T")


class SessionLost(Exception):
    """The server could not be reached, or went away, for longer than the session is patient."""


class Refused(Exception):
    """The server understood and said no: a configuration that it does not accept, an unknown dataset."""


class Reply(NamedTuple):
    """What the server answered: the observation's fields, and whether the episode is over."""

    observation: dict[str, Any]
    reward: float | None
    done: bool


class Session:
    """A resilient session. One caller at a time.

    Args:
        url: The server's address, http:// or https://.
        patience: Seconds that one call may take over all its attempts, reconnecting and rebuilding included.
        message_timeout: Seconds after which a single message counts as lost.
    """

    def __init__(self, url: str, patience: float = 60.0, message_timeout: float = 20.0):
        self.url = url
        self._message_timeout = message_timeout
        self._client = None
        self._question: dict[str, Any] = {}
        self._actions: list[dict[str, Any]] = []
        self._retry = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type((OSError, EOFError, asyncio.TimeoutError)),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=5.0),
            stop=tenacity.stop_after_delay(patience),
            reraise=True,
        )

    def reset(self, **question: Any) -> Reply:
        """Starts the episode that `question` names. Raises Refused, SessionLost."""
        self._question, self._actions = question, []
        return self._run(self._exchange("reset", question))

    def step(self, action: dict[str, Any]) -> Reply:
        """Sends one action of the episode that `reset` started. Raises Refused, SessionLost."""
        reply = self._run(self._exchange("step", action))
        self._actions.append(action)
        return reply

    def close(self) -> None:
        """Ends the session on the server, as far as it can still be reached."""
        if self._client is not None:
            client, self._client = self._client, None
            _on_loop(client.disconnect())

    def _run(self, exchange: Coroutine[Any, Any, Reply]) -> Reply:
        try:
            return _on_loop(exchange)
        except (TimeoutError, OSError, EOFError) as error:
            raise SessionLost(f"{self.url}: {_why(error)}") from error

    async def _exchange(self, kind: str, payload: dict[str, Any]) -> Reply:
        async for attempt in self._retry.copy():
            with attempt:
                return await self._send(kind, payload)
        raise AssertionError("tenacity ends in a return or an exception")

    async def _send(self, kind: str, payload: dict[str, Any]) -> Reply:
        from websockets.exceptions import ConnectionClosed

        try:
            if self._client is None:
                await self._reconnect()
                if kind == "step":
                    await self._rebuild()
            client = self._client
            assert client is not None
            result = await (client.reset(**payload) if kind == "reset" else client.step(payload))
        except (TimeoutError, OSError):
            await self._throw_away()
            raise
        except ConnectionClosed as closed:
            await self._throw_away()
            raise EOFError(_closed(closed)) from closed
        except RuntimeError as error:  # OpenEnv raises it for every reply of type "error"
            if not str(error).startswith("Server error: "):
                raise
            if "CAPACITY_REACHED" in str(error):
                await self._throw_away()
                raise EOFError(f"the server grants no further session: {error}") from error
            raise Refused(str(error).removeprefix("Server error: ")) from error
        return Reply(result.observation, result.reward, result.done)

    async def _reconnect(self) -> None:
        from openenv.core.generic_client import GenericEnvClient

        client = GenericEnvClient(self.url, connect_timeout_s=10.0, message_timeout_s=self._message_timeout)
        await client.connect()
        self._client = client

    async def _rebuild(self) -> None:
        """Brings a new server session to where the lost one was."""
        assert self._client is not None
        await self._client.reset(**self._question)
        for action in self._actions:
            await self._client.step(action)

    async def _throw_away(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.disconnect()


def _closed(closed: Any) -> str:
    if closed.rcvd is not None and closed.rcvd.code == 1000:
        return "the server closed the session with 1000 (OK), as it does over its limit of concurrent sessions"
    return f"connection closed ({closed})"


def _why(error: BaseException) -> str:
    return "no answer in time" if isinstance(error, asyncio.TimeoutError) else str(error)


_starting = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def _on_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on the one event loop, in a daemon thread, that all sessions of the process share."""
    global _loop
    with _starting:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="openenv-sessions", daemon=True).start()
    return asyncio.run_coroutine_threadsafe(coroutine, _loop).result()
