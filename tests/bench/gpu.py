"""What SFT and GRPO of a model of Qwen3-1.7B's shape cost on a GPU: the documents' settings, and ours.

In: which variants, and overrides. Out: a table, then one line of JSON with the same figures.
Random weights, nothing is downloaded: SFT on 270 rows × 3 epochs, GRPO 150 steps with completions of 256 tokens, at the
documents' batch sizes, over a local environment server. Without a GPU the same runs at a toy's size, which says that it
runs and nothing about a GPU. Each training is a process of its own; one that fails (out of memory, say) is a line of
the table, and the others are run.

    python -m tests.bench.gpu --variants tuned --set grpo.max_steps=20 --set how.attention=flash_attention_2
    python -m tests.bench.gpu --trainings grpo --variants documents,tuned,compiled
    python -m tests.bench.gpu --variants tuned --set grpo.batch_size=64 --set grpo.num_generations=8

Fewer steps than the documents' are scaled up by the median step for the comparison with their 5 minutes and 1 hour on
an A100 with 40 GB. Their hour of GRPO includes a server on the Hub, and the turn that TRL's own loop generates after an
episode's end; their 38 GB are what the device has reserved.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.device import device_name
from tests.bench.gpu_settings import DOCUMENTS_SECONDS, SIZES, VARIANTS, variant

COLUMNS = (
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
    "documents, A100",
)


def main() -> None:
    given = _given()
    size = given.size or ("full" if _has_gpu() else "toy")
    print(f"{device_name()}; {_software()}; size: {size}, {_described(size)}\n")
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}", flush=True)
    rows = []
    for training in given.trainings.split(","):
        for name in given.variants.split(","):
            variant(name, SIZES[size], given.set)  # what is wrong with it is said before anything is trained
            figures = _run(training, name, size, given.set)
            rows.append({"training": training, "settings": name} | figures | _against(training, size, figures))
            print(_line(rows[-1]), flush=True)
    print(f"\nSettings changed: {', '.join(given.set)}" if given.set else "")
    whole = {"device": device_name(), "software": _software(), "size": size, "set": given.set, "rows": rows}
    print(json.dumps(whole))
    sys.exit(any("failed" in row for row in rows))


def _given() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, help="full where there is a GPU, else toy")
    parser.add_argument("--trainings", default="sft,grpo")
    parser.add_argument("--variants", default="documents,tuned", help=f"of {', '.join(VARIANTS)}")
    parser.add_argument("--set", action="append", default=[], metavar="PART.FIELD=VALUE", help="sft., grpo. or how.")
    return parser.parse_args()


def _run(training: str, name: str, size: str, overrides: list[str]) -> dict[str, Any]:
    """A training's figures, or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "tests.bench.gpu_training", training, name, size, folder, str(into)]
        ended = subprocess.run([*command, *overrides], stdout=sys.stderr)
        return json.loads(into.read_text()) if into.exists() else {"failed": f"ended with {ended.returncode}"}


def _against(training: str, size: str, figures: dict[str, Any]) -> dict[str, Any]:
    """How long as many steps as the documents' take, and how much longer the documents' took."""
    if size == "toy" or "failed" in figures:
        return {"documents_s": None, "whole_s": None, "times_faster": None}
    rows = SIZES[size].rows
    steps = 3 * math.ceil(math.ceil(rows / 4) / 2) if training == "sft" else 150
    made, documents_s = figures["steps"], DOCUMENTS_SECONDS[training]
    whole = figures["seconds"] if made >= steps else figures["seconds"] + (steps - made) * figures["s_per_step"]
    return {"documents_s": documents_s, "whole_s": round(whole, 1), "times_faster": round(documents_s / whole, 1)}


def _line(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"| {row['training']} | {row['settings']} | failed: {row['failed']} |" + " |" * (len(COLUMNS) - 3)
    documents = f"{row['documents_s'] / 60:.0f} min, {row['times_faster']}×" if row["documents_s"] else "–"
    cells = (
        row["training"],
        row["settings"],
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
