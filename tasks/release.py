"""Packages a trained model for release: its weights, and a card with its results and the gate's decision.

In: the GRPO checkpoint, the `Verdict`, the `Decision`. Out: `Release`, promoted or not.
The weights are hard-linked where the file system allows it, else copied.
"""

import os
import shutil
from pathlib import Path
from typing import Any

from apprentice.tasks.analysis.comparison import comparison_rows, table
from apprentice.tasks.analysis.judgements import as_markdown, read_decision, read_verdict, unclean
from apprentice.tasks.artifacts.files import digest
from apprentice.tasks.artifacts.types import Decision, GrpoCheckpoint, Release, Verdict
from apprentice.tasks.engine.stage import StageContext, stage
from apprentice.tasks.reporting.markdown import markdown_table

OF_THE_ARTIFACT = ("README.md", "artifact.json")


@stage(produces=Release, version=1, title="Release")
def release(context: StageContext, trained: GrpoCheckpoint, judged: Verdict, decision: Decision) -> dict[str, Any]:
    """Links the checkpoint's files and writes the card's text."""
    source = context.fetch(trained)
    for file in source.iterdir():
        if file.name not in OF_THE_ARTIFACT:
            _link(file, context.out / file.name)
    shutil.copyfile(context.fetch(decision) / "decision.json", context.out / "decision.json")
    results = read_verdict(context.fetch(judged))
    about = [
        "## Results",
        "",
        "On held-out questions, the same for each model: `grpo` is this one, `sft` the one before GRPO, `base` the one "
        "before any training. Accuracy is the share of answers with reward 1.0, format compliance that of episodes "
        "whose every call was valid, the mean score the mean reward. In brackets 95% intervals.",
        "",
        markdown_table(table(results["models"])),
        _differences(results),
        "## The gate's verdict",
        "",
        as_markdown(read_decision(context.fetch(decision))),
        "## What GRPO's curves say",
        "",
        f"**{results['grpo']['diagnosis']}.** {results['grpo']['advice']}",
    ]
    (context.out / "about.md").write_text("\n".join(about))
    return {
        "parameters": trained.parameters,
        "stage": "champion",
        "weights": weights_of(source),
        "promoted": decision.promoted,
    }


def weights_of(checkpoint: Path) -> str:
    """Digest of a checkpoint's weights alone: a model that is trained again to the same weights has the same one."""
    return digest(checkpoint, "*.safetensors")


def _differences(results: dict[str, Any]) -> str:
    if not results["contamination"]["clean"]:
        return f"{unclean(results['contamination'])}\n"
    return f"Differences on the same questions:\n\n{markdown_table(comparison_rows(results['comparisons']))}"


def _link(file: Path, to: Path) -> None:
    try:
        os.link(file, to)
    except OSError:
        shutil.copyfile(file, to)
