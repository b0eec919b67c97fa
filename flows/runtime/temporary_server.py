"""A Prefect server for one command, as a child process: it gets no signals from the terminal and ends with its parent.

Run: `python -m apprentice.flows.runtime.temporary_server` (prints its URL; exits when its standard input closes).
It uses Prefect's own database, so that a server started later also shows these runs.
"""

import asyncio
import os

from apprentice.envs.serving.process import serve
from apprentice.tasks.artifacts.files import flock


async def filled() -> None:
    """Create Prefect's database, with its types of blocks."""
    from prefect.server.database import provide_database_interface
    from prefect.server.models.block_registration import run_block_auto_registration

    database = provide_database_interface()
    await database.create_db()
    async with await database.session() as session:
        await run_block_auto_registration(session=session)


def main() -> None:
    os.environ |= {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
    from prefect.server.api.server import create_app
    from prefect.settings import PREFECT_HOME, PREFECT_MEMO_STORE_PATH

    if not PREFECT_MEMO_STORE_PATH.value().exists():  # Prefect writes it once the database is filled
        # two commands that begin at once on a new machine would both fill it, and one of them would fail
        with flock(PREFECT_HOME.value() / "apprentice-database.lock"):
            asyncio.run(filled())
    serve(create_app())


if __name__ == "__main__":
    main()
