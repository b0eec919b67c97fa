"""Mutation tests: breaks the product in small ways that nobody chose, one at a time, and runs the tests that reach it.

Run: `make mutants`, or `python -m tests.mutants.run --seed 7 --number 60 --within tasks/players`. Draws mutants by seed
from all that operators.py finds, and runs for each the quick tests that reach its statement, the fastest first, until
one fails.
A statement that no quick test reaches has a mutant that survives. Out: every survivor, and the rate per room with its
interval; exit code 0 from 90% on. What equivalents.yaml names does not count. Results are kept in build/mutants, so
that an interrupted run goes on, and are used while the file, its tests and what they reach stay as they are.
"""

import argparse
import json
import os
import random
import sys
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, NamedTuple

import pytest
import yaml

from apprentice.tasks.statistics.intervals import wilson
from tests.mutants.collected import OTHER_WAY, Collected, RunRequest
from tests.mutants.forked import ROOMS, ROOT, Ended, copy_of_the_tree, import_heavy, run_pytest
from tests.mutants.operators import Mutant, mutants_of
from tests.mutants.reach import Lines, Reach, Test, digests_of_tests, measure, seconds_until
from tests.test_rooms import FILES, imports_of

RESULTS = ROOT / "build" / "mutants" / "results"
GOAL = 0.9
FIRST = 10
"""Tests that run before the others, whose files then need not be imported."""
AHEAD = 4
"""Mutants that wait for each process, so that one that hangs holds up no other."""
GRACE, SLOWER = 60.0, 3.0
"""A mutant hangs once its tests take so many seconds, and so many times longer than before."""
SERVER = "fixture server@tests"
_copy: "Copy"
"""The copy of this process."""


APART = "envs/verifiers/game.py"
"""Imports a package that the quick tests have not: `make test-verifiers` tests it."""


def sample(seed: int, number: int, within: list[str]) -> list[Mutant]:
    """So many mutants of all that these folders and files have, each as likely as any other."""
    found: list[Mutant] = []
    for each in within:
        for file in [ROOT / each] if each.endswith(".py") else sorted((ROOT / each).rglob("*.py")):
            name = file.relative_to(ROOT).as_posix()
            found += [] if name.startswith(APART) else mutants_of(name, file.read_text())
    random.Random(seed).shuffle(found)  # so that a larger sample begins with a smaller one
    return found[:number]


class Chosen(NamedTuple):
    """A mutant's tests."""

    calling: list[Test]
    importing: list[Test]
    """Those of a statement that runs on import."""

    @property
    def ids(self) -> list[str]:
        return [test.id for test in (*self.calling, *self.importing)]


class Tests:
    """Which tests a mutant gets."""

    def __init__(self, reach: Reach, seconds: float):
        """`seconds`: what a mutant's tests may take, as they took when they were measured."""
        self.reach = reach
        self.seconds = seconds
        self.lines: dict[str, Lines] = {}
        self.importers: defaultdict[str, list[str]] = defaultdict(list)
        for file in FILES.values():
            for module in imports_of(file):
                self.importers[FILES[module].relative_to(ROOT).as_posix()].append(file.relative_to(ROOT).as_posix())

    def of(self, mutant: Mutant) -> Chosen:
        """The tests that reach the statement, the fastest first; where it runs on import, those of its file and of all
        that import it."""
        if mutant.file not in self.lines:
            self.lines[mutant.file] = Lines((ROOT / mutant.file).read_text())
        named = self.lines[mutant.file]
        first, last = mutant.statement
        lines = range(first, last + 1)
        if named.imported[first]:
            return Chosen([], self._importing(mutant))
        calling = self._within(self.reach.of(mutant.file, lines, named) or self._of_new(mutant, lines, named))
        on_import = any(named.name(line) in self.reach.on_import[mutant.file] for line in lines)
        return Chosen(calling, self._importing(mutant) if on_import else [])

    def _importing(self, mutant: Mutant) -> list[Test]:
        """The tests that reach its file or one that imports it, those of its class first."""
        seen, level = {mutant.file}, [mutant.file]
        while level:
            level = sorted({each for file in level for each in self.importers[file]} - seen)
            seen |= set(level)
        found = dict.fromkeys(self.reach.of_function(mutant.file, mutant.function))
        further = {test for file in seen for test in self.reach.of_file(file)}
        found |= dict.fromkeys(sorted(further, key=lambda test: (test.alone, test.id)))
        return self._within(list(found))

    def _of_new(self, mutant: Mutant, lines: range, named: Lines) -> list[Test]:
        """Where the record has no such line: the tests of its function. A line that nothing reached has none."""
        known = self.reach.known.get(mutant.file, set())
        if any(named.name(line) in known for line in lines):
            return []
        return self.reach.of_function(mutant.file, mutant.function)

    def _within(self, tests: list[Test]) -> list[Test]:
        """The first of them that together take no longer than they may."""
        return [test for test, seconds in zip(tests, seconds_until(tests), strict=True) if seconds <= self.seconds]


class _Only:
    """The pytest plugin that keeps the chosen tests, in their order, and says which one failed."""

    def __init__(self, tests: list[str], failed: Path):
        self.order = {test: place for place, test in enumerate(tests)}
        self.failed = failed

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [each for each in items if each.nodeid in self.order]
        items[:] = sorted(chosen, key=lambda item: self.order[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.write_text(report.nodeid)


class Ran(NamedTuple):
    ended: Ended
    failed: str
    """The test that failed, if one did."""


class Copy:
    """A copy of the tree, and the two ways to run tests on it."""

    def __init__(self, tree: Path, collected: Collected):
        self.tree = tree
        self.collected = collected
        self.passed: dict[frozenset[str], bool] = {}
        """Per tests, whether they pass without a mutant."""

    def run(self, tests: list[Test], own_server: bool, mutant: Mutant | None, anew: bool) -> Ran:
        """Runs tests on the copy, which has the mutant. `anew`: in a process that imports everything anew."""
        failed = self.tree / "failed.txt"
        failed.unlink(missing_ok=True)
        names = [test.id for test in tests]
        variables = {"STANDING_SERVER": "" if own_server else os.environ.get("STANDING_SERVER", "")}
        longest = GRACE + SLOWER * max(seconds_until(tests), default=0.0)
        place = (mutant.file, mutant.statement[0]) if mutant else ("", 0)
        ended = None if anew else self.collected.run(RunRequest(*place, names, variables, longest))
        if ended is None or ended.code == OTHER_WAY:
            files = list(dict.fromkeys(name.partition("::")[0] for name in names))
            ended = run_pytest(self.tree, ["-x", *files], lambda: _Only(names, failed), longest, variables)
        return Ran(ended, failed.read_text() if failed.exists() else "")

    def judge(self, mutant: Mutant, chosen: Chosen, own_server: bool) -> dict[str, Any]:
        """What the tests make of the mutant; those that import it run if those that call it have passed."""
        began = time.monotonic()
        outcome, by, ran = self._judged(mutant, chosen.calling, own_server, anew=False)
        if outcome == "SURVIVED":
            outcome, by, further = self._judged(mutant, chosen.importing, own_server, anew=True)
            ran += further
        return {"outcome": outcome, "by": by, "seconds": time.monotonic() - began, "ran": ran}

    def _judged(self, mutant: Mutant, tests: list[Test], own_server: bool, anew: bool) -> tuple[str, str, int]:
        """The outcome, by which test, and how many ran. A test that fails on the whole copy, too, is no witness."""
        file = self.tree / mutant.file
        text = file.read_text()
        left, ran = list(tests), 0
        while left:
            part = left[:FIRST] if ran == 0 and anew else left
            file.write_text(mutant.broken(text))
            try:
                ended, failed = self.run(part, own_server, mutant, anew)
            finally:
                file.write_text(text)
            ran += len(part)
            if ended.code == 0:
                left = left[len(part) :]
                continue
            suspects = [test for test in part if test.id == failed] or part
            if self._passes_whole(suspects, own_server, anew):
                return "hung" if ended.code is None else "killed", failed, ran
            if not failed:
                return "ERROR", ended.log[-3000:], ran
            left.remove(suspects[0])
        return "SURVIVED", "", ran

    def _passes_whole(self, tests: list[Test], own_server: bool, anew: bool) -> bool:
        """Whether the tests pass on the copy as it is; asked once."""
        names = frozenset(test.id for test in tests)
        if names not in self.passed:
            self.passed[names] = self.run(tests, own_server, None, anew).ended.code == 0
        return self.passed[names]


def key_of(mutant: Mutant, chosen: Chosen, digests: dict[str, str]) -> str:
    """Names a result: the same for the same file, fault and tests."""
    files = sorted({test.partition("::")[0] for test in chosen.ids})
    text = (ROOT / mutant.file).read_text()
    parts = [text, *map(str, mutant), *sorted(set(chosen.ids)), *(digests[file] for file in files)]
    return sha256("\0".join(parts).encode()).hexdigest()[:20]


def equivalents() -> dict[tuple[str, str, str, str], str]:
    """Reasons by file, function, old and new line."""
    read = yaml.safe_load((Path(__file__).parent / "equivalents.yaml").read_text())
    return {(each["file"], each["function"], each["old"], each["new"]): each["because"] for each in read}


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="make mutants", description='Options go into MUTANTS="…".')
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--within", action="append", help="a room, folder or file; can be given several times")
    parser.add_argument("--seconds", type=float, default=240.0, help="of a mutant's tests; of more, the fastest run")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no mutant after so many")
    parser.add_argument("--jobs", type=int, default=2, help="processes with a copy of the tree each")
    options = parser.parse_args(arguments)
    import_heavy()
    drawn = sample(options.seed, options.number, options.within or list(ROOMS))
    with TemporaryDirectory(prefix="mutants-") as copies:
        measure(copy_of_the_tree(Path(mkdtemp(dir=copies))))
        tests = Tests(Reach(), options.seconds)
        with (
            _standing_server(),
            ProcessPoolExecutor(options.jobs, get_context("fork"), _begin, (Path(copies),)) as workers,
        ):
            ends = time.monotonic() + 60 * options.minutes
            results = list(_judged(drawn, tests, workers, options.jobs, ends))
    return report(results, f"seed {options.seed}")


def _judged(
    drawn: list[Mutant], tests: Tests, workers: ProcessPoolExecutor, jobs: int, ends: float
) -> Iterator[tuple[Mutant, dict[str, Any]]]:
    """The mutants in their order with their results, each printed and kept when it is known; none is begun once the
    time has ended."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    digests, known = digests_of_tests(), equivalents()
    waiting: deque[tuple[Mutant, Path, Future[dict[str, Any]] | None]] = deque()
    for mutant in drawn:
        if time.monotonic() > ends:
            break
        chosen = tests.of(mutant)
        kept = RESULTS / f"{key_of(mutant, chosen, digests)}.json"
        own = SERVER in tests.reach.contexts[mutant.file]
        waiting.append((mutant, kept, None if kept.exists() else workers.submit(_judge, mutant, chosen, own)))
        if len(waiting) > AHEAD * jobs:
            yield _result(*waiting.popleft(), known)
    while waiting:
        yield _result(*waiting.popleft(), known)


def _result(
    mutant: Mutant, kept: Path, future: Future[dict[str, Any]] | None, known: Collection[tuple[str, str, str, str]]
) -> tuple[Mutant, dict[str, Any]]:
    if future is not None:
        kept.write_text(json.dumps({"mutant": mutant._asdict()} | future.result(), indent=2))
    result = json.loads(kept.read_text())
    if result["outcome"] == "SURVIVED" and _name(mutant) in known:
        result["outcome"] = "equivalent"
    where = f"{mutant.file}:{mutant.statement[0]} {mutant.function}"
    print(f"{result['outcome']:>10} {result['seconds']:5.1f} s {result['ran']:4} tests  {where}: {mutant.operator}")
    if result["outcome"] not in ("killed", "hung"):
        print(f"             - {mutant.old}\n             + {mutant.new}")
    sys.stdout.flush()
    if result["outcome"] == "ERROR":
        print(result["by"])
        kept.unlink()
    return mutant, result


def report(results: list[tuple[Mutant, dict[str, Any]]], title: str) -> int:
    """Prints the table of the rooms; returns the exit code."""
    print(f"\n| room ({title}) | mutants | killed | rate | 95% interval | equivalent |")
    print("| --- | --- | --- | --- | --- | --- |")
    rate = 0.0
    for room in (*ROOMS, "all"):
        own = [result["outcome"] for mutant, result in results if room in ("all", mutant.file.partition("/")[0])]
        counted = [outcome for outcome in own if outcome != "equivalent"]
        if counted:
            killed = sum(outcome in ("killed", "hung") for outcome in counted)
            low, high = wilson(killed, len(counted))
            rate = killed / len(counted)
            row = [room, len(counted), killed, f"{rate:.1%}", f"{low:.1%} to {high:.1%}", len(own) - len(counted)]
            print(f"| {' | '.join(map(str, row))} |")
    return int(rate < GOAL or any(result["outcome"] == "ERROR" for _, result in results))


@contextmanager
def _standing_server() -> Iterator[None]:
    """The tests' environment server, unbroken, for mutants of files that no server executes; see tests/conftest.py."""
    from apprentice.envs.serving.process import local_server
    from tests.conftest import SERVER as COMMAND

    with local_server(*COMMAND) as url:
        os.environ["STANDING_SERVER"] = url
        yield


def _begin(copies: Path) -> None:
    global _copy
    tree = copy_of_the_tree(Path(mkdtemp(dir=copies)))
    _copy = Copy(tree, Collected(tree, list(digests_of_tests())))


def _judge(mutant: Mutant, chosen: Chosen, own_server: bool) -> dict[str, Any]:
    return _copy.judge(mutant, chosen, own_server)


def _name(mutant: Mutant) -> tuple[str, str, str, str]:
    return mutant.file, mutant.function, mutant.old, mutant.new


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
