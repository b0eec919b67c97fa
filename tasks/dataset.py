"""Takes rollouts that exist in place of a collection.

In: a folder or a dataset of the Hub with rows as `collect` writes them. Out: `Rollouts`: rollouts.jsonl.
Why the check: a student must see the same prompt in training and in the environment, so a row of another environment,
system prompt or tool schema would teach it another task.
"""

from typing import Any

from pydantic import ValidationError

from apprentice.envs.base import tools_text
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.artifacts.rows import rows_of
from apprentice.tasks.artifacts.types import Rollouts
from apprentice.tasks.collect import COUNTED
from apprentice.tasks.engine.stage import StageContext, stage
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.record import Record
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.stages import DatasetSpec


@stage(produces=Rollouts, version=1, title="Rollouts of {spec.path}")
def take_rollouts(context: StageContext, spec: DatasetSpec, environment: EnvironmentSpec) -> dict[str, Any]:
    """Publishes the rows. Raises Stop for the first one that this environment would not have rendered so."""
    parts = {environment.played_by(part): part for part in environment.make()._parts()}
    records = []
    for number, line in enumerate(rows_of(spec), 1):
        try:
            records.append(record := Record.model_validate_json(line))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            wrong = f"its {'.'.join(map(str, first['loc'])) or 'JSON'}: {first['msg']}"
        else:
            wrong = _unlike(record, parts)
        if wrong:
            raise Stop(
                f"Row {number} of {spec.path} is not an episode of {environment} as it is played here: {wrong}.",
                "Take rollouts that were collected in this environment and version, or remove collect.dataset.",
            )
    (context.out / "rollouts.jsonl").write_bytes(b"".join(record.line() for record in records))
    totals = {name: sum(getattr(record, name) for record in records) for name in COUNTED}
    return {"episodes": len(records), "failed": sum(bool(record.failed_at) for record in records), **totals}


def _unlike(record: Record, parts: dict[str, Any]) -> str:
    """What the environment would have rendered otherwise; empty if nothing."""
    part = parts.get(record.environment)
    if part is None:
        return f"its environment is {record.environment!r}, not {' or '.join(map(repr, parts))}"
    if record.tools != tools_text(part):
        return "its tools have another schema"
    question = str(record.messages[1].get("content")) if len(record.messages) > 1 else ""
    return "" if record.messages[:2] == prompt(part, question) else "its prompt is another one"
