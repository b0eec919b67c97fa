"""What SFT and GRPO cost on a GPU: plain TRL with the documents' settings, and ours beside it in the same process.

In: which students, trainings and variants, and overrides. Out: a table, then one line of JSON with the same figures; in
the file `--out` each row as a line of JSON once it is measured, so that a run that is cut off has what it measured.
Students are a model of Qwen3-1.7B's shape with random weights, and SmolLM2-135M: its own weights if `make
build/smollm2/ready` has written them, else random ones, which take the same time. Nothing is downloaded, transformers
generates, and the only server is the environment's. Both trainings of both students take about 7 minutes on an H100 by
arithmetic (deployments/SCALING.md); after `--minutes` the rest is left out. Without a GPU the same runs at a toy's
size, which says that it runs and nothing about a GPU. A training that fails (out of memory, say) is a line of the
table.

    python -m tests.bench.gpu --out gpu.jsonl
    python -m tests.bench.gpu --sizes full --trainings grpo --variants documents,ours,tuned,compiled
    python -m tests.bench.gpu --sizes full --variants ours --set grpo.batch_size=64 --set grpo.num_generations=8

The documents' 102 steps of SFT and 150 of GRPO are computed by the median step, and stand beside their 5 minutes and 1
hour on an A100 with 40 GB. Their hour of GRPO includes a server on the Hub, and the turn that TRL's own loop generates
after an episode's end; their 38 GB are what the device has reserved. Completions are as long as they may be.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.device import device_name
from tests.bench.gpu_settings import DOCUMENTS_SECONDS, DOCUMENTS_STEPS, SIZES, VARIANTS, variant

COLUMNS = (
    "student",
    "training",
    "settings",
    "steps",
    "time",
    "a step",
    "generation",
    "environment",
    "tokens/s",
    "steps/s",
    "peak memory (reserved)",
    "of bf16 peak",
    "all of the documents' steps, theirs on an A100",
)


def main() -> None:
    given = _given()
    sizes = (given.sizes or ("full,smollm2" if _has_gpu() else "toy")).split(",")
    variants = given.variants.split(",")
    for size in sizes:
        for name in variants:
            variant(name, SIZES[size], given.set)  # what is wrong with it is said before anything is trained
    about = {"device": device_name(), "software": _software(), "set": given.set}
    print(f"{about['device']}; {about['software']}; {'; '.join(f'{size}: {_described(size)}' for size in sizes)}\n")
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}", flush=True)
    rows = []
    until = time.monotonic() + 60 * given.minutes
    for size in sizes:
        for training in given.trainings.split(","):
            for row in _rows(size, training, variants, given.set, until):
                rows.append(row)
                print(_line(row), flush=True)
                if given.out:
                    with given.out.open("a") as lines:
                        print(json.dumps(about | row), file=lines)
    print(f"\nSettings changed: {', '.join(given.set)}" if given.set else "")
    print(json.dumps(about | {"rows": rows}))
    sys.exit(any("failed" in row for row in rows))


def _given() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", help=f"of {', '.join(SIZES)}; full,smollm2 where there is a GPU, else toy")
    parser.add_argument("--trainings", default="sft,grpo")
    parser.add_argument("--variants", default="documents,ours", help=f"of {', '.join(VARIANTS)}")
    parser.add_argument("--set", action="append", default=[], metavar="PART.FIELD=VALUE", help="sft., grpo. or how.")
    parser.add_argument("--out", type=Path, help="append each row to this file as a line of JSON")
    parser.add_argument("--minutes", type=float, default=10, help="end after that long, with the rows that there are")
    return parser.parse_args()


def _rows(
    size: str, training: str, variants: list[str], overrides: list[str], until: float
) -> Iterator[dict[str, Any]]:
    """A training by each variant, in one process that is ended when the time is up; one without figures has failed."""
    left, why = list(variants), "no time was left"
    seconds = until - time.monotonic()
    if seconds > 0:
        reading, writing = os.pipe()
        command = [sys.executable, "-m", "tests.bench.gpu_training", training, ",".join(variants), size, str(writing)]
        process = subprocess.Popen([*command, *overrides], stdout=sys.stderr, pass_fds=[writing])
        os.close(writing)
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        with os.fdopen(reading) as lines:
            for line in lines:
                figures = json.loads(line)
                row = {"student": size, "training": training, "settings": left.pop(0)} | figures
                yield row | _against(training, size, figures)
        code = process.wait()
        timer.cancel()
        if time.monotonic() < until:
            why = f"ended with {code}"
    for name in left:
        yield {"student": size, "training": training, "settings": name, "failed": why}


def _against(training: str, size: str, figures: dict[str, Any]) -> dict[str, Any]:
    """How long the documents' steps take, and how much longer the documents' took."""
    if size != "full" or "failed" in figures:
        return {}
    documents_s = DOCUMENTS_SECONDS[training]
    more = DOCUMENTS_STEPS[training] - figures["steps"]
    whole = figures["seconds"] + more * figures["s_per_step"]
    return {"documents_s": documents_s, "whole_s": round(whole, 1), "times_faster": round(documents_s / whole, 1)}


def _line(row: dict[str, Any]) -> str:
    named = [row["student"], row["training"], row["settings"]]
    if "failed" in row:
        return f"| {' | '.join(named)} | failed: {row['failed']} |" + " |" * (len(COLUMNS) - 4)
    documents = "–"
    if "whole_s" in row:
        documents = f"{row['whole_s'] / 60:.1f} of {row['documents_s'] / 60:.0f} min, {row['times_faster']}×"
    cells = (
        *named,
        f"{row['steps']}",
        f"{row['seconds']:.1f} s",
        f"{row['s_per_step']:.3g} s",
        f"{row['generation_share']:.0%}" if "generation_share" in row else "–",
        f"{row['env_share']:.1%}" if "env_share" in row else "–",
        f"{row['tokens_per_s']:,.0f}",
        f"{row['steps_per_s']:.3g}",
        f"{row['peak_memory_gb']:.1f} GB ({row['reserved_gb']:.1f})",
        f"{row['peak_share']:.1%}" if row["peak_share"] is not None else "–",
        documents,
    )
    return f"| {' | '.join(cells)} |"


def _described(size: str) -> str:
    shape = SIZES[size].shape
    parameters = shape.matrices + shape.hidden * shape.vocabulary
    return f"{parameters / 1e6:,.1f} million parameters, {SIZES[size].rows} rows"


def _software() -> str:
    from importlib.metadata import version

    return ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "trl"))


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    main()
