"""A session with an OpenEnv server that recovers from faults.

In: resets and steps as plain dictionaries. Out: `Reply`.
Why: OpenEnv's client keeps a dead socket for ever, and after a timeout every later call gets the reply of the call
before. So any failure discards the session, and the episode is replayed on a new one: the same reset, the same actions,
then the one that failed. In the same way several episodes take turns in one session of a server that grants no more.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from typing import TYPE_CHECKING, Any

import tenacity

from apprentice.envs.wire.breaker import Breaker, why
from apprentice.envs.wire.metrics import count
from apprentice.envs.wire.passing import difference
from apprentice.envs.wire.reply import BadReply, Reply, ServerError
from apprentice.envs.wire.retry import stop_after_failing_for
from apprentice.envs.wire.server import EnvironmentServer, SessionLost
from apprentice.envs.wire.waiting import wait_for

if TYPE_CHECKING:
    from apprentice.envs.wire.protocol import WireClient

ATTEMPTS = 8
"""Attempts per exchange while the server is reachable; waiting during an outage does not count."""


GRANTED = ("EXECUTION_ERROR", "VALIDATION_ERROR", "UNKNOWN_TYPE")
"""Error codes with which a granted session may answer a request for its state."""


ENDED = "SESSION_ERROR"
"""The error code with which openenv-core ends a session on a message that it cannot handle."""


CRASHED = "the server crashed during a step"
"""How the message begins of a server's exception that an action caused."""


class Refused(Exception):
    """The server rejected the request: an invalid configuration, an unknown dataset."""


class Crashed(BadReply):
    """The server raised an exception on an action.

    Attributes:
        reason: What it said of it.
    """

    def __init__(self, reason: str):
        super().__init__(f"{CRASHED}: {reason}")
        self.reason = reason


class ActionRefused(ValueError):
    """The server ends the session on an action, and again after the episode was replayed: it refuses the action."""


class AtCapacity(Exception):
    """The server grants no further session: it accepts the connection and closes it with 1000 (OK)."""


class WireEpisode:
    """What puts an episode back: its reset, its actions so far, and what the server replied.

    Args:
        starts_anew: Whether it begins on a connection of its own.
        skipped: Resets of the connection before the one that begins the episode.

    Attributes:
        ended_on: The action on which the server ended the session, if it did so on the last one.
    """

    def __init__(self, question: dict[str, Any], starts_anew: bool = False, skipped: int = 0):
        self.ended_on: dict[str, Any] | None = None
        self.question = question
        self.starts_anew = starts_anew
        self.skipped = skipped
        self.actions: list[dict[str, Any]] = []
        self.replies: list[Reply | None] = []


class Session:
    """A resilient session for one caller at a time, or for several that take turns (`join`).

    Args:
        breaker: Shared by the sessions of one pool; defaults to a new one.
        lease: Entered when the session opens and left when it closes: a slot of a limit shared between runs.

    Attributes:
        starts_anew: Whether the next episodes begin on a connection of their own each, for servers whose second reset
            in a session is another one than the first.
        skipped: Resets before the one that begins each, for servers whose resets of a session go through their tasks in
            turn; with `starts_anew`.
        is_shared: Whether other sessions take turns in this one.
        turned_away: Whether the session lost its slot on the server during an episode and waits for another.
    """

    def __init__(
        self,
        server: EnvironmentServer,
        breaker: Breaker | None = None,
        lease: Callable[[], AbstractAsyncContextManager[Any]] = nullcontext,
    ):
        self.server = server
        self.starts_anew = False
        self.skipped = 0
        self.turned_away = False
        self._breaker = breaker or breaker_of(server)
        self._lease = lease
        self._leased: AsyncExitStack | None = None
        self._client: WireClient | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._host = self
        self._turn = asyncio.Lock()
        self._episode = WireEpisode({})
        self._on_server: WireEpisode | None = None
        self.is_shared = False
        self._retry = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type((OSError, EOFError)),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=5.0),
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            reraise=True,
        )
        self._wait_for_place = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(AtCapacity),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=2.0),
            stop=stop_after_failing_for(server.patience),
            before_sleep=self._note_turned_away,
            reraise=True,
        )

    def reset(self, **question: Any) -> Reply:
        """Start the episode that `question` identifies. Raises Refused, BadReply, SessionLost."""
        self._episode = WireEpisode(question, self.starts_anew, self.skipped)
        reply = wait_for(self._exchange("reset", question))
        self._keep(reply)
        return reply

    def step(self, action: dict[str, Any]) -> Reply:
        """Send one action of the current episode. Raises Refused, ActionRefused, BadReply, SessionLost."""
        self._episode.ended_on = None
        reply = wait_for(self._exchange("step", action))
        self._episode.actions.append(action)
        self._keep(reply)
        return reply

    def _keep(self, reply: Reply) -> None:
        self._episode.replies.append(reply if self._host.is_shared else None)

    def state(self) -> dict[str, Any]:
        """Return the server's state of the current episode. Raises BadReply, SessionLost."""
        return wait_for(self._in_turn(self._host._ask_state, self._episode))

    def join(self, host: "Session") -> None:
        """Take turns with `host` in its session: an episode is put back by its reset and its earlier actions."""
        self._host = host
        host.is_shared = True

    @property
    def is_guest(self) -> bool:
        """Whether it takes turns in another session."""
        return self._host is not self

    def wait_for_server(self) -> None:
        """Wait until the server is not known to be unavailable. Raises SessionLost."""
        wait_for(self._breaker.wait())

    def renew(self) -> None:
        """Drop the connection; the next message opens a new one."""

        async def leave() -> None:
            async with self._host._turn:
                self._host._throw_away()

        wait_for(leave())

    @property
    def is_open(self) -> bool:
        return self._host._client is not None

    def close(self) -> None:
        """Close the session on the server, if it is reachable, and release the lease."""
        wait_for(self.shut())

    async def shut(self) -> None:
        """`close` for callers on the event loop. A session that is another one's stays open for the others."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.disconnect()
        await asyncio.gather(*self._leaving)
        if self._leased is not None:
            leased, self._leased = self._leased, None
            await leased.aclose()

    async def open(self, patient: bool = False) -> None:
        """Take a lease and open the session. Raises SessionLost; AtCapacity at once unless `patient`."""
        await self._host._persist(self._host._connected, patient=patient)

    async def _exchange(self, kind: str, payload: dict[str, Any]) -> Reply:
        return await self._in_turn(self._host._send, self._episode, kind, payload)

    async def _in_turn(self, do: Callable[..., Any], *given: Any) -> Any:
        async with self._host._turn:
            return await self._host._persist(do, *given)

    async def _persist(self, do: Callable[..., Any], *given: Any, patient: bool = True) -> Any:
        try:
            return await self._once(do, *given)  # the common case: tenacity would add a tenth to an exchange
        except (OSError, EOFError):
            pass
        except AtCapacity:
            if not patient:
                raise
        try:
            if patient:
                return await self._wait_for_place(self._retry.copy(), self._once, do, *given)
            return await self._retry(self._once, do, *given)
        except AtCapacity as error:
            if not patient:
                raise
            raise SessionLost(f"{self.server.url} granted no session for {self.server.patience:.0f} s") from error
        except (OSError, EOFError) as error:
            raise SessionLost(f"{self.server.url}: {why(error)}, {ATTEMPTS} times in a row") from error
        finally:
            self.turned_away = False

    def _note_turned_away(self, _: tenacity.RetryCallState) -> None:
        self.turned_away = True

    async def _once(self, do: Callable[..., Any], *given: Any) -> Any:
        """Make one attempt. Any failure drops the connection; the breaker counts connection failures. A crash may have
        left half of a step behind, so the episode is put back before its next message."""
        from websockets.exceptions import ConnectionClosed

        try:
            await self._breaker.wait()
            result = await do(*given)
        except Refused:
            raise
        except Crashed:
            if self._on_server is not None and self._on_server.starts_anew:
                self._throw_away()
            self._on_server = None
            raise
        except (OSError, EOFError, ConnectionClosed) as error:
            self._throw_away()
            self._breaker.failed()
            raise EOFError(why(error)) from error
        except BaseException:  # cancelled or at capacity: an unread reply must never be read later
            self._throw_away()
            raise
        self._breaker.succeeded()
        return result

    async def _send(self, episode: WireEpisode, kind: str, payload: dict[str, Any]) -> Reply:
        if kind == "reset" and episode.starts_anew and self._on_server is not None:
            self._throw_away()
        client = await (self._connected() if kind == "reset" else self._in_episode(episode))
        self._on_server = episode
        try:
            return await (_begun(client, episode) if kind == "reset" else client.ask(kind, payload))
        except ServerError as error:
            found = meaning(error, kind)
            if kind != "step" or error.code != ENDED:
                raise found from error
            if payload is episode.ended_on:
                self._breaker.succeeded()
                raise ActionRefused(_refusal(error)) from error
            episode.ended_on = payload
            raise found from error

    async def _ask_state(self, episode: WireEpisode) -> dict[str, Any]:
        client = await self._in_episode(episode)
        try:
            return await client.ask_state()
        except ServerError as error:
            raise meaning(error, "state") from error

    async def _in_episode(self, episode: WireEpisode) -> "WireClient":
        """Return the connected client; on a new connection, or after another episode's turn, the episode so far was
        replayed."""
        if episode.starts_anew and self._on_server not in (None, episode):
            self._throw_away()
        is_new = self._client is None
        client = await self._connected()
        if is_new or self._on_server is not episode:
            self._on_server = None
            await self._rebuild(client, episode)
            self._on_server = episode
        return client

    async def _connected(self) -> "WireClient":
        """Return the connected client; connect if there is none."""
        if self._client is not None:
            return self._client
        if self._leased is None:
            leased = AsyncExitStack()
            await leased.enter_async_context(self._lease())
            self._leased = leased
        async with self._breaker.opening:
            await self._breaker.wait()
            self._client = await connect(self.server)
        return self._client

    async def _rebuild(self, client: "WireClient", episode: WireEpisode) -> None:
        """Replay the episode so far. Raises SessionLost if the server crashes on an action that it took before, and
        BadReply if another one's turn came between and a reply is another one."""
        replies: list[Reply] = []
        try:
            replies.append(await _begun(client, episode))
            for action in episode.actions:
                replies.append(await client.ask("step", action))
        except (BadReply, ServerError) as error:  # the server accepted all of this before
            found = meaning(error, "step" if replies else "reset") if isinstance(error, ServerError) else error
            lost = f"the episode could not be replayed on a new session: {error}"
            raise (SessionLost if isinstance(found, Crashed) else ConnectionError)(lost) from found
        if self.is_shared:
            count("replayed", len(replies))
            for then, now in zip(episode.replies, replies, strict=False):
                if differs := difference(then, now):
                    raise BadReply(f"the server replies otherwise when an episode is replayed: {differs}")

    def _throw_away(self) -> None:
        """Disconnect in the background: closing a connection to a server that hangs takes long."""
        self._on_server = None
        if self._client is not None:
            count("reconnects")
            leaving = asyncio.create_task(self._client.disconnect())
            self._client = None
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)


async def _begun(client: "WireClient", episode: WireEpisode) -> Reply:
    """Send an episode's reset, after those that it skips."""
    for _ in range(episode.skipped):
        await client.ask("reset", episode.question)
    return await client.ask("reset", episode.question)


def breaker_of(server: EnvironmentServer, say: Callable[[str], None] = lambda text: None) -> Breaker:
    """Return a circuit breaker that probes the server by opening a session."""
    return Breaker(server, lambda: probe(server), say)


def wait_until_there(server: EnvironmentServer, say: Callable[[str], None]) -> None:
    """Wait up to the server's `patience` until it answers; restart its Space if needed. Raises SessionLost."""
    wait_for(breaker_of(server, say).until_there())


def meaning(error: ServerError, kind: str) -> Exception:
    """Translate a server's error: it rejected the message, crashed on it, or is temporarily unable to answer."""
    if error.code == "VALIDATION_ERROR" or (error.code == "EXECUTION_ERROR" and kind == "reset"):
        return Refused(str(error))
    if error.code == "EXECUTION_ERROR":
        return Crashed(str(error))
    return ConnectionError(str(error))


def _refusal(error: ServerError) -> str:
    """Return what the player reads. openenv-core 0.3 cannot send the error of an action's validator."""
    said = str(error)
    if "serialize" in said:
        return "The environment refuses this action: its values are not allowed."
    return f"The environment refuses this action: {said}"


async def connect(server: EnvironmentServer) -> "WireClient":
    """Return a connected client whose session the server has granted. Raises AtCapacity, OSError, EOFError.

    The server also accepts connections over its limit and then closes them, so this requests the session's state.
    """
    from websockets.exceptions import ConnectionClosed

    from apprentice.envs.wire.protocol import MOST_MB, WireClient

    client = WireClient(
        server.url,
        connect_timeout_s=min(10.0, server.message_timeout),
        message_timeout_s=server.message_timeout,
        max_message_size_mb=MOST_MB,
    )
    await client.connect()
    try:
        await client.ask_state()
    except ConnectionClosed as closed:
        if closed.rcvd is not None and closed.rcvd.code == 1000:
            raise AtCapacity from closed
        raise EOFError(f"connection closed ({closed})") from closed
    except ServerError as error:
        if error.code in GRANTED:
            return client
        await client.disconnect()
        raise (AtCapacity() if error.code == "CAPACITY_REACHED" else ConnectionError(str(error))) from error
    except BadReply as bad:
        await client.disconnect()
        raise ConnectionError(f"it does not speak OpenEnv's protocol: {bad}") from bad
    except BaseException:
        await client.disconnect()
        raise
    return client


async def probe(server: EnvironmentServer) -> None:
    """Check that the server answers. Raises OSError, EOFError if it does not."""
    try:
        client = await connect(server)
    except AtCapacity:
        return
    await client.disconnect()
