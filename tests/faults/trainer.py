"""`apprentice run` as a process that writes down what it trains on: `python -m tests.faults.trainer SEEN RECIPE …`.

In: a file, and the arguments of `apprentice run`. Out: SEEN, a line for every batch before its gradient is taken
({"run", "did": "trained", "stage", "step", "rows", "samples"}) and for every request of questions ("asked", their
seeds). A step is numbered by the steps that were finished before it; a row by the hash of its prompt's tokens, or in
SFT of all its tokens; a sample by that of its completion's.
The product is as it is: TRL's own methods are wrapped in this process.
"""

import functools
import hashlib
import json
import os
import sys
import time
import uuid
from typing import Any

from apprentice.flows.runtime.environment_variables import quiet


def main(seen: str, *arguments: str) -> None:
    quiet()  # libraries read their settings when they are imported
    from trl import GRPOTrainer, SFTTrainer

    note = _noter(seen)

    def sft(trainer: Any, model: Any, inputs: Any, *_: Any, **__: Any) -> None:
        note("trained", "sft", trainer, _hashes(inputs["input_ids"], inputs["attention_mask"]))

    def grpo(trainer: Any, model: Any, inputs: Any, *_: Any, **__: Any) -> None:
        samples = _hashes(inputs["completion_ids"], inputs["completion_mask"])
        note("trained", "grpo", trainer, _hashes(inputs["prompt_ids"], inputs["prompt_mask"]), samples)

    def before_rollouts(trainer: Any, inputs: Any) -> None:
        note("asked", "grpo", trainer, [row["seed"] for row in inputs])

    _before(SFTTrainer, "compute_loss", sft)
    _before(GRPOTrainer, "compute_loss", grpo)
    _before(GRPOTrainer, "_generate_and_score_completions", before_rollouts)
    from apprentice.deployments.cli import app

    app(["run", *arguments])


def _noter(seen: str) -> Any:
    file, run = os.open(seen, os.O_CREAT | os.O_APPEND | os.O_WRONLY), uuid.uuid4().hex

    def note(did: str, stage: str, trainer: Any, rows: list[Any], samples: list[str] | None = None) -> None:
        line = {"run": run, "did": did, "stage": stage, "step": trainer.state.global_step, "rows": rows}
        os.write(file, json.dumps(line | {"samples": samples or [], "at": time.monotonic()}).encode() + b"\n")

    return note


def _before(owner: type, name: str, do: Any) -> None:
    """Has a method do something else first."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def wrapped(*given: Any, **named: Any) -> Any:
        do(*given, **named)
        return method(*given, **named)

    setattr(owner, name, wrapped)


def _hashes(ids: Any, mask: Any) -> list[str]:
    """One for each row, of its tokens without the padding."""
    rows = (row[kept.bool()].tolist() for row, kept in zip(ids, mask, strict=True))
    return [hashlib.blake2b(json.dumps(row).encode(), digest_size=6).hexdigest() for row in rows]


if __name__ == "__main__":
    main(*sys.argv[1:])
