"""What the model says while GRPO trains it: sampled completions to read.

In: a trainer, the rollouts of a step. Out: completions.jsonl with one group every few logs: step, seed, question, text,
calls, the tools' replies, reward; the same in Trackio, and as a table.
"""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.record import Message, as_text, turns_of
from apprentice.tasks.episodes.thinking import THOUGHT
from apprentice.tasks.files.json_lines import JsonLines, as_line, read_rows
from apprentice.tasks.models.trl_internals import call_back
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.safe_text import code, markdown_table

if TYPE_CHECKING:
    from apprentice.tasks.rollouts.live_rollouts import LiveRollouts

COMPLETIONS = "completions.jsonl"


class CompletionLog:
    """The rows so far, in a file that survives an interruption."""

    def __init__(self, path: Path):
        self._path = path

    def forget_after(self, step: int) -> None:
        """Drops rows after `step`, which a resumed training writes again, and an incomplete last line."""
        kept = [line for line in JsonLines(self._path) if json.loads(line)["step"] <= step]
        self._path.write_bytes(b"".join(kept))

    def note(self, rows: list[dict[str, Any]]) -> None:
        JsonLines(self._path).append(*map(as_line, rows))

    def publish(self, out: Path) -> None:
        shutil.copyfile(self._path, out / COMPLETIONS)
        announce.rows("grpo-completions", "What the model said while it trained", _shown(read_completions(out)))


def log_completions(
    context: StageContext, trainer: Any, rollouts: "LiveRollouts", group_size: int, said_every: int
) -> CompletionLog:
    """Adds a callback that keeps the first group of the first log, of every `said_every`-th, and of the last."""
    completions = CompletionLog(context.scratch / COMPLETIONS)

    def on_train_begin(_args: Any, state: Any, *_: Any, **__: Any) -> None:
        if state.is_world_process_zero:
            completions.forget_after(state.global_step)

    def on_log(args: Any, state: Any, control: Any, *_: Any, **__: Any) -> None:
        log, odd = divmod(state.global_step, args.logging_steps)
        due = control.should_training_stop or (not odd and (log == 1 or log % said_every == 0))
        if not (due and state.is_world_process_zero and "loss" in state.log_history[-1]):
            return
        rows = [_row(state.global_step, each) for each in rollouts.first_group(group_size)]
        completions.note(rows)
        if "trackio" in args.report_to:
            _show_in_trackio(rows, state.global_step)

    call_back(trainer, on_train_begin=on_train_begin, on_log=on_log)
    return completions


def read_completions(checkpoint: Path) -> list[dict[str, Any]]:
    """The rows of a checkpoint; empty for a checkpoint without completions.jsonl."""
    path = checkpoint / COMPLETIONS
    return read_rows(path) if path.exists() else []


def as_table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table, with the model's text escaped; with a column of thoughts if any row has one."""
    thinks = _think(rows)
    return markdown_table(
        [
            {
                "step": str(row["step"]),
                "question": code(row["question"]),
                **({"thought": code(row.get("thought", ""))} if thinks else {}),
                "said": code(" ".join([row["said"], *row["calls"]]).strip()),
                "reward": _reward(row),
            }
            for row in rows
        ]
    )


def last_groups(rows: list[dict[str, Any]], number: int = 2) -> list[dict[str, Any]]:
    steps = sorted({row["step"] for row in rows})[-number:]
    return [row for row in rows if row["step"] in steps]


def _row(step: int, rollout: dict[str, Any]) -> dict[str, Any]:
    messages: list[Message] = rollout["messages"]
    own = turns_of(messages)
    thinks = any(THOUGHT in message for message in own)
    return {
        "step": step,
        "seed": rollout["seed"],
        "question": rollout["question"],
        **({"thought": "\n".join(message.get(THOUGHT) or "" for message in own)} if thinks else {}),
        "said": "\n".join(message["content"] for message in own if message.get("content")),
        "calls": [
            f"{call['function']['name']}({as_text(call)})" for turn in own for call in turn.get("tool_calls") or []
        ],
        "replies": [message["content"] for message in messages if message["role"] == "tool"],
        "reward": rollout["reward"],
    }


def _shown(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    thinks, shown = _think(rows), []
    for row in rows:
        cells = {name: str(row[name]) for name in ("step", "seed", "question")}
        cells |= {"thought": row.get("thought", "")} if thinks else {}
        cells |= {"said": row["said"], "calls": "\n".join(row["calls"]), "reward": _reward(row)}
        shown.append({name: cell.replace("\0", "␀") for name, cell in cells.items()})  # PostgreSQL rejects NUL in JSON
    return shown


def _think(rows: list[dict[str, Any]]) -> bool:
    return any("thought" in row for row in rows)


def _reward(row: dict[str, Any]) -> str:
    return f"{row['reward']:g}" if row["reward"] is not None else "lost"


def _show_in_trackio(rows: list[dict[str, Any]], step: int) -> None:
    import trackio

    shown = _shown(rows)
    table = trackio.Table(columns=list(shown[0]), data=[list(row.values()) for row in shown])
    trackio.log({"completions": table}, step=step)
