"""`python -m apprentice.flows.runtime.temporary_server`: the child processes of a command, which end with it.

Without an argument, a Prefect server for one command: it prints its URL, gets no signals from the terminal and exits
when its standard input closes. It uses Prefect's own database, so that a server started later also shows these runs.

With a TAG, a guard that marks flow runs as Crashed when their process is killed; otherwise they would stay Running for
ever. Its standard input closes when the process that started it ends; it then sets unfinished flow runs with the tag to
Crashed.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from apprentice.envs.defaults import no_collection
from apprentice.envs.serving.process import serve
from apprentice.tasks.artifacts.local import flock
from apprentice.tasks.reporting.announce import LOCAL


async def migrate() -> None:
    """Bring Prefect's database up to date; a new one gets its types of blocks, as from a server that starts."""
    import prefect
    from alembic.util.exc import CommandError
    from prefect.server.database import provide_database_interface
    from prefect.server.models.block_registration import run_block_auto_registration
    from prefect.settings import PREFECT_MEMO_STORE_PATH
    from sqlalchemy import make_url

    database = provide_database_interface()
    try:
        await database.create_db()
    except CommandError as error:  # of alembic: it does not know the tables' version
        where = make_url(database.database_config.connection_url).render_as_string(hide_password=True)
        sys.exit(f"another version than Prefect {prefect.__version__} wrote the database {where} ({error})")
    if not PREFECT_MEMO_STORE_PATH.value().exists():  # Prefect writes it once they are there
        async with await database.session() as session:
            await run_block_auto_registration(session=session)


def main() -> None:
    os.environ |= {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
    with no_collection():
        from prefect.server.api.server import create_app
        from prefect.settings import PREFECT_HOME, PREFECT_SERVER_API_AUTH_STRING, temporary_settings

        # two commands that begin at once on a new machine would both do it, and one of them would fail
        with flock(PREFECT_HOME.value() / "apprentice-database.lock"):
            asyncio.run(migrate())
    with temporary_settings(restore_defaults={PREFECT_SERVER_API_AUTH_STRING}):  # it is another server's password
        with no_collection():
            app = create_app()
        serve(app)


UNFINISHED = ["RUNNING", "PENDING", "CANCELLING"]


@contextmanager
def guarded() -> Iterator[None]:
    """Tag flow runs that start in the block as a command's, and mark them as Crashed if this process is killed."""
    from prefect import tags

    tag = f"{socket.gethostname()}:{os.getpid()}"
    child = subprocess.Popen(
        [sys.executable, "-m", "apprentice.flows.runtime.temporary_server", tag],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # it must survive a signal to this process group
    )
    with tags(LOCAL, tag):
        yield
    assert child.stdin is not None
    child.stdin.close()


def guard(tag: str) -> None:
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
    guard(sys.argv[1]) if sys.argv[1:] else main()
