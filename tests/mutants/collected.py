"""The quick tests of a copy of the tree, collected once, in a process that forks for each mutant.

In the fork the functions of the mutant's file get the code of the broken text, so that nothing is imported or collected
again. It is no way for what runs on import, nor for a function whose closure the mutant changes: those need a new
process (forked.py).
"""

import gc
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FunctionType
from typing import NamedTuple

import pytest
from _pytest import main

from tests.mutants.forked import Ended, in_tree, run_pytest_in, wait_for

OTHER_WAY = 99
"""Exit code: these tests of this mutant need a process of their own."""


class RunRequest(NamedTuple):
    """What a fork runs."""

    file: str
    line: int
    """Where the mutant begins; 0: the code as it is."""
    tests: list[str]
    variables: dict[str, str]
    longest: float


class Collected:
    """The process, seen from the one that asks it."""

    def __init__(self, tree: Path, files: list[str]):
        self.tree = tree
        self._connection, other = get_context("fork").Pipe()
        get_context("fork").Process(target=_serve, args=(tree, files, other, self._connection), daemon=True).start()
        other.close()
        self._connection.recv()

    def run(self, request: RunRequest) -> Ended:
        """Runs tests in a fork. The copy holds the mutant's text already; of its process the code is OTHER_WAY."""
        self._connection.send(tuple(request))
        return Ended(*self._connection.recv())


def _serve(tree: Path, files: list[str], connection: Connection, others: Connection) -> None:
    others.close()
    run_pytest_in(tree, ["-x", *files], lambda: Server(tree, connection), {}, tree / "collected.txt")


class Server:
    """The pytest plugin that waits for mutants where pytest would run what it collected."""

    def __init__(self, tree: Path, connection: Connection):
        self.tree = tree
        self.connection = connection
        self.items: dict[str, pytest.Item] = {}
        self.texts = {file: (tree / file).read_text() for file in in_tree(tree)}
        self.functions: defaultdict[str, list[FunctionType]] = defaultdict(list)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.items = {each.nodeid: each for each in items}
        items.clear()  # a conftest starts nothing for them

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        gc.unfreeze()
        for found in gc.get_objects():
            if type(found) is FunctionType:
                path = Path(os.path.realpath(found.__code__.co_filename))
                if path.is_relative_to(self.tree):
                    self.functions[path.relative_to(self.tree).as_posix()].append(found)
        gc.freeze()
        self.connection.send("ready")
        while True:
            try:
                request = RunRequest(*self.connection.recv())
            except EOFError:
                return True
            self.connection.send(tuple(self.forked(session, request)))  # pytest's process has classes of its own

    def forked(self, session: pytest.Session, request: RunRequest) -> Ended:
        child = os.fork()
        if child == 0:
            code = OTHER_WAY
            try:
                os.setsid()
                os.environ.update(request.variables)
                if all(test in self.items for test in request.tests) and self.breaks(request.file, request.line):
                    code = self.run(session, [self.items[test] for test in request.tests])
            finally:
                os._exit(code)
        return wait_for(child, request.longest, self.tree / "collected.txt")

    def run(self, session: pytest.Session, items: list[pytest.Item]) -> int:
        session.items = items
        session.testsfailed = 0
        session.config._tmp_path_factory._given_basetemp = self.tree / "temporary"  # type: ignore[attr-defined]
        with suppress(session.Failed):
            main.pytest_runtestloop(session)
        session._setupstate.teardown_exact(None)
        return int(session.testsfailed > 0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            (self.tree / "failed.txt").write_text(report.nodeid)

    def breaks(self, file: str, line: int) -> bool:
        """Gives the functions of a file the code that its text has now; False if that would not be the whole mutant."""
        if not line or not self.functions[file]:  # a module that only tests import
            return True
        named = str(self.tree / file)
        code = compile(self.texts[file], named, "exec", dont_inherit=True)
        broken = compile((self.tree / file).read_text(), named, "exec", dont_inherit=True)
        others = {_place(old): new for old, new in _pairs(code, broken)}
        changed = False
        for function in self.functions[file]:
            old = function.__code__
            new = others.get(_place(old))
            if new is None or new.co_freevars != old.co_freevars:
                return False
            function.__code__ = new
            changed |= line in range(old.co_firstlineno, _last_line(old) + 1)
        return changed


def _pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Each function's code with what it is in the other text."""
    yield old, new
    olds, news = ([each for each in code.co_consts if isinstance(each, CodeType)] for code in (old, new))
    if [each.co_name for each in olds] == [each.co_name for each in news]:
        for pair in zip(olds, news, strict=True):
            yield from _pairs(*pair)


def _place(code: CodeType) -> tuple[str, tuple[tuple[int | None, ...], ...]]:
    return code.co_qualname, tuple(code.co_positions())


def _last_line(code: CodeType) -> int:
    nested = [_last_line(each) for each in code.co_consts if isinstance(each, CodeType)]
    return max([code.co_firstlineno, *nested, *(line for _, _, line in code.co_lines() if line)])
