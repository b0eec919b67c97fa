"""What an audit says: the finding of each check, with the least that shows it.

In: what a check found. Out: a `CheckResult`, with what a failure does to a training and what to change.
"""

import json
from typing import Any, Literal, NamedTuple

from apprentice.envs.wire.reply import one_line
from apprentice.tasks.episodes.episode import Call

Severity = Literal["error", "warning", "note"]
"""An error spoils a training, a warning costs a part of it, a note is for information."""
Status = Literal["passed", "failed", "does not apply"]
BREAKS = "The environment's own code fails, and with it the stage of a run that calls it."
CORRECT = "Correct it there."
TOOL = "Correct it there. A ValueError that a tool raises is told to the model; nothing else may leave a method."
NO_SCRIPT = "no script plays it, so the right answer is not known"


class CheckEvidence(NamedTuple):
    """The least that shows a finding: play the calls in the episode of the seed."""

    seed: int
    calls: tuple[Call, ...]
    saw: str
    """What the environment returned, or what is wrong with it."""

    def __str__(self) -> str:
        shown = "; ".join(
            f"{tool}({one_line(json.dumps(given, ensure_ascii=False), 200)})" for tool, given in self.calls
        )
        return f"seed {self.seed}: {shown or 'reset'} → {one_line(self.saw)}"


class CheckResult(NamedTuple):
    """One check's result."""

    check: str
    """Its name; this, the effect and the usual severity are the check's to say, not its function's."""
    status: Status
    severity: Severity | None
    found: str
    evidence: tuple[CheckEvidence, ...] = ()
    effect: str = ""
    """What a failure does to a training; empty unless it failed."""
    remedy: str = ""
    may_pass: bool = False
    """Whether it may pass later by itself, such as a server that is starting or a Space that wakes up."""

    def as_json(self) -> dict[str, Any]:
        return self._asdict() | {"evidence": [each._asdict() | {"text": str(each)} for each in self.evidence]}


def passed(found: str) -> CheckResult:
    return CheckResult("", "passed", None, found)


def failed(found: str, remedy: str, *evidence: CheckEvidence, severity: Severity | None = None) -> CheckResult:
    return CheckResult("", "failed", severity, found, evidence, remedy=remedy)


def does_not_apply(why: str) -> CheckResult:
    return CheckResult("", "does not apply", None, why)
