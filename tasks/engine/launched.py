"""One of the processes of a training: runs the stage's body as all the others do.

In: the job's file, as `accelerate launch` passes it on; the rank stands in the environment. Out: how it ended, told to
the stage's process where that is on this machine; the artifact's files, written by the first process.
"""

import os
import pickle
import sys
import threading
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from apprentice.envs.serving.process import leave_with_parent
from apprentice.envs.wire.metrics import counted
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.engine.processes import Job, Outcome
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.reporting import announce


def main(job_file: Path) -> int:
    job: Job = pickle.loads(job_file.read_bytes())
    parent = None
    if "APPRENTICE_FIRST_MACHINE" in os.environ:
        threading.Thread(target=leave_with_parent, daemon=True).start()
        parent = Client(job.address, authkey=job.secret)
    first = os.environ["RANK"] == "0"
    announce.say_through(_to(parent) if first and parent is not None else lambda *_: None)
    reporting: Any = {"trackio": job.trackio, "report_to": job.report_to}
    work = RunContext(LocalStore(job.root, job.project), job.servers, trusted=job.trusted, **reporting)
    context = StageContext(work, job.key, job.out, job.scratch)
    returned: dict[str, Any] = {}
    error = None
    with counted() as counts:
        try:
            returned = job.body(context, *job.given)
        except Exception as raised:
            error = raised
    if parent is not None:
        failed = error, error.__cause__ if error is not None else None
        parent.send(Outcome(returned if first else {}, *map(_portable, failed), counts))  # type: ignore[arg-type]
    if error is not None:
        raise error  # its traceback goes into the log, and the launcher ends the others
    return 0


def _portable(error: BaseException | None) -> BaseException | None:
    """As it is, or its words where it cannot be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _to(parent: Connection) -> announce.Teller:
    sending = threading.Lock()  # outages are told from another thread

    def tell(*said: Any) -> None:
        with sending:
            parent.send(said)

    return tell


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
