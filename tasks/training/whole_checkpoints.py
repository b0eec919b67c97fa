"""Which checkpoints of an interrupted training are whole.

In: the folder of a trainer's checkpoints. Out: those to resume from, the newest first. transformers writes a
checkpoint's files one after the other in place, so a kill or a full disk leaves half of one. Here every finished
checkpoint gets a list of its files with sizes and hashes; one that does not fit its list is passed over.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apprentice.tasks.reporting import announce

STATE = "trainer_state.json"
LIST = "files.json"


def seal(checkpoint: Path) -> None:
    """Write the list of a finished checkpoint's files."""
    files = {
        file.relative_to(checkpoint).as_posix(): [file.stat().st_size, _sha256(file)]
        for file in sorted(checkpoint.rglob("*"))
        if file.is_file() and file.name != LIST
    }
    half = checkpoint / f"{LIST}.half"
    half.write_text(json.dumps(files))
    half.replace(checkpoint / LIST)


def seal_when_saved(trainer: Any) -> None:
    """Have a trainer's first process seal each checkpoint that it saves."""
    from transformers import TrainerCallback

    class Sealing(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.is_world_process_zero:
                seal(Path(args.output_dir) / f"checkpoint-{state.global_step}")

    trainer.add_callback(Sealing())


def whole_checkpoints(folder: Path) -> Iterator[Path]:
    """Yield the whole checkpoints, newest first. Without a list, one counts if its state, written last, is readable."""
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=step_of, reverse=True):
        if torn := _torn(checkpoint):
            announce.warn(f"{checkpoint.name} is not whole ({torn}); the one before it is used, if there is one.")
        else:
            yield checkpoint


def step_of(checkpoint: Path | None) -> int:
    """The finished steps of a checkpoint; 0 for none."""
    return int(checkpoint.name.partition("-")[2]) if checkpoint else 0


def _torn(checkpoint: Path) -> str:
    """The name of a file that is missing or damaged; empty if none is."""
    try:
        json.loads((checkpoint / STATE).read_text())
    except (OSError, ValueError):
        return STATE
    if not (checkpoint / LIST).exists():
        return ""
    try:
        listed = json.loads((checkpoint / LIST).read_text())
        for name, (size, sha256) in listed.items():
            file = checkpoint / name
            if not file.is_file() or file.stat().st_size != size or _sha256(file) != sha256:
                return name
    except (OSError, ValueError, AttributeError, TypeError):
        return LIST
    return ""


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
