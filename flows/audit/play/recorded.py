"""A session that an audit listens to.

In: a server. Out: a `Session` that keeps its replies, and how long its messages took.
"""

from time import perf_counter
from typing import Any

import tenacity

from apprentice.envs.wire.reply import Reply
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Session
from apprentice.envs.wire.waiting import wait_for


class Recorded(Session):
    """A session that records its replies since the last reset, and how long its messages took.

    Attributes:
        resets, steps: Seconds of each round trip.
        replies: The replies of the running episode; the reset's is the first.
    """

    def __init__(self, server: EnvironmentServer, attempts: int | None = None):
        super().__init__(server)
        if attempts is not None:
            self._retry = self._retry.copy(stop=tenacity.stop_after_attempt(attempts))
        self.resets: list[float] = []
        self.steps: list[float] = []
        self.replies: list[Reply] = []

    def reset(self, **question: Any) -> Reply:
        start = perf_counter()
        self.replies = [super().reset(**question)]
        self.resets.append(perf_counter() - start)
        return self.replies[0]

    def step(self, action: dict[str, Any]) -> Reply:
        start = perf_counter()
        try:
            self.replies.append(super().step(action))
        finally:
            self.steps.append(perf_counter() - start)
        return self.replies[-1]

    @property
    def actions(self) -> list[dict[str, Any]]:
        """The actions of the running episode, as they were sent."""
        return self._episode.actions

    def ask(self, action: dict[str, Any]) -> Reply:
        """Send an action as it is, once, without recovery. Raises ServerError, BadReply, OSError, EOFError."""
        if self._client is None:  # the episode before ended with the connection
            raise EOFError("the session has no connection")
        return wait_for(self._client.ask("step", action))

    def vanish(self) -> None:
        """Cut the connection without closing the session, as a process that was killed does."""

        async def cut() -> None:
            if self._client is not None and self._client._ws is not None:
                self._client._ws.transport.abort()
                self._client = None

        wait_for(cut())
