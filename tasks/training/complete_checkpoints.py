"""Which checkpoints of an interrupted training are complete: those whose files are all as their list says.

In: a trainer, or the folder of its checkpoints. Out: a list of the files in each; the complete ones, newest first.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apprentice.tasks.artifacts.store_files import sha256_of
from apprentice.tasks.files.owners import modes_by_umask
from apprentice.tasks.models import trl_internals
from apprentice.tasks.reporting import announce

STATE = "trainer_state.json"
LIST = "files.json"


def seal(trainer: Any, checkpoint: Path) -> None:
    """Writes the list of a checkpoint's files. All processes call it; it returns when the list exists.

    Each process writes its own random states, and under DeepSpeed its own shard of the optimizer.
    """
    trainer.accelerator.wait_for_everyone()
    if trainer.is_world_process_zero():
        write_list(checkpoint)
    trainer.accelerator.wait_for_everyone()  # a process that exits with an error ends the others


def write_list(checkpoint: Path) -> None:
    modes_by_umask(checkpoint)  # another user of the store may resume it
    half = checkpoint / f"{LIST}.half"  # may be left over from a process that was killed here
    files = {
        file.relative_to(checkpoint).as_posix(): [file.stat().st_size, sha256_of(file)]
        for file in sorted(checkpoint.rglob("*"))
        if file.is_file() and file not in (checkpoint / LIST, half)
    }
    half.write_text(json.dumps(files))
    half.replace(checkpoint / LIST)


def seal_when_saved(trainer: Any) -> None:
    """Adds a callback that seals every checkpoint."""

    def on_save(args: Any, state: Any, _control: Any, **_: Any) -> None:
        seal(trainer, Path(args.output_dir) / f"checkpoint-{state.global_step}")

    trl_internals.call_back(trainer, on_save=on_save)


def whole_checkpoints(folder: Path) -> Iterator[Path]:
    """Yields the complete checkpoints, newest first."""
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=step_of, reverse=True):
        if torn := _torn(checkpoint):
            announce.warn(f"{checkpoint.name} is incomplete ({torn}) and is skipped.")
        else:
            yield checkpoint


def step_of(checkpoint: Path | None) -> int:
    """The finished steps of a checkpoint; 0 for none."""
    return int(checkpoint.name.partition("-")[2]) if checkpoint else 0


def _torn(checkpoint: Path) -> str:
    """The name of a file that is missing or damaged; empty if none is."""
    try:
        listed = json.loads((checkpoint / LIST).read_text())
        for name, (size, sha256) in listed.items():
            file = checkpoint / name
            if not file.is_file() or file.stat().st_size != size or sha256_of(file) != sha256:
                return name
    except (OSError, ValueError, AttributeError, TypeError):
        return LIST
    return ""


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint."""
    return next(whole_checkpoints(folder), None)
