"""Audits an environment: `apprentice env audit` makes all checks, `env check` and a run's preflight the quick ones.

In: a `Subject`. Out: a `Report` with one finding a check. Stops at an error that makes the later checks meaningless.
"""

import json
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from apprentice.envs.catalog import EnvironmentSpec, ExtraMissing, NoServer, check_server
from apprentice.envs.defaults import debugging
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.reply import BadReply, one_line
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Refused, SessionLost
from apprentice.envs.wire.waiting import wait_for
from apprentice.flows.audit import asking, exploits, isolation, near_misses, own_code, robustness, seeds
from apprentice.flows.audit.connection import STOPS, health, latency, latency_ms, sessions, shut, wire
from apprentice.flows.audit.play.check import Check
from apprentice.flows.audit.play.faults import fault_of
from apprentice.flows.audit.play.findings import BREAKS, CORRECT, TOOL, CheckResult, does_not_apply, failed
from apprentice.flows.audit.play.subject import Opened, Subject

BLOCKING = (health, own_code.declared, asking.tools, wire, seeds.repeat, seeds.ignored, exploits.in_range)
"""If one of these fails, no later check can be judged."""
CHECKS = (
    *(health, sessions, own_code.declared, asking.tools, wire, own_code.traits),
    *(seeds.repeat, seeds.ignored, exploits.in_range, latency),
    own_code.script,
    *seeds.CHECKS,
    *asking.CHECKS,
    *exploits.CHECKS,
    *near_misses.CHECKS,
    *isolation.CHECKS,
    *robustness.CHECKS,
    own_code.played,
)
EXIT_CODES = {"error": 1, "warning": 3, "note": 0}
"""Of a command, by its worst finding; 2 is that of wrong arguments."""

KNOWN = Path(__file__).parent / "known.json"
"""What `make audit` found in environments under their default settings."""


class Report(NamedTuple):
    """The result of an audit."""

    findings: list[CheckResult]
    granted: int
    """Sessions that were opened."""
    latency_ms: dict[str, float]
    questions: Sequence[str] = ()
    """The questions of the subject's seeds."""

    def of(self, severity: str) -> list[CheckResult]:
        """Return the failed checks of a severity."""
        return [each for each in self.findings if each.status == "failed" and each.severity == severity]

    @property
    def wrong(self) -> CheckResult | None:
        return next(iter(self.of("error")), None)

    @property
    def exit_code(self) -> int:
        return next((code for severity, code in EXIT_CODES.items() if code and self.of(severity)), 0)


def audit(subject: Subject, quick: bool = False, say: Callable[[str], None] = lambda text: None) -> Report:
    """Make all checks, or the quick ones. `say` is told the name of each before it begins."""
    findings: list[CheckResult] = []
    chosen = [each for each in CHECKS if each.quick or not quick]
    try:
        for place, each in enumerate(chosen, 1):
            say(f"{each.name} ({place} of {len(chosen)})")
            try:
                finding = each.finding(each.run(subject))
            except (Refused, BadReply) as refused:
                finding = each.finding(does_not_apply(f"the episodes for it could not be played: {refused}"))
            except SessionLost as lost:
                finding = _lost(each, subject, lost)
            except Exception as error:  # of the code of the environment's author, or of the check itself
                finding = _failure(each, subject, error)
            if finding.status == "failed" and (
                same := [other.check for other in findings if other.found == finding.found]
            ):
                finding = each.finding(does_not_apply(f"it ended where {same[0]} did"))
            findings.append(finding)
            if _ends(finding, subject):
                blocked = does_not_apply(f"it cannot be judged where {each.name} failed")
                findings += [other.finding(blocked) for other in chosen[place:]]
                break
        took = latency_ms(subject)
    finally:
        wait_for(shut(subject.sessions))
    return Report(findings, subject.granted, took, subject.seen.questions if subject.seen else ())


def _lost(check: Check, subject: Subject, lost: SessionLost) -> CheckResult:
    """Return the finding of a check during which the server was lost."""
    fault = subject.fault_in_tried()
    said = str(fault) if fault else f"the server was lost: {lost}"
    remedy = TOOL if fault else "See its log and audit again."
    return check._replace(effect=STOPS).finding(failed(said, remedy, severity="error"))


def _failure(check: Check, subject: Subject, error: Exception) -> CheckResult:
    """Return the finding of a check that raised an exception: where the author's code did, or that the check failed."""
    if debugging():
        traceback.print_exception(error)
    if fault := fault_of(error, subject.files):
        return check._replace(effect=BREAKS).finding(failed(str(fault), CORRECT, severity="error"))
    said = f"this check could not be made ({one_line(f'{type(error).__name__}: {error}', 200)})"
    remedy = "Run again with --debug for the traceback, and report it: it is a fault of the audit."
    severity = "error" if check in BLOCKING else "warning"
    return check._replace(effect="").finding(failed(said, remedy, severity=severity))


def _ends(finding: CheckResult, subject: Subject) -> bool:
    """Whether nothing further can be judged."""
    if finding.check == sessions.name:
        return not subject.sessions
    wrong = finding.status == "failed" and finding.severity == "error"
    return wrong and (finding.effect == STOPS or finding.check in [each.name for each in BLOCKING])


def openers(spec: EnvironmentSpec, served_here: bool) -> tuple[Opened | None, Opened | None]:
    """Return how to start the processes that an audit compares with: `elsewhere` and `original` of a `Subject`.

    Args:
        served_here: Whether the audited server runs the installed code; otherwise it is compared with that.
    """

    @contextmanager
    def opened(hash_seed: int) -> Iterator[EnvironmentServer]:
        given = ("apprentice.envs.serving.serve", spec.name, "--max-sessions", "4")
        with local_server(*given, hash_seed=hash_seed) as url:
            yield EnvironmentServer(url=url)

    try:
        check_server(spec.name)
    except (NoServer, ExtraMissing):
        return None, None
    return (lambda: opened(1), None) if served_here else (None, lambda: opened(0))


def found_before(spec: EnvironmentSpec) -> list[str]:
    """Return a sentence for each failed check that `make audit` found in this environment, or in a part of it."""
    parts = [part.get("name") for part in spec.settings.get("dataset_specs") or [] if isinstance(part, dict)]
    settings = [spec.settings, *(spec.settings | {"dataset": name} for name in parts)]
    return [
        f"{' '.join([spec.name, *map(str, each['settings'].values())])} failed {each['check']} under default settings "
        f"({each['severity']}): {one_line(each['found'])}. {one_line(' '.join(each['evidence']))}".rstrip()
        for each in json.loads(KNOWN.read_text())
        if each["environment"] == spec.name and any(each["settings"].items() <= given.items() for given in settings)
    ]


def verdict(server: EnvironmentServer, spec: EnvironmentSpec, report: Report) -> str:
    """Return the closing sentence."""
    if wrong := report.of("error"):
        return f"{server.url} does not work for {spec}: {', '.join(each.check for each in wrong)}."
    slow = [each.check for each in report.of("note")]
    few = f", with too few {' and '.join(slow)}" if slow == ["sessions"] else ""
    doubtful = ", ".join(each.check for each in report.of("warning"))
    return f"{server.url} works for {spec}{few}{', with warnings: ' if doubtful else ''}{doubtful}."


def as_json(subject: Subject, report: Report) -> dict[str, Any]:
    """Return what `--json` prints."""
    return {
        "ok": report.wrong is None,
        "url": subject.server.url,
        "environment": subject.spec.name,
        "granted": report.granted,
        "needed": subject.needs._asdict(),
        "latency_ms": {what: round(each, 2) for what, each in report.latency_ms.items()},
        "findings": [each.as_json() for each in report.findings],
    }
