"""Takes rollouts that exist in place of a collection.

In: a folder or a dataset of the Hub with rows as `collect` writes them. Out: `Rollouts`: rollouts.jsonl.
Why the check: a student must see the same prompt in training and in the environment, so a row of another environment,
system prompt or tool schema would teach it another task.
"""

import math
from typing import Any

from pydantic import ValidationError

from apprentice.envs.base import are_tools_of, tools_text
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.artifacts.rows import rows_of
from apprentice.tasks.artifacts.types import Rollouts
from apprentice.tasks.collect import COUNTED
from apprentice.tasks.engine.stage import StageContext, stage
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.record import Record
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.stages import DatasetSpec


@stage(produces=Rollouts, version=1, title="Rollouts of {spec.path}")
def take_rollouts(context: StageContext, spec: DatasetSpec, environment: EnvironmentSpec) -> dict[str, Any]:
    """Publishes the rows. Raises Stop for the first one that this environment would not have rendered so."""
    parts = {environment.played_by(part): part for part in environment.make()._parts()}
    records: dict[bytes, Record] = {}
    twice: list[str] = []
    for row in rows_of(spec):
        record = None
        try:
            record = Record.model_validate(_with_text(row.data, parts))
            wrong = _unlike(record, parts)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            wrong = f"its {'.'.join(map(str, first['loc'])) or 'row'}: {first['msg']}"
        if wrong or record is None:
            raise Stop(
                f"{row.where} of {spec.path} is not an episode of {environment} as it is played here: {wrong}.",
                "Take rollouts that were collected in this environment and version, or remove collect.dataset.",
            )
        if (line := record.line()) in records:
            twice.append(row.where)
        records[line] = record
    if not records:
        raise Stop(f"{spec.path} holds no rollouts: its files have no row.", "Check collect.dataset.path.")
    if twice:
        announce.warn(f"{len(twice)} rows stand in {spec.path} twice and count once, such as {twice[0]}.")
    (context.out / "rollouts.jsonl").write_bytes(b"".join(records))
    totals = {name: sum(getattr(record, name) for record in records.values()) for name in COUNTED}
    return {"episodes": len(records), "failed": sum(bool(record.failed_at) for record in records.values()), **totals}


def _with_text(row: Any, parts: dict[str, Any]) -> Any:
    """The row with its tools as `collect` writes them, where they are the environment's as JSON or in other spacing."""
    part = parts.get(str(row.get("environment"))) if isinstance(row, dict) else None
    if part is None or not are_tools_of(part, row.get("tools")):
        return row
    return row | {"tools": tools_text(part)}


def _unlike(record: Record, parts: dict[str, Any]) -> str:
    """What the environment would have rendered otherwise; empty if nothing."""
    part = parts.get(record.environment)
    if part is None:
        return f"its environment is {record.environment!r}, not {' or '.join(map(repr, parts))}"
    if record.tools != tools_text(part):
        return "its tools have another schema"
    low, high = part.reward_range
    if record.reward is not None and not low <= record.reward <= high:
        return f"its reward is {record.reward}, not from {low:g} to {high:g}"
    if not 0.0 <= record.cost_usd < math.inf:
        return f"its cost_usd is {record.cost_usd}"
    question = str(record.messages[1].get("content")) if len(record.messages) > 1 else ""
    return "" if record.messages[:2] == prompt(part, question) else "its prompt is another one"
