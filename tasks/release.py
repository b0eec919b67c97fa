"""Packages a trained model: its weights, and a card with its results and the gate's decision.

In: the trained checkpoint, its `Verdict` and `Decision`. Out: `Release`.
"""

import os
import shutil
from pathlib import Path
from typing import Any

from apprentice.tasks.artifacts.provenance import CARD, RECORD
from apprentice.tasks.artifacts.store_files import digest
from apprentice.tasks.artifacts.types import Checkpoint, Decision, ModelName, Release, Verdict
from apprentice.tasks.engine.stage import Drawn, StageContext, stage


@stage(produces=Release, version=1, title="Release", drawn=Drawn("Release"))
def release(context: StageContext, trained: Checkpoint, judged: Verdict, decision: Decision) -> dict[str, Any]:
    """Links the checkpoint's files and the gate's decision; the card has the results."""
    source = context.fetch(trained)
    for file in source.iterdir():
        if file.name not in (CARD, RECORD):
            _link(file, context.out / file.name)
    shutil.copyfile(context.fetch(decision) / "decision.json", context.out / "decision.json")
    return {
        "parameters": trained.parameters,
        "stage": ModelName.CHAMPION,
        "weights": weights_of(source),
        "promoted": decision.promoted,
    }


def weights_of(checkpoint: Path) -> str:
    """Digest of a checkpoint's weights alone: a model that is trained again to the same weights has the same one."""
    return digest(checkpoint, "*.safetensors")


def _link(file: Path, to: Path) -> None:
    try:
        os.link(file, to)
    except OSError:
        shutil.copyfile(file, to)
