"""Mutation tests: breaks the product in small ways, one at a time, and runs the tests that must notice.

Run: `make mutants`, or `python -m tests.mutants.run [WORD …]` for the mutants whose file or description holds a word.
In: the tables tests/mutants/*.yaml. Out: a table of what was noticed, the score; exit code 0 from 95% on.

Each mutant is patched into a copy of the tree. The process imports torch, trl and the like once; the tests of every
mutant run in a fork of it.
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import NamedTuple

from tests.mutants.table import ROOT, Mutant, read_mutants

ROOMS = ("envs", "tasks", "flows", "deployments")
COPIED = ("__init__.py", *ROOMS, "tests", "docs", "README.md", "Makefile", "pyproject.toml")
HEAVY = ("torch", "trl", "trl.trainer.grpo_trainer", "trl.trainer.sft_trainer", "datasets", "transformers", "prefect")
HEAVY += ("openenv.core.env_server.http_server", "reasoning_gym", "scipy.stats", "statsmodels.api", "openai", "pytest")
"""What takes seconds to import, and nothing of ours."""
LONGEST = 300.0
"""Seconds of one mutant's tests; one that takes longer is not noticed: it may be the machine that is slow."""
POLL = 0.02
ENOUGH = 0.95
JOBS = 2
"""Processes with a copy of the tree each."""
_tree = Path()
"""The copy of this process."""


class Result(NamedTuple):
    outcome: str
    """noticed, SURVIVED, TOO LONG, or ERROR: then the tests did not run."""
    seconds: float
    log: str


def copy_of_the_tree(folder: Path) -> Path:
    """Fills a folder with what the tests need; `packages` makes its rooms importable as apprentice.<room>."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(ROOT / name, folder / name)
    packages = folder / "packages" / "apprentice"
    packages.mkdir(parents=True)
    for each in ("__init__.py", *ROOMS):
        (packages / each).symlink_to(folder / each)
    return folder


def run_tests(tree: Path, tests: list[str], longest: float, own_server: bool = False) -> Result:
    """Runs the tests in a fork, with the packages of `tree`, for at most so many seconds."""
    began, log, status = time.monotonic(), tree / "log.txt", None
    child = os.fork()
    if child == 0:
        code = 3
        try:
            os.setsid()
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            if own_server:
                del os.environ["STANDING_SERVER"]
            code = _test(tree, tests)
        finally:
            sys.stdout.flush()
            os._exit(code)
    for _ in range(int(longest / POLL)):  # counts, because a machine that sleeps makes nothing hang
        ended, found = os.waitpid(child, os.WNOHANG)
        if ended:
            status = found
            break
        time.sleep(POLL)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what its tests left
    if status is None:
        os.waitpid(child, 0)
        return Result("TOO LONG", time.monotonic() - began, log.read_text())
    outcome = {0: "SURVIVED", 1: "noticed"}.get(os.waitstatus_to_exitcode(status), "ERROR")
    return Result(outcome, time.monotonic() - began, log.read_text())


def _test(tree: Path, tests: list[str]) -> int:
    import pytest

    packages = str(tree / "packages")
    os.chdir(tree)
    os.environ["PYTHONPATH"] = f"{packages}{os.pathsep}{tree}"  # for the servers that tests start
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # a mutant may have the size and the second of another
    sys.dont_write_bytecode = True
    sys.path[:] = [packages, str(tree), *(path for path in sys.path if Path(path or ".").resolve() != ROOT)]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("apprentice", "tests")]:
        del sys.modules[name]
    return int(pytest.main(["-x", "-q", "-m", "", "--tb=native", *tests]))


def main(words: list[str]) -> int:
    """Returns the exit code."""
    os.environ["OMP_NUM_THREADS"] = "1"
    mutants = [each for each in read_mutants() if not words or any(w in each.file + each.breaks for w in words)]
    for name in HEAVY:
        import_module(name)
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    began = time.monotonic()
    results: list[Result] = []
    with (
        TemporaryDirectory(prefix="mutants-") as copies,
        _standing_server(),
        ProcessPoolExecutor(JOBS, get_context("fork"), _begin, (Path(copies),)) as workers,
    ):
        for whole in workers.map(_whole, [tests[place::JOBS] for place in range(JOBS)]):
            if whole.outcome != "SURVIVED":
                print(f"Without a mutant the tests fail:\n{whole.log}")
                return 1
        print(f"Without a mutant the tests pass, in {time.monotonic() - began:.0f} s.", flush=True)
        for mutant, result in zip(mutants, workers.map(_mutated, mutants), strict=True):
            known = f" (known: {mutant.survives})" if mutant.survives else ""
            print(f"{result.outcome:>9} {result.seconds:5.1f} s  {mutant.file}: {mutant.breaks}{known}", flush=True)
            if result.outcome == "ERROR":
                print(result.log[-2000:])
            results.append(result)
    counted = [result.outcome for mutant, result in zip(mutants, results, strict=True) if not mutant.survives]
    noticed = counted.count("noticed")
    minutes = (time.monotonic() - began) / 60
    print(f"{noticed} of {len(counted)} mutants were noticed ({noticed / len(counted):.1%}), in {minutes:.0f} min.")
    return int(noticed < ENOUGH * len(counted) or "ERROR" in counted)


@contextmanager
def _standing_server() -> Iterator[None]:
    """The tests' environment server, unbroken, for all mutants but those of `envs`; see tests/conftest.py."""
    from apprentice.envs.serving.process import local_server
    from tests.conftest import SERVER

    with local_server(*SERVER) as url:
        os.environ["STANDING_SERVER"] = url
        yield


def _begin(copies: Path) -> None:
    global _tree
    _tree = copy_of_the_tree(Path(mkdtemp(dir=copies)))


def _whole(tests: list[str]) -> Result:
    return run_tests(_tree, tests, 10 * LONGEST) if tests else Result("SURVIVED", 0.0, "")


def _mutated(mutant: Mutant) -> Result:
    file = _tree / mutant.file
    text = file.read_text()
    file.write_text(mutant.broken(text))
    try:
        return run_tests(_tree, mutant.tests, LONGEST, own_server=mutant.file.startswith("envs/"))
    finally:
        file.write_text(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
