"""What every card says of its artifact: its counts, its environment, without what belongs to a machine.

In: the staged files of an artifact, and what made it. Out: `Facts`.
"""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from apprentice.tasks.artifacts.hub import HubStore
from apprentice.tasks.artifacts.provenance import RECORD
from apprentice.tasks.episodes.thinking import thinking_at
from apprentice.tasks.lineage.node import Node
from apprentice.tasks.reporting.safe_text import code
from apprentice.tasks.settings.endpoint import who_played_for_strangers

HIDDEN = "(not shown)"
OF_A_MACHINE = re.compile(r"\w://|^(/|~/|\.{1,2}/|[A-Za-z]:\\)\S")
LABELS = {
    "cached_tokens": "prompt tokens that the endpoint had cached",
    "completion_tokens": "tokens that the teacher wrote",
    "cost_usd": "cost in USD (0 where no prices were stated)",
    "delta": "difference in the metric, new model less baseline",
    "dropped_from_grpo": "GRPO's seeds left out, as the evaluation asks their question",
    "failed": "failed episodes",
    "format_compliance": "format compliance (every turn a valid call)",
    "accuracy": "accuracy (reward 1.0)",
    "mean_score": "mean reward",
    "n": "episodes",
    "prompt_tokens": "tokens that the teacher read",
    "promoted": "let through by the gate",
    "reasoning_tokens": "written tokens that were reasoning",
    "weights": "digest of the weights",
}


def tokens_of_turn(spec: dict[str, Any], endpoint: dict[str, Any] | None, model: Path | None) -> int:
    """The most tokens of a turn in an evaluation, by the settings in its record.

    Args:
        endpoint: Of the model, where it was behind one.
        model: The folder of the checkpoint, where that was evaluated, with how it thinks.
    """
    if endpoint and not endpoint.get("serves_student"):
        return endpoint.get("max_tokens") or spec["max_new_tokens"]
    if spec.get("protocol") == "tutorial":
        return spec["max_new_tokens"]
    if endpoint:
        return spec["max_new_tokens"] + ((endpoint.get("thoughts") or {}).get("max_tokens") or 0)
    thinking = thinking_at(model) if model else None
    share = 1.0 if spec.get("thought_budget") is None else spec["thought_budget"]
    return spec["max_new_tokens"] + (round(thinking.max_tokens * share) if thinking else 0)


class Facts:
    """The facts of an artifact that is being made, for its card.

    Args:
        made: The artifact, with what it was made from.
        out: Its files.
    """

    def __init__(self, made: Node, out: Path):
        assert made.record is not None
        self.made, self.out, self.record = made, out, made.record
        self.files = {file.name for file in out.iterdir()} | {RECORD}
        self.on_hub = isinstance(made.store, HubStore)
        self.sources = list(made.inputs.values())
        self.environment = made.environment()
        called_by = [self.environment["name"]] if self.environment else []
        self.tags = ["apprentice", "openenv", made.record.made_by["stage"], *called_by]
        lost = "an environment that no record of it names any more"
        self.acted_in = code(called(self.environment)) if self.environment else lost
        self.numbers = _numbers(made.counts, _failures(out, made.counts))


def _numbers(counts: dict[str, Any], failures: dict[str, int]) -> list[dict[str, str]]:
    """A row a count; kept and dropped episodes with their share."""
    rows = {}
    for name, value in (shown(counts) | failures).items():
        if isinstance(value, dict):
            rows |= {f"{name}: {cause}": _share(number, counts) for cause, number in value.items()}
        elif name in ("failed", "kept") or name in failures:
            rows[LABELS.get(name, name)] = _share(value, counts)
        elif name in ("accuracy", "format_compliance"):
            rows[LABELS[name]] = f"{value:.1%}"
        elif name != "stage":  # a model's stands in the summary, and calls every release a champion
            rows[LABELS.get(name, name.replace("_", " "))] = _plain(value)
    return [{"what": name, "value": value} for name, value in rows.items()]


def shown(value: Any) -> Any:
    """JSON as a card shows it: without paths of a machine, and without addresses of servers."""
    if isinstance(value, dict):
        return {name: shown(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shown(each) for each in value]
    return HIDDEN if isinstance(value, str) and OF_A_MACHINE.search(value) else value


def as_json(value: Any, indent: int | None = 2) -> str:
    """A value as JSON, shortened for the card."""
    return json.dumps(shown(value), indent=indent, ensure_ascii=False)


def called(environment: dict[str, Any]) -> str:
    """What a person calls an environment, such as "reasoning_gym chain_sum"; as `EnvironmentSpec` does."""
    texts = [value for value in environment.get("settings", {}).values() if isinstance(value, str)]
    return " ".join([environment["name"], *map(str, shown(texts))])


def teacher_text(teacher: dict[str, Any]) -> str:
    """Who played a teacher's episodes, within a sentence."""
    return code(who_played_for_strangers(teacher | {"model": shown(teacher.get("model"))}))


def lines_of(file: Path) -> int:
    with file.open("rb") as content:
        return sum(part.count(b"\n") for part in iter(lambda: content.read(2**20), b""))


def _failures(out: Path, counts: dict[str, Any]) -> dict[str, int]:
    rollouts = out / "rollouts.jsonl"
    if not counts.get("failed") or not rollouts.exists():
        return {}
    with rollouts.open() as lines:
        # most have not failed, and are not read for it: within a text of theirs the quotes would be escaped
        found = Counter(json.loads(line)["failed_at"] for line in lines if '"failed_at":""' not in line)
    return {f"failed at the {where}": number for where, number in sorted(found.items()) if where}


def _share(number: float, counts: dict[str, Any]) -> str:
    of = counts.get("episodes")
    return f"{number:,} of {of:,} ({number / of:.1%})" if of and isinstance(number, int) else _plain(number)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
    if isinstance(value, list):
        return " ".join(code(str(each)) for each in dict.fromkeys(value)) or "none"
    return value if value == HIDDEN else code(value if isinstance(value, str) else json.dumps(value))
