"""A server's own metadata.

In: a server. Out: its name, such as EchoEnvironment, and its version; empty if it has none.
"""

from typing import NamedTuple

from apprentice.envs.wire.server import EnvironmentServer


class Metadata(NamedTuple):
    name: str
    version: str


def metadata_of(server: EnvironmentServer) -> Metadata:
    """Return what the server's /metadata says."""
    import httpx

    try:
        told = httpx.get(f"{server.url}/metadata", timeout=server.message_timeout, follow_redirects=True).json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        told = None
    told = told if isinstance(told, dict) else {}
    return Metadata(str(told.get("name") or ""), str(told.get("version") or ""))
