"""What a run leaves for people and for machines: report.md, report.json, pictures, in a folder of its own.

In: the artifacts of all stages. Out: the folder. Only files are read and copied here, so a cached run reports at once.
"""

import json
import resource
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from apprentice.flows.recipe import Recipe
from apprentice.tasks import announce
from apprentice.tasks.artifacts import (
    Artifact,
    GrpoCheckpoint,
    KeptRollouts,
    LengthStats,
    Rollouts,
    SftCheckpoint,
    Verdict,
)
from apprentice.tasks.stage import PACKAGES, Work, installed
from apprentice.tasks.verdict import table


def new_run_folder(runs: Path, recipe: Recipe) -> Path:
    """A folder named by recipe, seed and time, with the recipe as it was run."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]
    folder = runs.absolute() / f"{recipe.name}-seed{recipe.seed}-{stamp}"
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False))
    return folder


def write_report(
    folder: Path,
    recipe: Recipe,
    work: Work,
    rollouts: Rollouts,
    kept: KeptRollouts,
    measured: LengthStats,
    warm: SftCheckpoint,
    trained: GrpoCheckpoint,
    judged: Verdict,
) -> dict[str, Any]:
    """Writes report.json and report.md into `folder` and shows the latter's tables."""
    fetch = work.store.fetch
    report = json.loads((fetch(judged) / "verdict.json").read_text())
    report |= {
        "recipe": recipe.name,
        "seed": recipe.seed,
        "decoding": recipe.evaluate.decoding,
        "collect": {
            "episodes": kept.episodes,
            "kept": kept.kept,
            "causes": kept.dropped,
            "prompt_tokens": rollouts.prompt_tokens,
            "completion_tokens": rollouts.completion_tokens,
            "cost_usd": rollouts.cost_usd,
        },
        "lengths": _counts(measured),
        "stages": [run._asdict() for run in work.log],
        "seeds": {purpose: window.model_dump() for purpose, window in recipe.seed_windows()},
        "versions": {name: installed(name) for name in PACKAGES},
        "artifacts": {
            artifact.suffix: {"repository": artifact.repository, "revision": artifact.revision}
            for artifact in (rollouts, kept, measured, warm, trained, judged)
        },
        "peak_memory_mb": _peak_memory_mb(),
    }
    for artifact, name in ((measured, "histogram"), (warm, "curves"), (trained, "curves")):
        shutil.copyfile(fetch(artifact) / f"{name}.png", folder / f"{artifact.suffix}-{name}.png")
    samples = (fetch(kept) / "samples.md").read_text()
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    text = as_markdown(report, samples)
    (folder / "report.md").write_text(text)
    announce.markdown("report", text, f"Report of {folder.name}")
    return report


def as_markdown(report: dict[str, Any], samples: str) -> str:
    """The report for people."""
    grpo, lengths, collected = report["grpo"], report["lengths"], report["collect"]
    ci = f" ({_points(grpo['ci'][0])} to {_points(grpo['ci'][1])})" if grpo["ci"] else ""
    sections = [
        f"# {report['recipe']}, seed {report['seed']}",
        f"## What was learned\n\nHeld-out questions, {report['decoding']} decoding, 95% intervals.\n",
        _markdown_table(table(report["models"])),
        _markdown_table(comparison_rows(report["comparisons"])),
        f"## What GRPO's curves say\n\n**{grpo['diagnosis']}.** {grpo['advice']}\n",
        f"Training reward: {grpo['reward_initial']:.1%} in the first five logs, {grpo['reward_final']:.1%} in the last "
        f"five: {_points(grpo['delta'])}{ci}. Different questions are compared here; the table above decides.\n",
        "![GRPO](grpo-curves.png)\n\n![SFT](sft-curves.png)\n",
        f"## What was learned from\n\n{collected['kept']} of {collected['episodes']} episodes were kept "
        f"({collected['kept'] / collected['episodes']:.1%}).\n",
        _markdown_table([{"dropped for": cause, "episodes": str(n)} for cause, n in collected["causes"].items()]),
        f"Tokens of a training text: p50 {lengths['p50']}, p95 {lengths['p95']}, p99 {lengths['p99']}, longest "
        f"{lengths['longest']}; max_length {lengths['max_length']} truncates {lengths['truncated']}.\n",
        "![lengths](lengths-histogram.png)\n",
        f"### Three samples\n\n{samples}",
        "## Stages\n",
        _markdown_table([{**row, "seconds": f"{row['seconds']:.1f}"} for row in report["stages"]]),
        f"Peak memory {report['peak_memory_mb']} MB. Seeds: {json.dumps(report['seeds'])}. "
        f"Versions: {json.dumps(report['versions'])}.\n",
    ]
    return "\n".join(sections)


def comparison_rows(comparisons: list[dict[str, Any]]) -> list[dict[str, str]]:
    """A row a pair of neighbours, differences in percentage points."""
    return [
        {
            "from": each["from"],
            "to": each["to"],
            "accuracy": _points(each["delta_accuracy"]),
            "95% interval": f"{_points(each['ci'][0])} to {_points(each['ci'][1])}",
            "p (McNemar)": f"{each['p_value']:.2g}",
        }
        for each in comparisons
    ]


def _points(share: float) -> str:
    return f"{100 * share:+.1f} pp"


def _markdown_table(rows: list[dict[str, str]]) -> str:
    if not rows:
        return ""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + " --- |" * len(rows[0])]
    lines += ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _counts(artifact: Artifact) -> dict[str, Any]:
    return artifact.model_dump(exclude=set(Artifact.model_fields))


def _peak_memory_mb() -> int:
    """The largest resident set of this process or of a server that it ran."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(each).ru_maxrss for each in who) // 1024
