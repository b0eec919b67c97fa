"""Writes rollouts in other tools' formats, which conversations.py reads back as the same rollouts.

In: records, a folder. Out: files of TRL's conversational format, of ATIF, or as `openenv collect` writes them. A
thought is `reasoning_content` in all of them. An episode that failed has no reward and no end, so it is not exported.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from apprentice.tasks.episodes.record import Record, ends_in_text
from apprentice.tasks.episodes.texts import read_json
from apprentice.tasks.episodes.thinking import THOUGHT
from apprentice.tasks.files.json_lines import as_line
from apprentice.tasks.formats.conversations import EXACT, ROLLOUT, AtifStep, ForeignTurn
from apprentice.tasks.formats.trl_rows import row_writer

Format = Literal["trl", "atif", "openenv"]
ATIF = "ATIF-v1.5"
"""The first version whose agents have `tool_definitions`."""
METRICS = ("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd")
"""The fields of a record that a trajectory's totals have."""


def export(records: Iterable[Record], form: Format, folder: Path, project: str) -> tuple[int, int]:
    """Write the records; return how many were written, and how many were not since they failed.

    Args:
        folder: Exists and is empty.
        project: Names the agent in ATIF, and the environment's project in metadata.
    """
    written = failed = 0
    write = WRITERS[form](folder, project)
    for record in records:
        if record.failed_at or record.reward is None:
            failed += 1
            continue
        write(written, record)
        written += 1
    return written, failed


def _trl(folder: Path, project: str) -> Callable[[int, Record], None]:
    """One row a line: what SFTTrainer reads, and the rollout's other columns."""
    row_of = row_writer()
    return lambda number, record: _append(folder / "train.jsonl", row_of(record))


def _atif(folder: Path, project: str) -> Callable[[int, Record], None]:
    """One trajectory a file."""

    def write(number: int, record: Record) -> None:
        steps = _steps(record.messages)
        metrics = {f"total_{name}": getattr(record, name) for name in METRICS} | {"total_steps": len(steps)}
        tools = json.loads(record.tools)
        trajectory = {
            "schema_version": ATIF,
            "session_id": f"{project}-{record.seed}-{number}",
            "agent": {"name": record.player or project, "version": record.environment, "tool_definitions": tools},
            "steps": steps,
            "final_metrics": metrics,
            "extra": {"seed": record.seed, "reward": record.reward, ROLLOUT: _without_messages(record)},
        }
        (folder / f"trajectory-{number:06}.json").write_text(json.dumps(trajectory, ensure_ascii=False, indent=1))

    return write


def _steps(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    for at, message in enumerate(messages):
        if message["role"] == "tool":
            results = steps[-1].setdefault("observation", {"results": []})["results"]
            called = steps[-1].get("tool_calls", [{}] * (len(results) + 1))[len(results)].get("tool_call_id")
            results.append(({"source_call_id": called} if called else {}) | {"content": message["content"]})
            continue
        source = "agent" if message["role"] == "assistant" else message["role"]
        step: dict[str, Any] = {"step_id": len(steps) + 1, "source": source, "message": message["content"] or ""}
        if message.get("tool_calls"):
            calls = ForeignTurn.model_validate(message).tool_calls
            step["tool_calls"] = [
                {
                    "tool_call_id": call.id or f"call_{at}_{number}",
                    "function_name": call.name,
                    "arguments": _mapping(call.arguments),
                }
                for number, call in enumerate(calls)
            ]
        if message.get(THOUGHT):
            step["reasoning_content"] = message[THOUGHT]
        if source == "agent" and _read_back(step) != message:
            step["extra"] = {EXACT: message}
        steps.append(step)
    return steps


def _read_back(step: dict[str, Any]) -> dict[str, Any]:
    return ForeignTurn.model_validate(AtifStep.model_validate(step).messages()[0]).as_message()


def _mapping(arguments: str) -> dict[str, Any]:
    """The arguments as an object, which ATIF requires; empty where they are none."""
    read = read_json(arguments)
    return read if isinstance(read, dict) else {}


def _openenv(folder: Path, project: str) -> Callable[[int, Record], None]:
    """One EpisodeRecord a line in results.jsonl, and metadata.json."""
    (folder / "metadata.json").write_text(json.dumps({"env": project, "provider": "apprentice"}, indent=2) + "\n")

    def write(number: int, record: Record) -> None:
        calls = [call for message in record.messages for call in ForeignTurn.model_validate(message).tool_calls]
        replies = [message["content"] for message in record.messages if message["role"] == "tool"]
        last_call = 0 if ends_in_text(record.messages) else len(calls)
        trace = [
            {
                "tool_name": call.name,
                "arguments": _mapping(call.arguments),
                "result": {"data": reply, "done": place == last_call, "metadata": {}, "error": None},
            }
            for place, (call, reply) in enumerate(zip(calls, replies, strict=True), 1)
        ]
        turns = sum(message["role"] == "assistant" for message in record.messages)
        episode = {
            "episode_id": f"ep-{number:06}",
            "messages": record.messages,
            "reward": record.reward,
            "done": True,
            "tool_trace": trace,
            "metrics": {"turns": turns, "tool_calls": len(calls)},
            "verify_metrics": {},
            "artifacts": {},
            "task": {"seed": record.seed},
            "extra": {ROLLOUT: _without_messages(record)},
        }
        _append(folder / "results.jsonl", episode)

    return write


def _without_messages(record: Record) -> dict[str, Any]:
    return {name: value for name, value in json.loads(record.line()).items() if name != "messages"}


def _append(path: Path, row: dict[str, Any]) -> None:
    with path.open("ab") as file:
        file.write(as_line(row))


WRITERS: dict[Format, Callable[[Path, str], Callable[[int, Record], None]]] = {
    "trl": _trl,
    "atif": _atif,
    "openenv": _openenv,
}
