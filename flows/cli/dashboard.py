"""Trackio's dashboard over what trainings left in a store: `apprentice dashboard`.

In: the store's folder, a project or all of them, a port. Out: a server on 127.0.0.1 until it is interrupted.
"""

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from threading import Event

from apprentice.tasks.reporting.curves import FOLDER, keep_curves_in, project_in_trackio
from apprentice.tasks.reporting.errors import Stop

SUFFIX = ".db"
"""Of a project's metrics."""


def show_dashboard(store: Path, project: str | None, port: int | None, browser: bool) -> None:
    """Serves the curves, and those that grow meanwhile, until Ctrl-C. Raises Stop where there are none.

    Args:
        project: The one that is shown first; left out, a person chooses.
        port: Left out, the first free one from 7860 on.
    """
    folder = store.absolute() / FOLDER
    project = None if project is None else project_in_trackio(project)
    _check(folder, project)
    keep_curves_in(store.absolute())
    import trackio

    current_location = {
        "host": "127.0.0.1",
        "server_port": port,
        "share": False,
        "open_browser": browser,
        "block_thread": False,
    }
    try:
        with redirect_stdout(StringIO()):  # it prints an address with a token that lets whoever has it write
            server, url, *_ = trackio.show(project, **current_location)
    except OSError as error:
        raise Stop(f"The dashboard has no port to listen on: {error}", "Name another with --port.") from None
    shown = f"?project={project}" if project else ""
    print(f"The dashboard is at {url.rstrip('/')}/{shown}; Ctrl-C ends it.", flush=True)
    try:
        Event().wait()
    except KeyboardInterrupt:
        server.close()
        print("The dashboard is closed.")


def _check(folder: Path, project: str | None) -> None:
    """Raises Stop where the folder holds no metrics of the project."""
    known = sorted(path.stem for path in folder.glob(f"*{SUFFIX}"))
    if not known:
        raise Stop(
            f"There are no curves in {folder} yet.",
            "They appear with the first step of SFT. Is it another store? Name its recipe, or --store.",
        )
    if project is not None and project not in known:
        raise Stop(
            f"There are no curves of {project} in {folder} yet; there are some of {', '.join(known)}.",
            "Run that recipe first: they appear with the first step of SFT.",
        )
