"""What a server says about itself, before an episode is played.

In: a server. Out: its name, such as EchoEnvironment, and its version; the schema of its actions; why it is no server of
OpenEnv's protocol.
"""

import asyncio
import json
from contextlib import suppress
from typing import Any, NamedTuple

from apprentice.envs.wire.reply import one_line
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.waiting import wait_for


class Metadata(NamedTuple):
    name: str
    version: str


def metadata_of(server: EnvironmentServer) -> Metadata:
    """Return what the server's /metadata says."""
    document = wait_for(_document(server, "/metadata"))
    document = document if isinstance(document, dict) else {}
    return Metadata(str(document.get("name") or ""), str(document.get("version") or ""))


async def action_of(server: EnvironmentServer) -> dict[str, Any] | None:
    """Return the JSON schema of a server's action, from its /schema; None where it has none."""
    document = await _document(server, "/schema")
    action = document.get("action") if isinstance(document, dict) else None
    return action if isinstance(action, dict) else None


def schema_fails(server: EnvironmentServer) -> bool:
    """Whether the server's /schema fails in its own code, as it does for an action that JSON cannot describe."""
    import httpx

    try:
        answer = httpx.get(f"{server.url}/schema", timeout=server.message_timeout, follow_redirects=True)
    except httpx.HTTPError:
        return False
    return answer.status_code >= 500


OLDER = (
    "Episodes are played over OpenEnv's WebSocket. Such a server was made by hand, by an openenv-core that is too "
    "old, or speaks a protocol of its own: serve its environment with create_app of openenv-core 0.2 or newer."
)
"""What to do about a server that answers, but not by OpenEnv's protocol."""
ITS_OWN = "See its log: its author has to mend it, or it misses a package, a key, or a setting."
"""What to do about a server that speaks OpenEnv's protocol, and grants no session."""
SLOW = (
    "Its environment may take longer to begin, or wait for another server that is not there: see its log. In a recipe, "
    "server.message_timeout: 120 waits longer."
)
"""What to do about a server that takes a connection and says nothing."""
NOT_NOW = (429, 500, 502, 503, 504)
"""Statuses of a server that is starting, asleep or overloaded."""
FOR_GOOD = (1002, 1003, 1007, 1008)
"""Codes of a closed WebSocket that the same first message leads to again; so do those from 3000 on."""


class Foreign(NamedTuple):
    """Why no session can be had of a server that answers, and what to do about it."""

    reason: str
    remedy: str = OLDER


async def why_foreign(server: EnvironmentServer) -> Foreign | None:
    """Return why a server that answers grants no session by OpenEnv's protocol; None if it does, or may do so later."""
    from websockets.asyncio.client import connect
    from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus

    address = server.url.replace("http", "ws", 1).rstrip("/") + "/ws"
    try:
        async with connect(address, open_timeout=server.message_timeout, close_timeout=1.0) as socket:
            with suppress(ConnectionClosed):  # what it said before it closed can be read all the same
                await socket.send(json.dumps({"type": "state"}))
            said = await asyncio.wait_for(socket.recv(), server.message_timeout)
    except InvalidStatus as refused:
        status = refused.response.status_code
        has_steps = "; it takes /reset and /step over HTTP, without sessions" if await _has_http_steps(server) else ""
        return None if status in NOT_NOW else Foreign(f"it has no WebSocket at /ws (status {status}){has_steps}")
    except (InvalidMessage, InvalidHandshake) as error:
        return Foreign(f"what is at /ws is no WebSocket ({one_line(error, 100)})")
    except TimeoutError:
        return Foreign(f"its WebSocket at /ws answers nothing within {server.message_timeout:g} s", SLOW)
    except ConnectionClosed as closed:
        code, why = (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (0, "")
        said = f"its WebSocket at /ws closes at the first message ({one_line(f'{code} {why}'.strip(), 100)})"
        return Foreign(said) if code in FOR_GOOD or code >= 3000 else None
    except OSError:
        return None
    try:
        message = json.loads(said)
    except ValueError:
        message = None
    if not isinstance(message, dict) or message.get("type") not in ("state", "error"):
        return Foreign(f"its WebSocket at /ws does not answer as OpenEnv's does, but with {one_line(said, 80)}")
    about = message.get("data")
    if isinstance(about, dict) and about.get("code") == "FACTORY_ERROR":
        return Foreign(f"it makes no environment: {one_line(str(about.get('message')).rstrip('. '), 160)}", ITS_OWN)
    return None


async def _has_http_steps(server: EnvironmentServer) -> bool:
    document = await _document(server, "/openapi.json")
    paths = document.get("paths") if isinstance(document, dict) else None
    return isinstance(paths, dict) and {"/reset", "/step"} <= paths.keys()


async def _document(server: EnvironmentServer, path: str) -> Any:
    """Return the JSON at a path; None where there is none."""
    import httpx

    try:
        async with httpx.AsyncClient(timeout=server.message_timeout, follow_redirects=True) as client:
            return (await client.get(f"{server.url}{path}")).json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        return None
