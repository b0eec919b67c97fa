"""Measures champions on the window that no gate reads, and shows the history of all rounds.

In: the recipe, the rounds. Out: evaluations; a table and a picture on the terminal, in the report's folder and in
Prefect, under keys that stay the same from round to round.
"""

import json
from pathlib import Path
from typing import Any

from apprentice.flows.recipe.recipe import Recipe, long_run_window
from apprentice.tasks.analysis.comparison import percent
from apprentice.tasks.analysis.history import PastRound
from apprentice.tasks.analysis.statistics import wilson
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Checkpoint, Evaluation, Questions
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.episodes.jsonl import read_rows, same_text
from apprentice.tasks.episodes.record import read_episodes
from apprentice.tasks.evaluate import evaluate
from apprentice.tasks.questions import exam
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.pictures import rounds_curve
from apprentice.tasks.settings.stages import EvaluateSpec


def long_run_questions(run: RunContext, recipe: Recipe) -> Questions | None:
    """Return the questions of the long-run window, in the recipe's own environment; None if the recipe wants none."""
    if not recipe.improve.long_run:
        return None
    stage = exam.titled("Questions of the long-run window")
    return stage(run, recipe.environment, long_run_window(recipe), recipe.improve.long_run)


def measure(
    recipe: Recipe, questions: Questions | None, past: list[PastRound], run: RunContext, challenger: Checkpoint
) -> None:
    """Evaluate the champions so far and the challenger on the long-run window; earlier ones are cache hits."""
    if questions is None:
        return
    stage = evaluate.titled("{checkpoint.stage} on the long-run window in {environment}")
    for model in [*(each.trained for each in past if each.release.promoted), challenger]:
        stage(run, _spec(recipe), model, recipe.environment, questions, recipe.seed)


def history_rows(store: LocalStore, recipe: Recipe, past: list[PastRound]) -> list[dict[str, str]]:
    """Return one row per round, with the champion's accuracy on the long-run window where it was measured."""
    rows = []
    for each in past:
        curve = _long_run(store, recipe, each, past[0])
        row = each.row()
        shown = {"long run": percent(*curve) if curve else "–"}
        first = ("round", "champion's accuracy")
        rows.append({name: row[name] for name in first} | shown | {n: v for n, v in row.items() if n not in first})
    return rows


def show_history(store: LocalStore, recipe: Recipe, past: list[PastRound], folder: Path) -> None:
    """Show the table and the picture, and write them into the last round's folder."""
    if not past:
        return
    rows = history_rows(store, recipe, past)
    key = f"history-{recipe.name.replace('.', '-')}"
    announce.table(key, f"Rounds of {recipe.name}: {len(past)} gates so far", rows)
    points: list[dict[str, Any]] = []
    for each in past:
        judged = each.judged
        ci = wilson(round(judged.accuracy * judged.n), judged.n)
        curve = _long_run(store, recipe, each, past[0])
        points.append({"round": each.number, "accuracy": judged.accuracy, "ci": ci, "long_run": curve and curve[0]})
    (folder / "history.json").write_text(json.dumps({"rows": rows, "points": points}, indent=2) + "\n")
    announce.picture(f"{key}-curve", rounds_curve(points, folder / "history.png"), f"Champions of {recipe.name}")


def _long_run(
    store: LocalStore, recipe: Recipe, each: PastRound, first: PastRound
) -> tuple[float, tuple[float, float]] | None:
    """Return a promoted model's accuracy on the long-run window, without questions that the first training asked."""
    if not (each.release.promoted and recipe.improve.long_run):
        return None
    examined = recipe.environment, long_run_window(recipe), recipe.improve.long_run
    questions = store.find(Questions, exam.key(examined, {}))
    if questions is None:
        return None
    given = _spec(recipe), each.trained, recipe.environment, questions, recipe.seed
    found = store.find(Evaluation, evaluate.key(given, {}))
    if found is None:
        return None
    asked = {same_text(row["question"]) for row in read_rows(store.fetch(first.questions) / "questions.jsonl")}
    right = [each.is_right for each in read_episodes(store.fetch(found)) if same_text(each.question) not in asked]
    return (sum(right) / len(right), wilson(sum(right), len(right))) if right else None


def _spec(recipe: Recipe) -> EvaluateSpec:
    return recipe.evaluate.model_copy(update={"questions": max(recipe.improve.long_run, 1), "samples": 1})
