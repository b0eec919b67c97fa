"""Environment variables that libraries read at import time: no telemetry, no proxy for localhost.

Importing any sub-package sets those that are missing, and child processes inherit them.
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
"""Set by `--debug`, for this process and its child processes."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def debugging() -> bool:
    return bool(os.environ.get(DEBUG))


def set_defaults() -> None:
    """Set the variables that are not set, and exclude localhost from a configured proxy."""
    for name, value in NO_TELEMETRY.items():
        os.environ.setdefault(name, value)
    if urllib.request.getproxies_environment().keys() & {"http", "https", "all"}:
        given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        excepted = [each.strip() for each in given.split(",") if each.strip()]
        if "*" not in excepted:
            os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys([*excepted, *LOOPBACK]))
