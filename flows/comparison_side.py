"""One side of a comparison: a finished run, or an artifact in which models were judged.

In: a run's folder; the key, revision or tag of a verdict, a decision, a release or an evaluation, of a folder or of the
Hub. Out: `Side`: the evaluation of each model, what made it, and whether training had seen its questions.
"""

import json
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from apprentice.flows.runs import FinishedRun, find_run, run_named
from apprentice.tasks.artifacts.lineage import Node, node_of
from apprentice.tasks.artifacts.locate import lines_of, locate
from apprentice.tasks.artifacts.provenance import Parent
from apprentice.tasks.artifacts.types import Decision, Evaluation, KeptRollouts, Release, Rollouts, Verdict
from apprentice.tasks.episodes.jsonl import LEARNED, same_text
from apprentice.tasks.episodes.record import EvaluatedEpisode, read_episodes
from apprentice.tasks.reporting.errors import Stop

LIKE_A_KEY = re.compile(r"[0-9a-f-]{6,}")
LOCAL = "local"
"""The namespace of stores that are no Hub's."""


class Side(NamedTuple):
    name: str
    """The run's folder, or repository@key."""
    evaluations: dict[str, Node]
    """By model, in the order of training."""
    recipe: dict[str, Any]
    row: dict[str, str]
    """run, recipe, seed, when, outcome, champion."""
    cost: dict[str, str]
    """What is known of it."""
    contaminated: bool

    @property
    def last(self) -> str:
        """The name of the model that the training ended with, such as grpo."""
        return [*self.evaluations][-1]

    def episodes(self) -> dict[str, list[EvaluatedEpisode]]:
        """By model. Raises Stop where they are gone."""
        return {model: read_episodes(node.store.fetch(node.artifact)) for model, node in self.evaluations.items()}

    def log(self, model: str) -> list[dict[str, Any]]:
        """The log of a model's training; nothing where there was none, or it is gone. No weights are downloaded."""
        checkpoint = self.evaluations[model].inputs.get("checkpoint")
        return json.loads(b"".join(_lines(checkpoint, "log.json")) or b"[]")


def side_named(name: str, runs: Path, root: Path | None = None, hub: str | None = None) -> Side:
    """Return the run or the artifact of that name. Raises Stop where there is none, or nobody was judged in it.

    Args:
        name: As `run_named` or `locate` takes it; `owner/name@revision` is looked for on the Hub, too.
        root: The folder of artifacts. Default: that of a run's recipe; for an artifact `artifacts`.
        hub: The namespace on the Hub where an artifact is looked for.
    """
    owner = name.partition("/")[0] if "@" in name else LOCAL
    if find_run(name, runs) or not ("@" in name or LIKE_A_KEY.fullmatch(name)):
        return of_run(run_named(name, runs), root)
    store, named = locate(name, root or Path("artifacts"), hub or (None if owner == LOCAL else owner))
    return of_artifact(node_of(store, named, {}))


def of_run(run: FinishedRun, root: Path | None = None) -> Side:
    """Return the run as it was judged. Raises Stop where its verdict is gone."""
    store = run.store(root)
    row = next(row for row in run.report["lineage"] if row["stage"] == "verdict")
    verdict = store.at(Verdict, row["revision"])
    node = node_of(store, Parent(kind="Verdict", **verdict.model_dump(include={"repository", "revision", "key"})), {})
    return Side(
        name=run.folder.name,
        evaluations=_evaluations(node),
        recipe=run.recipe,
        row=run.row(root),
        cost=_cost(run),
        contaminated=not run.report["contamination"]["clean"],
    )


def of_artifact(node: Node) -> Side:
    """Return a verdict, what was decided or released by it, or one evaluation. Raises Stop for another kind."""
    verdict = node if node.is_a(Verdict) else next((each for each in node.inputs.values() if each.is_a(Verdict)), None)
    if not node.is_a(Verdict, Decision, Release, Evaluation):
        raise Stop(
            f"{node.ref} is of kind {node.named.kind}, in which no model was judged.",
            "Name a run, or the key of a verdict, a decision, a release or an evaluation.",
        )
    if node.is_a(Evaluation):
        evaluations, contaminated = {node.counts["model"]: node}, _was_seen(node)
    elif verdict is None or verdict.record is None or not (evaluations := _evaluations(verdict)):
        raise Stop(f"The verdict of {node.ref} no longer exists.", "Name another store with --store or --hub.")
    else:
        contaminated = verdict.counts["contaminated"]
    assert node.record is not None
    made, recipe = node.record.provenance.made_at, node.record.provenance.recipe
    if node.is_a(Evaluation):  # `apprentice evaluate` asks as its options say
        recipe = recipe | {"evaluate": node.settings.get("spec")}
    row = {
        "run": node.ref,
        "recipe": str(recipe.get("name", node.store.project)),
        "seed": str(recipe.get("seed", "–")),
        "when": f"{datetime.fromisoformat(made).astimezone():%Y-%m-%d %H:%M}" if made else "–",
        "outcome": node.artifact.figure,
        "champion": "–",
    }
    return Side(node.ref, evaluations, recipe, row, _bought(node, recipe), contaminated)


def _evaluations(verdict: Node) -> dict[str, Node]:
    of = {name.partition(".")[::2]: each for name, each in verdict.inputs.items()}
    return {model: each for (purpose, model), each in of.items() if purpose == "evaluations"}


def _was_seen(evaluation: Node) -> bool:
    """Whether its model was trained on one of its questions, as far as that is known."""
    learned = _lines(evaluation.inputs.get("checkpoint"), LEARNED)
    asked = {same_text(each.question) for each in read_episodes(evaluation.store.fetch(evaluation.artifact))}
    return any(same_text(json.loads(line)["question"]) in asked for line in learned)


def _lines(node: Node | None, name: str) -> Iterator[bytes]:
    if node is not None and node.record is not None and (sha256 := node.record.files.get(name)):
        yield from lines_of(node.store, node.artifact, name, sha256)


def _cost(run: FinishedRun) -> dict[str, str]:
    """Return what a run cost; stages that were cached cost it nothing."""
    collected, stages, effort = run.report["collect"] or {}, run.report["stages"], run.report["effort"]
    return {
        "seconds": f"{sum(stage['seconds'] for stage in stages):.0f}",
        "stages that ran": f"{sum(stage['state'] == 'ran' for stage in stages)} of {len(stages)}",
        **_paid(collected, collected.get("kept", 0), collected.get("cost_usd")),
        "GRPO's rollouts": f"{effort['rollouts']:,}",
        "GRPO's tokens": f"{effort['tokens']:,}",
        "peak memory, MB": f"{run.report.get('peak_memory_mb', 0):,}",
    }


def _bought(node: Node, recipe: dict[str, Any]) -> dict[str, str]:
    """Return what the teacher's episodes cost that an artifact goes back to; it does not know what the run cost."""
    rollouts, kept = node.nearest(Rollouts), node.nearest(KeptRollouts)
    if rollouts is None or not rollouts.counts:
        return {}
    price = rollouts.counts["cost_usd"] if (recipe.get("teacher") or {}).get("prices") else None
    return _paid(rollouts.counts, kept.counts.get("kept", 0) if kept else 0, price)


def _paid(rollouts: dict[str, Any], kept: int, price: float | None) -> dict[str, str]:
    return {
        "teacher's episodes": f"{rollouts.get('episodes', 0):,}",
        "kept": f"{kept:,}",
        "teacher's tokens": f"{rollouts.get('prompt_tokens', 0) + rollouts.get('completion_tokens', 0):,}",
        "USD": "–" if price is None else f"{price:.4f}",
    }
