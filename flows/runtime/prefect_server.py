"""The Prefect server that a command's flows report to: the one in PREFECT_API_URL, or a temporary one.

In: the environment. Out: a server that runs until this process exits. Raises Stop if there is none.
"""

import atexit
import os
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack
from functools import cache
from importlib import import_module

import httpx
from prefect.context import refresh_global_settings_context
from prefect.settings import get_current_settings

from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import ServerFailed
from apprentice.flows.runtime.prefect_settings import URL, set_in
from apprentice.flows.runtime.run_guard import guarded
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.permanent_server import TEMPORARY, shared

TRIES = 3
TIMEOUT = 5.0


_held = ExitStack()
"""Closed when this process exits, after Prefect's threads have sent their events and logs."""
atexit.register(_held.close)


def begin_prefect_server() -> None:
    """Begin to start the temporary server, if one is needed: meanwhile this process imports its flow."""
    if not server_url():
        _starting()


def start_prefect_server() -> None:
    """Make sure that a server runs until this process exits."""
    _check_proxy()
    if shared():
        check_answers(server_url())
        if (where := set_in(URL)) != "the environment":
            announce.say(f"Prefect's server: {server_url()}, as {where} says.")
        _held.enter_context(guarded())
        return
    if server_url():  # the temporary one is already running
        return
    start = _starting()
    import_module("torch")  # the stages need it, and the server takes longer to answer
    try:
        url = f"{start.result()}/api"
    except ServerFailed as failed:
        raise Stop(
            f"Prefect's temporary server did not start: {failed}.",
            "Set PREFECT_HOME to another folder, or PREFECT_API_URL to a running server.",
        ) from failed
    os.environ |= {"PREFECT_API_URL": url, TEMPORARY: url}
    refresh_global_settings_context()


@cache
def _starting() -> Future[str]:
    """The temporary server's URL, once it answers. Raises ServerFailed."""
    address: Future[str] = Future()

    def start() -> None:
        try:
            address.set_result(_held.enter_context(local_server("apprentice.flows.runtime.temporary_server")))
        except Exception as error:
            address.set_exception(error)

    # a daemon: a command that ends before the server answers does not wait for it, and the server ends with its parent
    threading.Thread(target=start, daemon=True).start()
    return address


def server_url() -> str:
    """Return the server's URL from Prefect's settings: PREFECT_API_URL, or the active profile."""
    return get_current_settings().api.url or ""


def check_answers(url: str) -> None:
    """Raise Stop if no Prefect server answers."""
    why = ""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(1.0)
        try:
            answer = httpx.get(f"{url}/health", timeout=TIMEOUT)
            if answer.status_code in (401, 403):  # it runs; the flow reports missing credentials
                return
            if answer.is_success and answer.text.strip() == "true":
                return
            why = f"HTTP {answer.status_code}" if not answer.is_success else "another program answers there"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = str(error).rstrip(".") or type(error).__name__
    raise Stop(
        f"Prefect's server at {url} does not answer: {why}.",
        f"Start it (prefect server start), correct {URL} in {set_in(URL) or 'the environment'}, or remove it there to "
        "run without a server.",
    )


def _check_proxy() -> None:
    try:
        httpx.Client().close()
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        raise Stop(
            f"The proxy set in the environment cannot be used: {' '.join(str(error).split())}",
            "Correct or unset http_proxy, https_proxy and all_proxy; for SOCKS, pip install 'httpx[socks]'.",
        ) from None
