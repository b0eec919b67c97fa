"""A copy of the tree, and pytest over it in a fork of a process that has imported torch, trl and the like once."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent.parent
ROOMS = ("envs", "tasks", "flows", "deployments")
HEAVY = ("torch", "trl", "trl.trainer.grpo_trainer", "trl.trainer.sft_trainer", "datasets", "transformers", "prefect")
HEAVY += ("openenv.core.env_server.http_server", "reasoning_gym", "scipy.stats", "statsmodels.api", "openai", "pytest")
"""What takes seconds to import, and nothing of ours."""
POLL = 0.02


class Ended(NamedTuple):
    code: int | None
    """None: it ran out of time and was killed."""
    seconds: float
    log: str


def import_heavy() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in HEAVY:
        import_module(name)


def copy_of_the_tree(folder: Path) -> Path:
    """Fills a folder with the files of the checkout; within `packages` it is named apprentice, as Python imports it."""
    folder = folder.resolve()
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    for made in (ROOT / "build").glob("prefect-*.db"):
        (folder / "build").mkdir(exist_ok=True)
        shutil.copy(made, folder / "build")
    (folder / "packages").mkdir()
    (folder / "packages" / "apprentice").symlink_to(folder)
    return folder


def in_tree(tree: Path) -> list[str]:
    """The product's Python files."""
    return [file.relative_to(tree).as_posix() for room in ROOMS for file in sorted((tree / room).rglob("*.py"))]


def run_pytest(
    tree: Path, arguments: list[str], plugin: Callable[[], Any], longest: float, variables: dict[str, str]
) -> Ended:
    """Runs pytest in a fork, on the packages of `tree`, with the plugin that `plugin` makes there."""
    child = os.fork()
    if child == 0:
        found = 3
        try:
            os.setsid()
            found = run_pytest_in(tree, arguments, plugin, variables, tree / "log.txt")
        finally:
            sys.stdout.flush()
            os._exit(found)
    return wait_for(child, longest, tree / "log.txt")


def wait_for(child: int, longest: float, log: Path) -> Ended:
    """How the leader of a session ended; kills whatever else of it runs."""
    began, code = time.monotonic(), None
    for _ in range(int(longest / POLL)):  # counts, because a machine that sleeps makes nothing hang
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            break
        time.sleep(POLL)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what its tests left
    if code is None:
        os.waitpid(child, 0)
    return Ended(code, time.monotonic() - began, log.read_text(errors="replace"))


def run_pytest_in(
    tree: Path, arguments: list[str], plugin: Callable[[], Any], variables: dict[str, str], log: Path
) -> int:
    """Runs pytest in this process, which then is of no further use; returns the exit code."""
    import pytest

    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    packages = str(tree / "packages")
    os.chdir(tree)
    os.environ |= variables
    os.environ["PYTHONPATH"] = f"{packages}{os.pathsep}{tree}"  # for the processes that tests start
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # a mutant may have the size and the second of another
    sys.dont_write_bytecode = True
    sys.path[:] = [packages, str(tree), *(path for path in sys.path if Path(path or ".").resolve() != ROOT)]
    made = plugin()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("apprentice", "tests")]:
        del sys.modules[name]
    return int(pytest.main(["-m", "not long", "--tb=native", *arguments], plugins=[made]))
