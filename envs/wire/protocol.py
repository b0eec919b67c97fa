"""OpenEnv's client, with our reading of what the server answers.

In: messages. Out: the data of the replies. Imported late, as OpenEnv is.
"""

import asyncio
from typing import Any

from openenv.core.generic_client import GenericEnvClient

from apprentice.envs.wire.reply import Reply, data_of, reply_of

MOST_MB = 16.0
"""Of one message; the server's connection is closed on a longer one."""


class WireClient(GenericEnvClient):
    """Raises BadReply, ServerError, and what a connection raises."""

    async def ask(self, kind: str, payload: dict[str, Any]) -> Reply:
        """A reset or a step."""
        return reply_of(await self._exchanged({"type": kind, "data": payload}, "observation"))

    async def ask_state(self) -> None:
        """Asks for the session's state, and returns when it was told."""
        await self._exchanged({"type": "state"}, "state")

    async def _exchanged(self, message: dict[str, Any], expected: str) -> dict[str, Any]:
        await self._send(message)
        assert self._ws is not None
        return data_of(await asyncio.wait_for(self._ws.recv(), self._message_timeout), expected)
