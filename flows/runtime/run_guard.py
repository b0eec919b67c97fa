"""Tells Prefect's server of a run whose process was killed: else it would stay Running for ever.

Run: `python -m apprentice.flows.runtime.run_guard TAG`. It ends with its standard input, which ends with the
process that started it, however that came; flow runs with the tag that are not finished then are set to Crashed.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from apprentice.tasks.reporting.shared_server import LOCAL

UNFINISHED = ["RUNNING", "PENDING", "CANCELLING"]


@contextmanager
def guarded() -> Iterator[None]:
    """Flow runs that begin in the block bear the tags of a command's, and end on the server when this process does."""
    from prefect import tags

    tag = f"{socket.gethostname()}:{os.getpid()}"
    guard = subprocess.Popen(
        [sys.executable, "-m", "apprentice.flows.runtime.run_guard", tag],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # it outlives what ends this process's group
    )
    with tags(LOCAL, tag):
        yield
    assert guard.stdin is not None
    guard.stdin.close()


def main(tag: str) -> None:
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    sys.stdin.read()
    mark_crashed(tag)


def mark_crashed(tag: str) -> None:
    """Sets the unfinished flow runs with a tag to Crashed."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.states import Crashed

    of = FlowRunFilter.model_validate({"tags": {"all_": [tag]}, "state": {"type": {"any_": UNFINISHED}}})
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(flow_run_filter=of):
            client.set_flow_run_state(run.id, Crashed(message="Its process was killed."), force=True)


if __name__ == "__main__":
    main(sys.argv[1])
