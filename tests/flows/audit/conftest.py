"""Toy games that an audit looks at, on a server of their own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec, known
from apprentice.envs.folders import FOLDERS
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.waiting import wait_for
from apprentice.flows.audit.audit import audit
from apprentice.flows.audit.connection import sessions, shut, wire
from apprentice.flows.audit.play.check import Check
from apprentice.flows.audit.play.findings import CheckResult
from apprentice.flows.audit.play.subject import Extent, Needs, Subject

GAMES = Path(__file__).parent / "games"


class Served:
    """A game in one file, with its server."""

    def __init__(self, name: str, url: str):
        self.name, self.server = name, EnvironmentServer(url=url, message_timeout=2.0, patience=4.0)

    def subject(self, fault: str, seeds: int = 24, seconds: float = 2.0) -> Subject:
        spec = EnvironmentSpec(name=self.name, settings={"fault": fault})
        return Subject(self.server, spec, Needs(0, 0, 4), extent=Extent(seeds, 16, seconds))

    def finding(self, fault: str, check: Check) -> CheckResult:
        """Make one check alone."""
        looked_at = self.subject(fault)
        sessions.run(looked_at)
        wire.run(looked_at)
        try:
            return check.finding(check.run(looked_at))
        finally:
            wait_for(shut(looked_at.sessions))

    def failed(self, fault: str, seeds: int = 4, seconds: float = 0.4) -> list[CheckResult]:
        """Make all checks, and return those that fail."""
        report = audit(self.subject(fault, seeds, seconds))
        return [each for each in report.findings if each.status == "failed"]


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Served]]:
    """Serves a game of the folder `games` by its name, until the tests of the module end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDERS, ":".join(str(each) for each in sorted(GAMES.glob("*.py"))))
        known.cache_clear()
        started: dict[str, Any] = {}

        @contextmanager
        def serving(name: str) -> Iterator[Served]:
            with local_server("apprentice.envs.serving.serve", name, "--max-sessions", "16") as url:
                yield Served(name, url)

        def get(name: str) -> Served:
            if name not in started:
                context = serving(name)
                started[name] = context.__enter__()
                request.addfinalizer(lambda: context.__exit__(None, None, None))
            return started[name]

        yield get
    known.cache_clear()
