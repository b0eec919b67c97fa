"""Serves Trackio's dashboard for the training curves of a store: `apprentice dashboard`.

In: the store's folder, a project or all of them, a port. Out: a server on 127.0.0.1 until it is interrupted.
"""

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from threading import Event

from apprentice.tasks.engine.run import FOLDER, keep_curves_in, project_in_trackio
from apprentice.tasks.reporting.errors import Stop

SUFFIX = ".db"
"""Suffix of a project's metrics file."""


def show_dashboard(store: Path, project: str | None, port: int | None, browser: bool) -> None:
    """Serve the curves, with live updates, until Ctrl-C. Raises Stop if there are none.

    Args:
        project: The project to show first; None lets the user choose.
        port: None takes the first free port from 7860.
    """
    folder = store.absolute() / FOLDER
    project = None if project is None else project_in_trackio(project)
    _check(folder, project)
    keep_curves_in(store.absolute())
    import trackio

    settings = {
        "host": "127.0.0.1",
        "server_port": port,
        "share": False,
        "open_browser": browser,
        "block_thread": False,
    }
    try:
        with redirect_stdout(StringIO()):  # it prints a URL with a token that grants write access
            server, url, *_ = trackio.show(project, **settings)
    except OSError as error:
        raise Stop(f"The dashboard has no port to listen on: {error}", "Choose another with --port.") from None
    shown = f"?project={project}" if project else ""
    print(f"The dashboard is at {url.rstrip('/')}/{shown}; stop it with Ctrl-C.", flush=True)
    try:
        Event().wait()
    except KeyboardInterrupt:
        server.close()
        print("The dashboard has stopped.")


def _check(folder: Path, project: str | None) -> None:
    known = sorted(path.stem for path in folder.glob(f"*{SUFFIX}"))
    if not known:
        raise Stop(
            f"There are no curves in {folder} yet.",
            "They appear with the first step of SFT. For another store pass its recipe, or --store.",
        )
    if project is not None and project not in known:
        raise Stop(
            f"There are no curves of {project} in {folder} yet; known: {', '.join(known)}.",
            "Run that recipe first: they appear with the first step of SFT.",
        )
