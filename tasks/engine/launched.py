"""One of the processes of a training: runs the stage's body as all the others do.

In: the job's file, as `accelerate launch` passes it on; the rank is in the environment. Out: how it ended, in a file
beside the job's; the artifact's files, written by the first process.
"""

import os
import pickle
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from apprentice.envs.defaults import old_objects_ignored
from apprentice.envs.serving.process import leave_with_parent
from apprentice.envs.wire.metrics import counted
from apprentice.tasks.engine.processes import Job, ProcessResult
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.models.accelerate_internals import shard_on_cpu
from apprentice.tasks.reporting import announce


def main(job_file: Path) -> None:
    """Raises what the body raises: its traceback goes into the log, and the launcher ends the others."""
    job: Job = pickle.loads(job_file.read_bytes())
    first, parent, sending = os.environ["RANK"] == "0", None, threading.Lock()
    if "APPRENTICE_FIRST_MACHINE" in os.environ:
        threading.Thread(target=leave_with_parent, daemon=True).start()
        parent = Connection(os.dup(0))

    def show(*message: Any) -> None:
        if first and parent is not None:
            with sending:  # outages are told from another thread
                parent.send(message)

    announce.say_through(show)
    shard_on_cpu()
    returned: dict[str, Any] = {}
    error = None
    with counted() as counts:
        try:
            with old_objects_ignored():
                returned = job.body(StageContext(RunContext(**job.run), *job.stage), *job.given)
        except Exception as raised:
            error = raised
    failed = error, error.__cause__ if error is not None else None
    outcome = ProcessResult(returned if first else {}, *map(_portable, failed), counts)  # type: ignore[arg-type]
    half = job_file.with_name(f"half-{os.environ['RANK']}")  # the launcher may end this process while it writes
    half.write_bytes(pickle.dumps(outcome))
    half.rename(job_file.with_name(f"outcome-{os.environ['RANK']}"))
    if error is not None:
        raise error


def _portable(error: BaseException | None) -> BaseException | None:
    """As it is, or its words where it cannot be sent."""
    with suppress(Exception):
        return pickle.loads(pickle.dumps(error))
    return RuntimeError(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
