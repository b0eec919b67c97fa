"""Measures the kept rollouts in tokens.

In: `KeptRollouts` and the student's tokenizer. Out: `LengthStats`: lengths.json, histogram.png.
Why: a max_length at the 99th percentile truncates fewer than one row in a hundred and keeps padding small.
"""

import json
from typing import Any

from apprentice.tasks.artifacts.types import (
    Checkpoint,
    KeptRollouts,
    LengthStats,
)
from apprentice.tasks.engine.stage import Drawn, StageContext, stage
from apprentice.tasks.episodes.rendering import row_ids, row_of
from apprentice.tasks.models.configuration import context_length
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.pictures import histogram
from apprentice.tasks.settings.spec import LengthsSpec


@stage(produces=LengthStats, version=2, title="Token lengths", drawn=Drawn("Lengths"))
def lengths(context: StageContext, spec: LengthsSpec, kept: KeptRollouts, student: Checkpoint) -> dict[str, Any]:
    """p50, p95, p99 and maximum length in tokens; max_length = p99 + margin, rounded up, at most the model's limit."""
    folder = context.fetch(student)
    tokenizer = load_tokenizer(folder, context.run.trusted)
    measured = []
    with (
        (context.fetch(kept) / "kept.jsonl").open() as episodes,
        announce.progress("lengths", kept.kept) as advance,
    ):
        for episode in map(json.loads, episodes):
            measured.append(len(row_ids(tokenizer, row_of(episode))))
            advance(1)
    positions = context_length(json.loads((folder / "config.json").read_text()))
    stats = summarise(measured, spec, positions)
    (context.out / "lengths.json").write_text(json.dumps(stats | {"lengths": measured}))
    picture = histogram(measured, stats["max_length"], context.out / "histogram.png")
    announce.rows("token-lengths", "Tokens of a training text", [stats])
    announce.picture("lengths-histogram", picture, "Tokens of the training texts; the line is max_length")
    return stats


def summarise(measured: list[int], spec: LengthsSpec, positions: int) -> dict[str, int]:
    """Percentiles in tokens; max_length is a multiple of `spec.multiple_of` and at most `positions`."""
    import numpy as np

    p50, p95, p99 = (int(np.percentile(measured, q)) for q in (50, 95, 99))
    wanted = -(-(p99 + spec.margin) // spec.multiple_of) * spec.multiple_of
    max_length = min(wanted, positions)
    return {
        "p50": p50,
        "p95": p95,
        "p99": p99,
        "longest": max(measured),
        "max_length": max_length,
        "truncated": sum(length > max_length for length in measured),
    }
