"""A Prefect server for one command, as a child process: it gets no signals from the terminal and ends with its parent.

Run: `python -m apprentice.flows.runtime.temporary_server` (prints its URL; exits when its standard input closes).
It uses Prefect's own database, so that a server started later also shows these runs.
"""

import asyncio
import os
import sys

from apprentice.envs.defaults import no_collection
from apprentice.envs.serving.process import serve
from apprentice.tasks.artifacts.store_files import flock


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
        from alembic.config import Config
        from prefect.server.api.server import create_app
        from prefect.settings import PREFECT_HOME, PREFECT_SERVER_API_AUTH_STRING, temporary_settings

        Config.get_prepend_sys_paths_list = lambda self: None  # Prefect's alembic.ini lists the current folder
        # two commands that begin at once on a new machine would both do it, and one of them would fail
        with flock(PREFECT_HOME.value() / "apprentice-database.lock"):
            asyncio.run(migrate())
    with temporary_settings(restore_defaults={PREFECT_SERVER_API_AUTH_STRING}):  # it is another server's password
        with no_collection():
            app = create_app()
        serve(app)


if __name__ == "__main__":
    main()
