"""A Prefect server for one command, as a child process: it gets no signals from the terminal and ends with its parent.

Run: `python -m apprentice.flows.runtime.temporary_server` (prints its URL; exits when its standard input closes).
It uses Prefect's own database, so that a server started later also shows these runs.
"""

import os

from apprentice.envs.serving.process import serve


def main() -> None:
    os.environ |= {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
    from prefect.server.api.server import create_app

    serve(create_app())


if __name__ == "__main__":
    main()
