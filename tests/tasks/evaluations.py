"""Evaluations whose outcome a test sets, in a real store."""

import json
from typing import Any, TypeVar

from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import Provenance, parent
from apprentice.tasks.artifacts.types import Artifact, Evaluation
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.evaluate import rates
from apprentice.tasks.players.protocols import PROTOCOLS

A = TypeVar("A", bound=Artifact)


def episode(place: int, reward: float | None, **given: Any) -> EvaluatedEpisode:
    """The episode of question `place`; right when the reward is 1.0."""
    call = {"type": "function", "function": {"name": "answer", "arguments": '{"answer": "7"}'}}
    messages = [
        {"role": "system", "content": "Answer."},
        {"role": "user", "content": f"Question {place}?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "answer", "content": "OK."},
    ]
    about = {"sample": 0, "turns": 1, "valid": True, "causes": [], "correct": "7", "traits": "{}", "seed": 5000 + place}
    about |= {"question": f"Question {place}?", "messages": messages}
    return EvaluatedEpisode(**(about | {"place": place, "reward": reward} | given))


def episodes(rewards: list[float], **given: Any) -> list[EvaluatedEpisode]:
    return [episode(place, reward, **given) for place, reward in enumerate(rewards)]


def evaluation(
    store: LocalStore, key: str, records: list[EvaluatedEpisode], model: str = "grpo", **made_from: Any
) -> Evaluation:
    lines = b"".join(record.line() for record in records).decode()
    counts = {"model": model, "protocol": "parity", "cost_usd": 0.0} | rates(records, PROTOCOLS["parity"])
    return published(store, Evaluation, key, {"episodes.jsonl": lines}, counts, **made_from)


def published(
    store: LocalStore,
    kind: type[A],
    key: str,
    files: dict[str, str],
    counts: dict[str, Any],
    inputs: dict[str, Artifact] | None = None,
    settings: dict[str, Any] | None = None,
) -> A:
    """An artifact with these files."""
    given = inputs or {}
    made_by = {"stage": "toy", "inputs": {name: each.revision for name, each in given.items()}}
    made_by |= {"settings": settings} if settings else {}
    with store.staging() as folder:
        for name, text in files.items():
            (folder / name).write_text(text)
        provenance = Provenance(inputs={name: parent(each) for name, each in given.items()})
        return store.publish(kind, key, folder, counts, made_by, provenance)


def learned(*rows: tuple[str, int, str]) -> str:
    """learned.jsonl: stage, seed, question."""
    return "".join(json.dumps(dict(zip(("stage", "seed", "question"), row, strict=True))) + "\n" for row in rows)
