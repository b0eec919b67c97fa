"""Environment variables that libraries read when they are imported: no telemetry, no proxy for this machine itself.

In: the environment. Out: the same with what it lacks, set when a room of this package is imported, whichever comes
first, and inherited by every process that is started from here.
"""

import os
import urllib.request

NO_TELEMETRY = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
DEBUG = "APPRENTICE_DEBUG"
"""Set by `--debug`, for this process and those that it starts."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def debugging() -> bool:
    """Whether tracebacks are shown."""
    return bool(os.environ.get(DEBUG))


def set_defaults() -> None:
    """Sets what is not set, and adds this machine to what no proxy is asked for."""
    for name, value in NO_TELEMETRY.items():
        os.environ.setdefault(name, value)
    if urllib.request.getproxies_environment().keys() & {"http", "https", "all"}:
        excepted = [each.strip() for each in _no_proxy().split(",") if each.strip()]
        if "*" not in excepted:
            os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys([*excepted, *LOOPBACK]))


def _no_proxy() -> str:
    return os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
