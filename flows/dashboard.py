"""Serves Trackio's dashboard for the training curves of a store: `apprentice dashboard`."""

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from threading import Event
from typing import Any

from apprentice.tasks.engine.trackio_folder import FOLDER, keep_curves_in, project_in_trackio
from apprentice.tasks.reporting.errors import Stop


def show_dashboard(store: Path, project: str | None, port: int | None, browser: bool) -> None:
    """Serve the curves, with live updates, until Ctrl-C. Raises Stop if there are none.

    Args:
        project: The project to show first; None lets the user choose.
        port: None takes the first free port from 7860.
    """
    folder = store.absolute() / FOLDER
    project = None if project is None else project_in_trackio(project)
    known = sorted(path.stem for path in folder.glob("*.db"))
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
    keep_curves_in(store.absolute())
    import trackio

    try:
        with redirect_stdout(StringIO()):  # it prints a URL with a token that grants write access
            server, url, *_ = trackio.show(
                project, host="127.0.0.1", server_port=port, share=False, open_browser=browser, block_thread=False
            )
    except OSError as error:
        raise Stop(f"The dashboard has no port to listen on: {error}", "Choose another with --port.") from None
    shown = f"?project={project}" if project else ""
    print(f"The dashboard is at {url.rstrip('/')}/{shown}; stop it with Ctrl-C.", flush=True)
    try:
        Event().wait()
    except KeyboardInterrupt:
        _close(server)
        print("The dashboard has stopped.")


def _close(server: Any) -> None:
    """End the dashboard and its thread: uvloop crashes where the interpreter ends before it does."""
    server.close()  # only asks for it
    uvicorn = server._uvicorn_server
    uvicorn.thread.join(5)
    uvicorn.force_exit = True  # a page that still waits for its answer
    uvicorn.thread.join(5)
