"""Marks flow runs as Crashed when their process is killed; otherwise they would stay Running for ever.

Run: `python -m apprentice.flows.runtime.run_guard TAG`. Its standard input closes when the process that started it
ends; it then sets unfinished flow runs with the tag to Crashed.
"""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from apprentice.envs.serving.child import child_command

LOCAL = "local"
"""The tag of flow runs that a command started on this machine, not a worker."""
PROCESS = re.compile(r"[\w.-]+:\d+")
"""A tag that names a machine and a process."""
UNFINISHED = ["RUNNING", "PENDING", "CANCELLING"]


def name_process() -> None:
    """Tag the flow run with this machine and process, where no command and no worker has: one started from Python."""
    from prefect.client.orchestration import get_client
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    run = context.flow_run if context else None
    if run is None or run.deployment_id or any(PROCESS.fullmatch(tag) for tag in run.tags):
        return
    with get_client(sync_client=True) as client:
        client.update_flow_run(run.id, tags=[*run.tags, LOCAL, _this_process()])


def _this_process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


@contextmanager
def guarded() -> Iterator[None]:
    """Tag flow runs that start in the block as a command's, and mark them as Crashed if this process is killed."""
    from prefect import tags

    tag = _this_process()
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
