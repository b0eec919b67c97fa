"""The audit's checks as graders of OpenEnv's `validate`, under its names; OpenEnv's policy decides how severe each is.

In: OpenEnv's `Subject`, a package whose server runs. Out: its `CheckResult`. The entry points of the group
`openenv.validation.graders` in pyproject.toml name the graders below. Needs openenv 0.10.
"""

from functools import cache
from importlib import import_module
from time import perf_counter
from typing import Any

from pydantic import ValidationError

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.wire.metadata import metadata_of
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.flows.audit.audit import Report, audit
from apprentice.flows.audit.connection import known_as
from apprentice.flows.audit.play.findings import CheckResult
from apprentice.flows.audit.play.subject import Extent, Needs, Subject
from apprentice.flows.runtime.servers import completed
from apprentice.tasks.reporting.errors import Stop

FIRST = ("health", "wire", "schema.tools")
"""Checks without which no other has a result."""


@cache
def audited(url: str, named: str) -> Report | str:
    """Audit a server once for all graders; return why it cannot be, if so.

    Args:
        named: The package's name. If no environment has it, the server's own name decides, or it has MCP tools.
    """
    server = EnvironmentServer(url=url)
    name = known_as(named) or known_as(metadata_of(server).name) or "mcp"
    try:
        spec = completed(EnvironmentSpec(name=name), server)
    except ValidationError as invalid:
        return f"{name} has settings without a default, which a manifest does not give: {invalid.error_count()}"
    except Stop as stop:
        return str(stop)
    return audit(Subject(server, spec, Needs(0, 0, 4), extent=Extent(seeds=12, samples=300, seconds=2.0)))


class AuditGrader:
    """One of OpenEnv's checks, made of those of the audit."""

    requires_capabilities: frozenset[str] = frozenset()
    requires_provider: frozenset[Any] = frozenset()
    depends_on = ("runtime.startup",)

    def __init__(self, check_id: str, *checks: str):
        self.check_id = check_id
        self.checks = checks

    @property
    def level(self) -> Any:
        """OpenEnv's level, by the name that the check's id begins with."""
        return import_module("openenv.validation").Level[self.check_id.partition(".")[0].upper()]

    def applies_to(self, manifest: Any) -> bool:
        return True

    def run(self, subject: Any) -> Any:
        """Return the `CheckResult`: failed if any of its checks is, skipped if none applies."""
        start = perf_counter()
        if subject.running is None:
            return self._result("skip", start, ["the audit plays the package's server, and none runs"])
        report = audited(subject.running.base_url, subject.manifest.name)
        if isinstance(report, str):
            return self._result("skip", start, [report])
        own = [each for each in report.findings if each.check in self.checks]
        wrong = [each for each in report.findings if each.status == "failed" and (each in own or each.check in FIRST)]
        made = [each for each in own if each.status != "does not apply"]
        status = "fail" if wrong else "pass" if made else "skip"
        return self._result(status, start, list(_lines(wrong or own)), own, wrong)

    def _result(
        self, status: str, start: float, evidence: list[str], own: list[CheckResult] | None = None, wrong: Any = ()
    ) -> Any:
        report, types = import_module("openenv.validation.report"), import_module("openenv.validation.types")
        return report.CheckResult(
            check_id=self.check_id,
            status=types.CheckStatus(status),
            measured={each.check: each.status for each in own or ()},
            evidence=evidence,
            remediation=" ".join(each.remedy for each in wrong) or None,
            duration_s=perf_counter() - start,
        )


def _lines(findings: list[CheckResult]) -> list[str]:
    return [line for each in findings for line in (f"{each.check}: {each.found}", *map(str, each.evidence))]


seed_control = AuditGrader("runtime.seed_control", "seeds.repeat", "seeds.ignored", "seeds.load")
episode_determinism = AuditGrader("runtime.episode_determinism", "reward.repeat")
episode_isolation = AuditGrader(
    "runtime.episode_isolation", "isolation.interleaved", "isolation.grading", "isolation.reset", "isolation.crash"
)
tool_declaration = AuditGrader("runtime.tool_declaration_accuracy", "schema.tools", "robustness.arguments")
oracle_max = AuditGrader("semantic.oracle_max", "reward.oracle")
canary_floor = AuditGrader("semantic.canary_floor", "reward.exploit", "robustness.after_end")
solution_leakage = AuditGrader("semantic.no_solution_leakage", "leaks.question", "leaks.reply", "leaks.hidden")
verifier_determinism = AuditGrader("semantic.verifier_determinism", "reward.range", "reward.repeat")
