"""Takes conversations that exist in place of a collection, once the environment has confirmed them.

In: a file, a folder or a dataset of the Hub, the environment, its questions. Out: `Rollouts`: rollouts.jsonl, and
verification.json (counts by cause; the place, field and cause of each row that is left out).
Why: a row may be forged, or of another prompt. So only an assistant's turns are taken from it: the question's seed is
found by the row's text, the calls are played again, and prompt, replies and reward are the environment's own.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.wire.metrics import count
from apprentice.envs.wire.session import SessionLost
from apprentice.tasks.artifacts.foreign import rows_of
from apprentice.tasks.artifacts.types import Questions, Rollouts
from apprentice.tasks.collect import COUNTED
from apprentice.tasks.engine.run import leases
from apprentice.tasks.engine.stage import Drawn, StageContext, stage
from apprentice.tasks.episodes.record import Record, read_questions, same_text, used_questions
from apprentice.tasks.questions import ask
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.rescore import in_order
from apprentice.tasks.settings.spec import TRAINED_ON, DatasetSpec, Purpose
from apprentice.tasks.verify import Checked, Known, Verifier

VERIFIED = "verified by the environment"
REPORT = "verification.json"
LONGEST = 160
"""Characters of a cause in the table; verification.json has all."""


@stage(produces=Rollouts, version=2, title="Rollouts of {spec.path}", drawn=Drawn("Rollouts", "episodes", "episodes"))
def take_rollouts(
    context: StageContext, spec: DatasetSpec, environment: EnvironmentSpec, questions: Questions, unverified: str
) -> dict[str, Any]:
    """Publishes the rows that the environment confirms. Raises Stop when none is left, or the environment is lost.

    Args:
        unverified: "keep" to take rows at their word whose question no known seed asks; "drop" to leave them out.
    """
    known = _known(context, spec, environment, questions)
    server = context.run.servers.environment(environment.name)
    keeps = unverified == "keep"
    records: dict[bytes, Record] = {}
    twice: list[str] = []
    report = RowReport(spec.path, keeps)
    try:
        with EnvironmentPool(environment, server, say=announce.warn, lease=leases) as pool:
            verify = Verifier(environment, known, spec.columns)
            checked = in_order(pool, lambda instance, row: verify(instance, row.data), rows_of(spec))
            for number, (row, found) in enumerate(checked, 1):
                count("episodes")
                report.add(row.where, found)
                record = found.record
                if record is None or (found.cause and not keeps):
                    continue
                if found.cause:  # no seed of the environment
                    record = record.model_copy(update={"seed": -number, "verified": "no"})
                elif keeps:
                    record = record.model_copy(update={"verified": "yes"})
                if (line := record.line()) in records:
                    twice.append(row.where)
                records[line] = record
    except SessionLost as gone:
        raise Stop(f"The environment is out of reach: {gone}.", "Check that it runs, then run again.") from gone
    report.write(context.out)
    show_report(context.out)
    if not records:
        raise report.nothing()
    if twice:
        announce.warn(f"{len(twice)} rows stand in {spec.path} twice and count once, such as {twice[0]}.")
    (context.out / "rollouts.jsonl").write_bytes(b"".join(records))
    totals = {name: sum(getattr(record, name) for record in records.values()) for name in COUNTED}
    return {"episodes": len(records), "failed": sum(bool(record.failed_at) for record in records.values()), **totals}


def _known(context: StageContext, spec: DatasetSpec, environment: EnvironmentSpec, questions: Questions) -> Known:
    """The questions of the recipe's windows and of the given seeds; the collect window's come first."""
    folder = context.fetch(questions)
    examined = {same_text(row["question"]) for row in used_questions(folder, Purpose.EVALUATE)}
    seeds: dict[str, int] = {}
    given = ask(context, environment, spec.seeds.seeds(), "collect.dataset.seeds") if spec.seeds else {}
    for purpose in TRAINED_ON:
        for row in read_questions(folder, purpose):
            seeds.setdefault(same_text(row["question"]), row["seed"])
    for seed, text in sorted(given.items()):
        seeds.setdefault(same_text(text), seed)
    return Known(seeds, examined)


def show_report(folder: Path) -> list[dict[str, str]]:
    """Show the table of the rollouts in a folder; return the rows that were left out, none for rollouts of others."""
    if not (folder / REPORT).exists():
        return []
    report = json.loads((folder / REPORT).read_text())
    if report["counts"]:
        announce.table("taken-rows", report["title"], report["counts"])
    return report["left_out"]


class RowReport:
    """The rows of one dataset.

    Args:
        path: The dataset, as the recipe names it.
        keeps: Whether rows that could not be verified are taken at their word.

    Attributes:
        left_out: Place, field and cause of each row that is not taken, in the rows' order.
    """

    def __init__(self, path: str, keeps: bool):
        self.left_out: list[dict[str, str]] = []
        self._path = path
        self._keeps = keeps
        self._rows = 0
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}

    def add(self, where: str, found: Checked) -> None:
        """Count a row."""
        if found.record is None:
            self._refused(where, found.field, found.cause)
        elif found.cause:
            self._unverified(where, found.field, found.cause)
        elif found.record.failed_at:
            self._add("failed when they were collected", where)
        else:
            self._verified(where, found.record.reward, found.notes)
        self._rows += 1

    def _verified(self, where: str, reward: float | None, notes: tuple[str, ...]) -> None:
        self._add(VERIFIED, where)
        self._add("of these with reward 1.0" if reward == 1.0 else "of these with a lower reward", where)
        for note in notes:
            self._add(f"of these: {note}", where)

    def _unverified(self, where: str, field: str, cause: str) -> None:
        self._add(f"not verified, {'kept' if self._keeps else 'dropped'}: {cause}", f"{where}: {field}")
        if not self._keeps:
            self.left_out.append({"where": where, "field": field, "cause": cause, "verified": "no"})

    def _refused(self, where: str, field: str, cause: str) -> None:
        kind, _, example = cause.partition(": ")
        self._add(f"refused: {kind[:LONGEST]}", f"{where}: {field}" + (f", {example[:LONGEST]}" if example else ""))
        self.left_out.append({"where": where, "field": field, "cause": cause, "verified": "no"})

    def write(self, out: Path) -> None:
        """Write verification.json: the title, a line a cause with its first row, the number of other rows."""
        rows = [
            {"rows": what, "count": number, "such as": self._examples[what]} for what, number in self._counts.items()
        ]
        report = {"title": f"{self._rows} rows of {self._path}", "counts": rows, "left_out": self.left_out}
        (out / REPORT).write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n")

    def nothing(self) -> Stop:
        """Return the error for a dataset of which no row is taken."""
        if not self._rows:
            return Stop(f"{self._path} holds no rollouts: its files have no row.", "Check collect.dataset.path.")
        first = self.left_out[0]
        causes = ", ".join(f"{number} × {what}" for what, number in self._counts.most_common(3))
        return Stop(
            f"None of the {self._rows} rows of {self._path} is taken ({causes}); {first['where']}, {first['field']}: "
            f"{first['cause']}.",
            "Take rows of this environment, give the seeds of their questions (collect.dataset.seeds), name their "
            "columns (collect.dataset.columns), or set collect.unverified=keep to take them at their word.",
        )

    def _add(self, what: str, where: str) -> None:
        self._counts[what] += 1
        self._examples.setdefault(what, where)
