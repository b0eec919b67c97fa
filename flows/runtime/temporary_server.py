"""Prefect's server for one command: as a child of ours, so that it hears no signal of the terminal and ends with us.

Run: `python -m apprentice.flows.runtime.temporary_server` (prints its URL; ends with its standard input).
It keeps what it is told in Prefect's own database, so that a server started later shows these runs, too.
"""

import os

from apprentice.envs.serving.process import serve


def main() -> None:
    os.environ |= {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
    from prefect.server.api.server import create_app

    serve(create_app())


if __name__ == "__main__":
    main()
