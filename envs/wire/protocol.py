"""OpenEnv's client with checked replies.

In: messages. Out: the replies' data. Imported lazily, because importing OpenEnv is slow.
"""

import asyncio
from typing import Any

from openenv.core.generic_client import GenericEnvClient

from apprentice.envs.wire.reply import Reply, data_of, reply_of

MOST_MB = 16.0
"""Maximum size of a message; the connection closes on a longer one."""


class WireClient(GenericEnvClient):
    """Raises BadReply, ServerError and connection errors."""

    async def ask(self, kind: str, payload: dict[str, Any]) -> Reply:
        return reply_of(await self._exchanged({"type": kind, "data": payload}, "observation"))

    async def ask_state(self) -> None:
        await self._exchanged({"type": "state"}, "state")

    async def _exchanged(self, message: dict[str, Any], expected: str) -> dict[str, Any]:
        await self._send(message)
        assert self._ws is not None
        return data_of(await asyncio.wait_for(self._ws.recv(), self._message_timeout), expected)
