"""What is set before libraries are imported: no telemetry, no proxy for localhost, short waits, less garbage.

Importing any sub-package sets the environment variables that are missing, and child processes inherit them. A thread
sleeps soon where another process has its core. Python's garbage collector does not walk what stays as long as the
process. OpenEnv would import Gradio, which doubles the time that a server or a session takes to start. What takes long
to find out and stays the same is kept in the user's cache.
"""

import gc
import json
import os
import stat
import sys
import tempfile
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

NO_TELEMETRY = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
SPINS = "1500"
"""How often a thread of libgomp looks for the others before it sleeps. Its own 300,000 looks are in vain where another
process has a core: a step of two threads then takes twice to ten times as long."""
WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")
"""Variables with which a user says how threads wait, or how many there are."""
DEBUG = "APPRENTICE_DEBUG"
"""Set by `--debug`, for this process and its child processes."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def debugging() -> bool:
    return bool(os.environ.get(DEBUG))


def set_defaults() -> None:
    """Set the variables that are not set, and exclude localhost from a configured proxy."""
    for name, value in NO_TELEMETRY.items():
        os.environ.setdefault(name, value)
    if not os.environ.keys() & set(WAITING):
        os.environ["GOMP_SPINCOUNT"] = SPINS
    give_home()
    if urllib.request.getproxies_environment().keys() & {"http", "https", "all"}:
        given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        excepted = [each.strip() for each in given.split(",") if each.strip()]
        if "*" not in excepted:
            os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys([*excepted, *LOOPBACK]))


NO_HOME = "APPRENTICE_HOME"
"""The folder that HOME names where the user has none, as a container's user often has not: a number without a name."""


def give_home() -> None:
    """Set HOME if the user has no home folder: Prefect would fail, and the Hub's cache be a folder called `~`."""
    if os.environ.get("HOME"):
        return
    os.environ.pop("HOME", None)  # an empty one is that of the root folder
    if os.path.expanduser("~") == "~":
        os.environ["HOME"] = os.environ[NO_HOME] = own_folder()
        os.environ.setdefault("LOGNAME", f"user-{os.getuid()}")  # torch asks for a name


def has_home() -> bool:
    """Return whether the user has a home folder, or HOME is the one that `give_home` set."""
    return os.environ.get("HOME") != os.environ.get(NO_HOME) or "HOME" not in os.environ


def own_folder() -> str:
    """Return a folder of this user among the temporary ones: the same for all commands, and not made by others."""
    folder = os.path.join(tempfile.gettempdir(), f"apprentice-{os.getuid()}")
    with suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    there = os.lstat(folder) if os.path.lexists(folder) else None
    is_ours = there is not None and stat.S_ISDIR(there.st_mode) and there.st_uid == os.getuid()
    return folder if is_ours else tempfile.mkdtemp(prefix="apprentice-")


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect nothing in the block, and count its objects as old: for imports, which make no garbage to speak of."""
    gc.disable()
    try:
        yield
    finally:
        with old_objects_ignored():  # leaves them in the oldest generation, without the walks that would move them
            gc.enable()


@contextmanager
def old_objects_ignored() -> Iterator[None]:
    """Collect in the block only its own objects, and all of them at its end: a trainer and its model are cycles.

    Blocks may nest, and overlap in threads.
    """
    is_outermost = not gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        if is_outermost:
            gc.unfreeze()


OURS = ("__main__", "apprentice", "None")
"""No packages of others: a command's own script, our modules, code that is no module."""


class FailedImport(NamedTuple):
    package: str
    """Whose own code raised while something imported it."""
    error: BaseException
    """What it raised, from which libraries make others."""


def failed_import(error: BaseException) -> FailedImport | None:
    """The package whose import an error comes from; None where no import failed.

    Who catches an error of a template, a model or a dataset asks this first: such code imports packages when it runs,
    and a package that is installed but broken raises anything (ImportError, AttributeError, OSError, ValueError).
    """
    chain: list[BaseException] = []
    seen: BaseException | None = error
    while seen is not None and seen not in chain:
        chain.append(seen)
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    for first in reversed(chain):  # and of its frames the innermost import
        frames = [frame for frame, _ in traceback.walk_tb(first.__traceback__)]
        bodies = [each for each in frames if each.f_code.co_name == "<module>" and each.f_code.co_filename[0] != "<"]
        packages = [str(frame.f_globals.get("__name__")).partition(".")[0] for frame in bodies]
        if found := [package for package in packages if package not in OURS]:
            return FailedImport(found[-1], first)
    return None


PAGE = "openenv.core.env_server.web_interface"


class LazyPage(ModuleType):
    """Stands for the module of the web page until one of its functions or classes is called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def load_and_call(*given: Any, **named: Any) -> Any:
            sys.modules.pop(PAGE, None)
            return getattr(import_module(PAGE), name)(*given, **named)

        return load_and_call


def import_page_when_needed() -> None:
    """Must be called before anything imports OpenEnv."""
    if "openenv.core.env_server" not in sys.modules:
        sys.modules.setdefault(PAGE, LazyPage(PAGE))


def kept(name: str, key: str, find: Callable[[], float], keeps: bool = True) -> float:
    """Return the number that `find` returned for this key once on this machine.

    Where the user's cache cannot be read or written, it is found again. What `find` raises is not kept.

    Args:
        keeps: Whether what is found now may be kept.
    """
    file = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "apprentice" / f"{name}.json"
    known: dict[str, float] = {}
    with suppress(OSError, ValueError):
        read = json.loads(file.read_text())
        known = read if isinstance(read, dict) else {}
    if isinstance(known.get(key), int | float):
        return known[key]
    found = find()
    if not keeps:
        return found
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_name(f"{file.name}.{os.getpid()}")
        beside.write_text(json.dumps(known | {key: found}))
        beside.replace(file)
    return found
