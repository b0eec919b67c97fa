"""Serves an OpenEnv package from its folder, wherever its modules are imported from.

In: a folder with openenv.yaml. Out: a URL while it is served, and the command, with {port} in it; Stop with why nothing
serves it.
"""

import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml

from apprentice.envs.catalog import ANY
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.flows.runtime.servers import environment_server
from apprentice.tasks.reporting.errors import Stop


@contextmanager
def package_server(folder: Path, sessions: int) -> Iterator[tuple[str, str]]:
    """Yield the URL and the command of the first way to serve a package that works. Raises Stop where none does."""
    failed: list[str] = []
    with ExitStack() as stack:
        for command in commands_of(folder):
            server = EnvironmentServer(command=command, patience=60.0)
            try:
                [url] = stack.enter_context(environment_server(ANY, server, sessions, lambda text: None))
            except Stop as stop:  # its imports may need another folder
                failed += {str(stop).partition("\n")[0]} - {*failed}
                continue
            yield url, command
            return
    install = f"pip install {shlex.quote(str(folder))}"
    raise Stop(" ".join(failed), f"Install what it needs: {install}. Or serve it yourself, and name its URL.")


def commands_of(folder: Path) -> list[str]:
    """Return the commands that may serve an OpenEnv package, from its manifest: its modules are imported from the
    package, from the folder itself, or from its `src`. Raises Stop."""
    manifest = folder / "openenv.yaml"
    try:
        app = (yaml.safe_load(manifest.read_text()) or {}).get("app") or "server.app:app"
    except (OSError, yaml.YAMLError, AttributeError) as error:
        raise Stop(
            f"{folder} is no OpenEnv package: {manifest.name} cannot be read ({error}).",
            "Name the folder that has openenv.yaml, or the URL of a server that runs.",
        ) from None
    if not isinstance(app, str):
        raise Stop(f"{manifest} does not say what to serve (app: {app}).", "Write app: server.app:app, or what it is.")
    where = folder.resolve()
    from_above = [f"{where.name}.{app}"] + [app] * app.startswith(f"{where.name}.")
    above = [(where.parent, each) for each in from_above] if (where / "__init__.py").exists() else []
    places = [*above, (where, app), *([(where / "src", app)] if (where / "src").is_dir() else [])]
    quote = shlex.quote
    return [
        f"uvicorn --app-dir {quote(f'{at}')} {quote(named)} --host 127.0.0.1 --port {{port}}" for at, named in places
    ]
