"""Logs sampled completions of a training: one group every few logs, for reading.

In: the rollouts of a step. Out: completions.jsonl: step, seed, question, text, calls, the tools' replies, reward. The
rows are the same in both rollout modes, and whether or not the training was interrupted.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.episode import Message
from apprentice.tasks.episodes.jsonl import JsonLines, as_line, read_rows
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.text import code, markdown_table
from apprentice.tasks.settings.training import GrpoSpec
from apprentice.tasks.training.rollouts import Rollouts

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
        announce.rows(
            "grpo-completions", "What the model said while it trained", [_shown(row) for row in read_completions(out)]
        )


def log_completions(context: StageContext, trainer: Any, rollouts: Rollouts, spec: GrpoSpec) -> CompletionLog:
    """Adds a callback that keeps the first group of the first log, of every `spec.said_every`-th, and of the last."""
    from transformers import TrainerCallback

    completions = CompletionLog(context.scratch / COMPLETIONS)

    class Keeper(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            if state.is_world_process_zero:
                completions.forget_after(state.global_step)

        def on_log(self, args: Any, state: Any, control: Any, *_: Any, **__: Any) -> None:
            log, odd = divmod(state.global_step, args.logging_steps)
            due = control.should_training_stop or (not odd and (log == 1 or log % spec.said_every == 0))
            if not (due and state.is_world_process_zero and "loss" in state.log_history[-1]):
                return
            rows = [_row(state.global_step, each) for each in rollouts.first_group(spec.num_generations)]
            completions.note(rows)
            if "trackio" in args.report_to:
                _show_in_trackio(rows, state.global_step)

    trainer.add_callback(Keeper())
    return completions


def read_completions(checkpoint: Path) -> list[dict[str, Any]]:
    """The rows of a checkpoint; empty for a checkpoint without completions.jsonl."""
    path = checkpoint / COMPLETIONS
    return read_rows(path) if path.exists() else []


def as_table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table, with the model's text escaped."""
    return markdown_table(
        [
            {
                "step": str(row["step"]),
                "question": code(row["question"]),
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
    own = [message for message in messages if message["role"] == "assistant"]
    return {
        "step": step,
        "seed": rollout["seed"],
        "question": rollout["question"],
        "said": "\n".join(message["content"] for message in own if message.get("content")),
        "calls": [_call(call["function"]) for message in own for call in message.get("tool_calls") or []],
        "replies": [message["content"] for message in messages if message["role"] == "tool"],
        "reward": rollout["reward"],
    }


def _call(function: dict[str, Any]) -> str:
    given = function["arguments"]
    return f"{function['name']}({given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)})"


def _shown(row: dict[str, Any]) -> dict[str, str]:
    named = {name: str(row[name]) for name in ("step", "seed", "question", "said")}
    cells = named | {"calls": "\n".join(row["calls"]), "reward": _reward(row)}
    return {name: cell.replace("\0", "␀") for name, cell in cells.items()}  # PostgreSQL rejects NUL in JSON


def _reward(row: dict[str, Any]) -> str:
    return f"{row['reward']:g}" if row["reward"] is not None else "lost"


def _show_in_trackio(rows: list[dict[str, Any]], step: int) -> None:
    import trackio

    shown = [_shown(row) for row in rows]
    table = trackio.Table(columns=list(shown[0]), data=[list(row.values()) for row in shown])
    trackio.log({"completions": table}, step=step)
