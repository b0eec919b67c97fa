"""OpenEnv's client with checked replies, over openenv-core 0.3 and over its successor openenv 0.10.

In: messages. Out: the replies' data. Imported lazily, because importing OpenEnv is slow.
"""

import asyncio
import json
from typing import Any

from openenv.core.generic_client import GenericEnvClient

from apprentice.envs.wire.reply import Reply, data_of, reply_of

MOST_MB = 16.0
"""Maximum size of a message; the connection closes on a longer one."""


class WireClient(GenericEnvClient):
    """Raises BadReply, ServerError and connection errors."""

    async def ask(self, kind: str, payload: dict[str, Any]) -> Reply:
        return reply_of(await self._exchanged({"type": kind, "data": payload}, "observation"))

    async def ask_state(self) -> dict[str, Any]:
        """Request the session's state and return it."""
        return await self._exchanged({"type": "state"}, "state")

    async def disconnect(self) -> None:
        """Close the connection. A coroutine, as a task needs it; since 0.10 OpenEnv's own is not."""
        await super().disconnect()

    async def _exchanged(self, message: dict[str, Any], expected: str) -> dict[str, Any]:
        if self._ws is None:
            raise EOFError("not connected")
        # not by OpenEnv's own method, which since 0.10 connects anew: to a session that has no episode
        await self._ws.send(json.dumps(message))
        try:
            said = await asyncio.wait_for(self._ws.recv(), self._message_timeout)
        except TimeoutError:
            raise TimeoutError(
                f"no reply to {message['type']} within {self._message_timeout:g} s (server.message_timeout)"
            ) from None
        return data_of(said, expected)
