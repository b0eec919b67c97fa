"""Keeps what the model said while it trained: now and then one group, to be read by a person.

In: the rollouts of a step. Out: completions.jsonl: step, seed, question, what was said, the calls, what the tools
replied, the reward. The same rows whether or not the training was interrupted, and by either way into TRL.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.episode import Message
from apprentice.tasks.episodes.json_lines import JsonLines, as_line, read_rows
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.markdown import code, markdown_table
from apprentice.tasks.settings.training import GrpoSpec
from apprentice.tasks.training.rollouts import Rollouts

COMPLETIONS = "completions.jsonl"


class CompletionLog:
    """The rows so far, in a file that outlives an interruption."""

    def __init__(self, path: Path):
        self._path = path

    def forget_after(self, step: int) -> None:
        """Drops what a training that goes on after `step` will say again, and the line at which it was killed."""
        kept = [line for line in JsonLines(self._path) if json.loads(line)["step"] <= step]
        self._path.write_bytes(b"".join(kept))

    def note(self, rows: list[dict[str, Any]]) -> None:
        JsonLines(self._path).append(*map(as_line, rows))

    def publish(self, out: Path) -> None:
        """Puts the rows beside the weights, and shows them in Prefect."""
        shutil.copyfile(self._path, out / COMPLETIONS)
        announce.rows(
            "grpo-completions", "What the model said while it trained", [_shown(row) for row in read_completions(out)]
        )


def log_completions(context: StageContext, trainer: Any, rollouts: Rollouts, spec: GrpoSpec) -> CompletionLog:
    """Has the trainer keep the first group of its first log, of every `said_every`-th, and of the last."""
    from transformers import TrainerCallback

    said = CompletionLog(context.scratch / COMPLETIONS)

    class Keeper(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            if state.is_world_process_zero:
                said.forget_after(state.global_step)

        def on_log(self, args: Any, state: Any, control: Any, *_: Any, **__: Any) -> None:
            log, odd = divmod(state.global_step, args.logging_steps)
            due = control.should_training_stop or (not odd and (log == 1 or log % spec.said_every == 0))
            if not (due and state.is_world_process_zero and "loss" in state.log_history[-1]):
                return
            rows = [_row(state.global_step, each) for each in rollouts.first_group(spec.num_generations)]
            said.note(rows)
            if "trackio" in args.report_to:
                _show_in_trackio(rows, state.global_step)

    trainer.add_callback(Keeper())
    return said


def read_completions(checkpoint: Path) -> list[dict[str, Any]]:
    """The rows that a checkpoint keeps; none for one that was trained before there were any."""
    path = checkpoint / COMPLETIONS
    return read_rows(path) if path.exists() else []


def as_table(rows: list[dict[str, Any]]) -> str:
    """Rows in Markdown; whatever the model said stays text."""
    return markdown_table(
        [
            {
                "step": str(row["step"]),
                "question": code(row["question"]),
                "said": code(_spoken(row)),
                "reward": _reward(row),
            }
            for row in rows
        ]
    )


def last_groups(rows: list[dict[str, Any]], number: int = 2) -> list[dict[str, Any]]:
    """The rows of the last steps that were kept."""
    steps = sorted({row["step"] for row in rows})[-number:]
    return [row for row in rows if row["step"] in steps]


def _row(step: int, told: dict[str, Any]) -> dict[str, Any]:
    messages: list[Message] = told["messages"]
    spoken = [message for message in messages if message["role"] == "assistant"]
    return {
        "step": step,
        "seed": told["seed"],
        "question": told["question"],
        "said": "\n".join(message["content"] for message in spoken if message.get("content")),
        "calls": [_call(call["function"]) for message in spoken for call in message.get("tool_calls") or []],
        "replies": [message["content"] for message in messages if message["role"] == "tool"],
        "reward": told["reward"],
    }


def _call(function: dict[str, Any]) -> str:
    given = function["arguments"]
    return f"{function['name']}({given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)})"


def _shown(row: dict[str, Any]) -> dict[str, str]:
    named = {name: str(row[name]) for name in ("step", "seed", "question", "said")}
    cells = named | {"calls": "\n".join(row["calls"]), "reward": _reward(row)}
    return {name: cell.replace("\0", "␀") for name, cell in cells.items()}  # PostgreSQL refuses it in JSON


def _spoken(row: dict[str, Any]) -> str:
    return " ".join([row["said"], *row["calls"]]).strip()


def _reward(row: dict[str, Any]) -> str:
    return f"{row['reward']:g}" if row["reward"] is not None else "lost"


def _show_in_trackio(rows: list[dict[str, Any]], step: int) -> None:
    import trackio

    shown = [_shown(row) for row in rows]
    table = trackio.Table(columns=list(shown[0]), data=[list(row.values()) for row in shown])
    trackio.log({"completions": table}, step=step)
