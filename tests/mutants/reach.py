"""Which quick test reaches which line: one run of the quick tests under coverage, kept in build/mutants/reach.

Lines are named by the function they are in and their text, so that the record outlives edits elsewhere; a test file
that has changed is run anew. A process that a test starts counts for that test, and what a fixture of several tests
does for each of them.
"""

import ast
import json
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import coverage
import pytest

from tests.mutants.forked import ROOMS, ROOT, run_pytest

RECORD = ROOT / "build" / "mutants" / "reach"
BATCH = 12
"""Test files to a process."""
LONGEST = 3600.0
CONTEXT = "MUTANTS_CONTEXT"
"""The variable that tells a process which test started it."""
IMPORT = "import"
PLAYED = pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED
"""pytest's exit codes where it could import the tests."""
BESIDE, WHOLE_RUN = "fixture toy_home@tests/flows", 60.0
"""The fixture whose process starts before the first test (tests/flows/conftest.py), and the seconds that it takes."""


class Lines:
    """The names of a file's lines, and which lines belong to a statement."""

    def __init__(self, text: str):
        self.texts = text.splitlines()
        self.functions = [""] * (len(self.texts) + 1)
        self.imported = [True] * (len(self.texts) + 1)
        """Per line, whether it runs while the file is imported."""
        self._walk(ast.parse(text), "", True)

    def _walk(self, node: ast.AST, name: str, imported: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{name}.{child.name}".lstrip(".")
                within = imported and isinstance(child, ast.ClassDef)
                for line in range(child.body[0].lineno, (child.end_lineno or 0) + 1):
                    self.functions[line], self.imported[line] = inner, within
                self._walk(child, inner, within)
            else:
                self._walk(child, name, imported)

    def name(self, line: int) -> str:
        return f"{self.functions[line]}|{self.texts[line - 1].strip()}"


class Test(NamedTuple):
    """A test, with what it took when it was measured."""

    id: str
    own: float
    """Seconds without the fixtures that it shares with others."""
    fixtures: tuple[tuple[str, float], ...]
    """Those, and the seconds of each."""

    @property
    def alone(self) -> float:
        return self.own + sum(seconds for _, seconds in self.fixtures)


def seconds_until(tests: Iterable[Test]) -> Iterator[float]:
    """What the tests until each one, in this order, take together: a shared fixture once."""
    fixtures: set[str] = set()
    seconds = 0.0
    for test in tests:
        seconds += test.own + sum(cost for name, cost in test.fixtures if name not in fixtures)
        fixtures |= {name for name, _ in test.fixtures}
        yield seconds


class Reach:
    """What the record says about the present tree."""

    def __init__(self, folder: Path = RECORD):
        self.tests: dict[str, Test] = {}
        self.lines: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.contexts: defaultdict[str, set[str]] = defaultdict(set)
        """Per file, which fixtures of several tests execute it."""
        self.on_import: defaultdict[str, set[str]] = defaultdict(set)
        """Per file, the lines of functions that run while something is imported."""
        self.known: dict[str, set[str]] = {}
        """Per file, the lines that were there whenever tests were measured."""
        digests = digests_of_tests()
        for file in sorted(folder.glob("*.json")):
            read = json.loads(file.read_text())
            current = {name for name, digest in read["files"].items() if digests.get(name) == digest}
            costs = read["fixtures"]
            users: defaultdict[str, list[str]] = defaultdict(list)
            for test, (seconds, fixtures) in read["tests"].items():
                if test.partition("::")[0] in current:
                    self.tests[test] = Test(test, seconds, tuple((each, costs.get(each, 0.0)) for each in fixtures))
                    for fixture in fixtures:
                        users[fixture].append(test)
            for product, names in read["names"].items() if current else ():
                self.known[product] = self.known.get(product, set(names)) & set(names)
            for product, lines in read["lines"].items():
                self.contexts[product] |= {
                    each for contexts in lines.values() for each in contexts if each.startswith("fixture ")
                }
                self.on_import[product] |= {name for name, contexts in lines.items() if IMPORT in contexts}
                for name, contexts in lines.items():
                    for each in contexts:
                        self.lines[product][name] |= set(users.get(each, [])) if each.startswith("fixture ") else {each}
        for lines in self.lines.values():
            for tests in lines.values():
                tests.intersection_update(self.tests)

    def of(self, file: str, lines: Iterable[int], named: Lines) -> list[Test]:
        """The tests that reach one of these lines, the fastest first."""
        found: set[str] = set()
        for line in lines:
            found |= self.lines[file].get(named.name(line), set())
        return self._sorted(found)

    def of_function(self, file: str, function: str) -> list[Test]:
        """Those that reach any line of a function: for a line that the record has not seen."""
        return self._sorted({t for n, tests in self.lines[file].items() if n.startswith(f"{function}|") for t in tests})

    def of_file(self, file: str) -> list[Test]:
        """Those that reach any line of a file, for what runs when it is imported."""
        return self._sorted({test for tests in self.lines[file].values() for test in tests})

    def _sorted(self, tests: Iterable[str]) -> list[Test]:
        return sorted((self.tests[each] for each in tests), key=lambda test: (test.alone, test.id))


def digests_of_tests() -> dict[str, str]:
    """The files that `make test` collects from, those of the long suites left out."""
    apart = ("faults", "bench", "counterparts", "docker", "mutants")
    return {
        file.relative_to(ROOT).as_posix(): sha256(file.read_bytes()).hexdigest()
        for file in sorted((ROOT / "tests").rglob("test_*.py"))
        if file.relative_to(ROOT / "tests").parts[0] not in apart
    }


def measure(tree: Path, folder: Path = RECORD) -> None:
    """Runs the test files that the record lacks, a batch at a time, each recorded when it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    known = {pair for file in folder.glob("*.json") for pair in json.loads(file.read_text())["files"].items()}
    missing = [pair for pair in digests_of_tests().items() if pair not in known]
    for start in range(0, len(missing), BATCH):
        print(f"Which lines the quick tests reach: {start} of {len(missing)} test files", flush=True)
        files = dict(missing[start : start + BATCH])
        record = _measured(tree, files)
        name = sha256(json.dumps(files).encode()).hexdigest()[:16]
        (folder / f"{name}.part").write_text(json.dumps(record))
        (folder / f"{name}.part").rename(folder / f"{name}.json")


def _measured(tree: Path, files: dict[str, str]) -> dict[str, Any]:
    """The record of some test files, by their digests."""
    raw = tree / "coverage"
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir()
    rooms = "".join(f"\n    {tree / room}" for room in ROOMS)
    (raw / "settings").write_text(
        f"[run]\nsource ={rooms}\ndata_file = {raw / 'data'}\nparallel = true\nsigterm = true\npatch = _exit\n"
        f"disable_warnings = no-data-collected\ncontext = ${{{CONTEXT}}}\n"
    )
    variables = {"COVERAGE_PROCESS_START": str(raw / "settings"), CONTEXT: IMPORT}
    ended = run_pytest(tree, list(files), lambda: _Measuring(raw), LONGEST, variables)
    if ended.code not in PLAYED or not (raw / "tests.json").exists():
        raise SystemExit(f"The tests did not run:\n{ended.log[-4000:]}")
    ran = json.loads((raw / "tests.json").read_text())
    print(f"{ended.seconds:.0f} s. Failed, and left out: {', '.join(ran['failed']) or 'none'}", flush=True)
    return {"files": files, **ran, "lines": _lines(tree, raw), "names": _names(tree)}


def _lines(tree: Path, raw: Path) -> dict[str, dict[str, list[str]]]:
    found: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for part in raw.glob("data*"):
        data = coverage.CoverageData(str(part))
        try:
            data.read()
        except coverage.CoverageException as error:  # of a process that was killed while it wrote
            print(f"{part.name}: {error}", flush=True)
            continue
        beside = all("|" not in context for context in data.measured_contexts())
        for measured in data.measured_files():
            file = Path(measured).relative_to(tree).as_posix()
            if not file.endswith(".py"):  # a template, which jinja compiles under its own name
                continue
            named = Lines((tree / file).read_text())
            for line, contexts in data.contexts_by_lineno(measured).items():
                if 0 < line < len(named.imported) and not named.imported[line]:  # code of a test may have its name
                    names = {each.removeprefix(f"{IMPORT}|") for each in contexts}
                    found[file][named.name(line)] |= {BESIDE if beside and each == IMPORT else each for each in names}
    return {file: {name: sorted(each) for name, each in lines.items()} for file, lines in found.items()}


def _names(tree: Path) -> dict[str, list[str]]:
    """The names of all lines within functions."""
    found: dict[str, list[str]] = {}
    for room in ROOMS:
        for file in sorted((tree / room).rglob("*.py")):
            named = Lines(file.read_text())
            lines = range(1, len(named.imported))
            found[file.relative_to(tree).as_posix()] = sorted({named.name(n) for n in lines if not named.imported[n]})
    return found


class _Measuring:
    """The pytest plugin that keeps the context of coverage, and how long each test took."""

    def __init__(self, raw: Path):
        self.raw = raw
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.outcomes: defaultdict[str, set[str]] = defaultdict(set)
        self.fixtures: dict[str, list[str]] = {}
        self.running: list[str] = []
        """The test, and the shared fixtures that are being set up within it."""
        self.costs: dict[str, float] = {}
        self.coverage = coverage.Coverage(config_file=os.environ["COVERAGE_PROCESS_START"])
        self.coverage.start()

    def switch(self, context: str) -> str:
        before = os.environ[CONTEXT]
        os.environ[CONTEXT] = context
        self.coverage.switch_context(context)
        return before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        definitions: dict[str, Any] = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
        self.fixtures[item.nodeid] = [_context(last) for *_, last in definitions.values() if last.scope != "function"]
        self.running = [item.nodeid]
        before = self.switch(item.nodeid)
        ended = yield
        self.switch(before)
        return ended

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function":
            return (yield)
        self.running.append(_context(fixturedef))
        before, began = self.switch(self.running[-1]), time.monotonic()
        try:
            return (yield)
        finally:
            seconds = time.monotonic() - began
            self.costs[self.running.pop()] = round(seconds, 3)
            if len(self.running) == 1:  # the outermost
                self.seconds[self.running[0]] -= seconds
            self.switch(before)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        self.outcomes[report.nodeid].add(report.outcome)

    def pytest_unconfigure(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        passed = {test for test, outcomes in self.outcomes.items() if outcomes == {"passed"}}
        if BESIDE in self.costs:
            self.costs[BESIDE] = max(self.costs[BESIDE], WHOLE_RUN)
        tests = {test: [round(self.seconds[test], 3), self.fixtures[test]] for test in sorted(passed)}
        failed = sorted(test for test, outcomes in self.outcomes.items() if "failed" in outcomes)
        (self.raw / "tests.json").write_text(json.dumps({"tests": tests, "fixtures": self.costs, "failed": failed}))


def _context(fixture: Any) -> str:
    return f"fixture {fixture.argname}@{fixture.baseid}"
