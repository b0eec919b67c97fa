"""Has a teacher judge the rows of a dataset whose question no known seed asks, such as those of a served model's log.

In: `Rollouts` of a dataset, taken at their word; the teacher; the environment. Out: `RelabelledRollouts`:
rollouts.jsonl in the same order, answers.json (what the teacher said), verification.json.
Why: no environment can play a question without a seed. So two answers that agree count as right: the row's and the
teacher's, or else two of the teacher's, which the row then has. A row of several turns is left out, because no
environment can give the replies.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.artifacts.alike import made_alike
from apprentice.tasks.artifacts.types import COUNTED, RelabelledRollouts, Rollouts
from apprentice.tasks.collect import check_address
from apprentice.tasks.dataset import REPORT
from apprentice.tasks.engine.stage import Drawn, StageContext, stage
from apprentice.tasks.episodes.journal import Journal, journal
from apprentice.tasks.episodes.record import Record, turns_of
from apprentice.tasks.episodes.thinking import THOUGHT
from apprentice.tasks.files.json_lines import read_rows
from apprentice.tasks.open_questions import Asker, OpenQuestion, does_the_same
from apprentice.tasks.reporting import announce
from apprentice.tasks.settings.endpoint import TeacherSpec
from apprentice.tasks.settings.spec import CollectSpec

ANSWERS = "answers.json"
"""What the teacher said, a record for each answer; no JSON lines, which an import of the folder would take for rows."""
CONFIRMED, REPLACED = "the teacher gives the same answer", "replaced by the teacher's answer, which it gives twice"
DIFFER = "the teacher gives two different answers"
SEVERAL = "its episode may have several turns, whose replies no environment can give"
SHOWN = 80
"""Characters of a question in a table."""


class RelabelledRow(NamedTuple):
    """A row, and what became of it: CONFIRMED, REPLACED or why it is left out."""

    record: Record
    what: str
    is_left_out: bool = False


@stage(
    produces=RelabelledRollouts,
    version=1,
    title="Rows judged by the teacher ({teacher.called})",
    drawn=Drawn("Relabel", "episodes", "episodes"),
)
def relabel(
    context: StageContext, spec: CollectSpec, teacher: TeacherSpec, environment: EnvironmentSpec, rollouts: Rollouts
) -> dict[str, Any]:
    """Judges the rows that nobody has verified. Raises Stop; the teacher's answers are kept."""
    taken = context.fetch(rollouts)
    records = [Record.model_validate(row) for row in read_rows(taken / "rollouts.jsonl")]
    questions = _open_questions(records, environment)
    settings = {"teacher": teacher.in_key(), spec.section: spec.in_key(), "environment": environment.in_key()}
    check_address(context.scratch / "address", teacher)
    with journal(context.scratch, settings, announce.warn) as kept:
        _take_known(context, kept, (spec, teacher, environment), questions)
        Asker(context, spec, teacher, environment, kept).ask([*questions.values()])
        lines = [*kept.in_order()]
    answers = {record.seed: record for record in map(Record.model_validate_json, lines)}
    judged = [_relabelled(record, questions, answers, teacher) for record in records]
    (context.out / ANSWERS).write_bytes(b"[" + b",".join(lines) + b"]\n")
    (context.out / "rollouts.jsonl").write_bytes(b"".join(each.record.line() for each in judged))
    left_out = sum(each.is_left_out for each in judged)
    _report(judged, taken / REPORT, context.out / REPORT)
    return {
        "episodes": len(judged),
        "failed": sum(bool(each.record.failed_at) for each in judged),
        "confirmed": sum(each.what == CONFIRMED for each in judged),
        "replaced": sum(each.what == REPLACED for each in judged),
        "undecided": left_out,
        **{name: sum(getattr(answer, name) for answer in answers.values()) for name in COUNTED},
    }


def _key(record: Record) -> tuple[str, str]:
    return record.environment, record.messages[1]["content"]


def _open_questions(records: list[Record], environment: EnvironmentSpec) -> dict[tuple[str, str], OpenQuestion]:
    """The questions of the rows that a teacher can judge: nobody has, and their episodes have one turn."""
    parts = {environment.played_by(part): part for part in environment.make().parts()}
    found: dict[tuple[str, str], OpenQuestion] = {}
    for record in records:
        part = parts.get(record.environment)
        if record.verified != "no" or record.failed_at or part is None or part.max_turns > 1:
            continue
        if len(turns := turns_of(record.messages)) == 1:
            question = found.setdefault(_key(record), OpenQuestion(len(found), record.messages[1]["content"], part))
            question.turns += turns if turns[0] not in question.turns else []
    return found


def _relabelled(
    record: Record, questions: dict[tuple[str, str], OpenQuestion], answers: dict[int, Record], teacher: TeacherSpec
) -> RelabelledRow:
    """The row by what the teacher said; one that somebody has verified stays as it is."""
    if record.verified != "no" or record.failed_at:
        return RelabelledRow(record, "")
    question = questions.get(_key(record))
    if question is None or len(turns := turns_of(record.messages)) != 1:
        return _left_out(record, SEVERAL)
    first, second = (answers.get(number) for number in question.numbers)
    assert first is not None
    if first.failed_at:
        return _left_out(record, first.cause, first.failed_at)
    answer = first.messages[2]
    if does_the_same(turns[0], answer, question.part.schemas):
        is_bare = bool(teacher.thoughts) and not turns[0].get(THOUGHT)
        own = {"messages": first.messages, "player": teacher.called} if is_bare and answer.get(THOUGHT) else {}
        return RelabelledRow(record.model_copy(update={"reward": 1.0, "verified": "teacher"} | own), CONFIRMED)
    assert second is not None
    if second.failed_at:
        return _left_out(record, second.cause, second.failed_at)
    if not does_the_same(answer, second.messages[2], question.part.schemas):
        return _left_out(record, DIFFER)
    made = first.model_copy(update={"seed": record.seed, "reward": 1.0, "verified": "teacher"})
    return RelabelledRow(made.model_copy(update={"player": teacher.called}), REPLACED)


def _left_out(record: Record, cause: str, failed_at: str = "teacher") -> RelabelledRow:
    return RelabelledRow(
        record.model_copy(update={"reward": None, "failed_at": failed_at, "cause": cause}), cause, True
    )


def _report(judged: list[RelabelledRow], taken: Path, to: Path) -> None:
    """Shows the verdicts, and writes verification.json: that of the rows as they were taken, then the verdicts."""
    counts = Counter(each.what.partition(": ")[0] for each in judged if each.what)
    examples: dict[str, str] = {}
    for each in judged:
        examples.setdefault(each.what.partition(": ")[0], _shown(each.record))
    rows = [
        {
            "rows": what if what in (CONFIRMED, REPLACED) else f"not judged, left out: {what}",
            "count": number,
            "such as": examples[what],
        }
        for what, number in counts.items()
    ]
    if rows:
        announce.table("judged-rows", f"{counts.total()} rows that no seed verifies, and the teacher", rows)
    whole = json.loads(taken.read_text()) if taken.exists() else {"title": "rows of a dataset", "counts": []}
    left_out = [
        {"where": _shown(each.record), "field": "messages", "cause": each.what, "verified": "no"}
        for each in judged
        if each.is_left_out
    ]
    whole |= {"counts": whole["counts"] + rows, "left_out": whole.get("left_out", []) + left_out}
    to.write_text(json.dumps(whole, ensure_ascii=False, indent=1) + "\n")


def _shown(record: Record) -> str:
    text = " ".join(str(record.messages[1]["content"]).split()) if len(record.messages) > 1 else ""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _take_known(
    context: StageContext,
    kept: Journal,
    given: tuple[CollectSpec, TeacherSpec, EnvironmentSpec],
    questions: dict[tuple[str, str], OpenQuestion],
) -> None:
    """Journals what the teacher said for an earlier dataset: of a log that grows, only new questions are asked."""
    spec, teacher, environment = given
    known: dict[str, Any] = {"stage": relabel.name, "version": relabel.version, "spec": spec.in_key()}
    known |= {"teacher": teacher.in_made_by(), "environment": environment.in_key()}
    missing, before = {number for each in questions.values() for number in each.numbers} - kept.done(), len(kept)
    for _, folder in made_alike(context.run.store, RelabelledRollouts, known) if missing else ():
        for answer in map(Record.model_validate, json.loads((folder / ANSWERS).read_bytes())):
            question = questions.get(_key(answer))
            number = question.numbers[(-answer.seed - 1) % 2] if question else 0
            if number in missing and answer.failed_at in ("", "teacher"):
                missing.remove(number)
                kept.append(answer.model_copy(update={"seed": number}))
    if found := len(kept) - before:
        announce.say(f"{found:,} answers of the teacher exist, and are not asked for again.")
