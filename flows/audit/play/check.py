"""A check of an audit: its name, what a failure does to a training, and the function that makes it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from apprentice.flows.audit.play.findings import CheckResult, Severity

if TYPE_CHECKING:
    from apprentice.flows.audit.play.subject import Subject


class Check(NamedTuple):
    """A check: its name, and what a failure does to a training."""

    name: str
    severity: Severity
    effect: str
    quick: bool
    run: "Callable[[Subject], CheckResult]"

    def finding(self, verdict: CheckResult) -> CheckResult:
        effect = self.effect if verdict.status == "failed" else ""
        return verdict._replace(check=self.name, severity=verdict.severity or self.severity, effect=effect)


def check(
    name: str, severity: Severity, effect: str, quick: bool = False
) -> Callable[["Callable[[Subject], CheckResult]"], Check]:
    """Make a check of a function. `quick`: whether a run makes it before it buys anything."""
    return lambda run: Check(name, severity, effect, quick, run)
