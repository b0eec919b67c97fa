"""Marks flow runs as Crashed when their process is killed; otherwise they would stay Running for ever.

Run: `python -m apprentice.flows.runtime.run_guard TAG`. Its standard input closes when the process that started it
ends; it then sets unfinished flow runs with the tag to Crashed.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from apprentice.envs.serving.child import child_command
from apprentice.tasks.reporting.announce import LOCAL

UNFINISHED = ["RUNNING", "PENDING", "CANCELLING"]


@contextmanager
def guarded() -> Iterator[None]:
    """Tag flow runs that start in the block as a command's, and mark them as Crashed if this process is killed."""
    from prefect import tags

    tag = f"{socket.gethostname()}:{os.getpid()}"
    guard = subprocess.Popen(
        child_command("apprentice.flows.runtime.run_guard", tag),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # it must survive a signal to this process group
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
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.states import Crashed

    of = FlowRunFilter.model_validate({"tags": {"all_": [tag]}, "state": {"type": {"any_": UNFINISHED}}})
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(flow_run_filter=of):
            client.set_flow_run_state(run.id, Crashed(message="Its process was killed."), force=True)


if __name__ == "__main__":
    main(sys.argv[1])
