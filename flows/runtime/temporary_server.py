"""A Prefect server for one command, as a child process: it gets no signals from the terminal and ends with its parent.

Run: `python -m apprentice.flows.runtime.temporary_server` (prints its URL; exits when its standard input closes).
It uses Prefect's own database, so that a server started later also shows these runs.
"""

import asyncio
import os

from apprentice.envs.garbage import no_collection
from apprentice.envs.serving.process import serve
from apprentice.tasks.artifacts.files import flock


async def migrate() -> None:
    """Bring Prefect's database up to date; a new one gets its types of blocks, as from a server that starts."""
    from prefect.server.database import provide_database_interface
    from prefect.server.models.block_registration import run_block_auto_registration
    from prefect.settings import PREFECT_MEMO_STORE_PATH

    database = provide_database_interface()
    await database.create_db()
    if not PREFECT_MEMO_STORE_PATH.value().exists():  # Prefect writes it once they are there
        async with await database.session() as session:
            await run_block_auto_registration(session=session)


def main() -> None:
    os.environ |= {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
    with no_collection():
        from prefect.server.api.server import create_app
        from prefect.settings import PREFECT_HOME

        # two commands that begin at once on a new machine would both do it, and one of them would fail
        with flock(PREFECT_HOME.value() / "apprentice-database.lock"):
            asyncio.run(migrate())
        app = create_app()
    serve(app)


if __name__ == "__main__":
    main()
