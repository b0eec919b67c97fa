"""How the champions of many rounds compare: their accuracy on a window of questions that no gate reads.

In: the recipe's own task, the rounds so far. Out: evaluations, and the rounds as a table and a picture.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.analysis.past_rounds import PastRound
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Checkpoint, Evaluation, Questions
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.episodes.record import read_episodes
from apprentice.tasks.episodes.texts import same_text
from apprentice.tasks.evaluate import evaluate
from apprentice.tasks.files.json_lines import read_rows
from apprentice.tasks.questions import exam
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.pictures import rounds_curve
from apprentice.tasks.settings.spec import EvaluateSpec, Window
from apprentice.tasks.statistics.intervals import percent
from apprentice.tasks.statistics.rates import evaluated_interval, rate


class LongRun(NamedTuple):
    """The evaluation on the long-run window, in the recipe's own environment."""

    size: int
    """Questions; 0 without such an evaluation."""
    window: Window
    spec: EvaluateSpec
    environment: EnvironmentSpec
    seed: int

    @staticmethod
    def of(recipe: Recipe) -> "LongRun":
        size = recipe.improve.long_run
        spec = recipe.evaluate.model_copy(update={"questions": max(size, 1), "samples": 1})
        return LongRun(size, recipe.long_run_window(), spec, recipe.environment, recipe.seed)

    def questions(self, run: RunContext) -> Questions | None:
        """Return the questions; None if the recipe wants none."""
        if not self.size:
            return None
        return exam.titled("Questions of the long-run window")(run, self.environment, self.window, self.size)

    def measure(
        self, questions: Questions | None, past: list[PastRound], run: RunContext, challenger: Checkpoint
    ) -> None:
        """Evaluate the champions so far and the challenger; earlier ones are cache hits."""
        if questions is None:
            return
        stage = evaluate.titled("{checkpoint.stage} on the long-run window in {environment}")
        for model in [*(each.trained for each in past if each.release.promoted), challenger]:
            stage(run, self.spec, model, self.environment, questions, self.seed)

    def of_round(
        self, store: LocalStore, each: PastRound, first: PastRound
    ) -> tuple[float, tuple[float, float]] | None:
        """Return a promoted model's accuracy with its interval, without questions that the first training asked."""
        if not (each.release.promoted and self.size):
            return None
        questions = store.find(Questions, exam.key((self.environment, self.window, self.size), {}))
        given = self.spec, each.trained, self.environment, questions, self.seed
        found = store.find(Evaluation, evaluate.key(given, {})) if questions else None
        if found is None:
            return None
        known_texts = {
            same_text(row["question"]) for row in read_rows(store.fetch(first.questions) / "questions.jsonl")
        }
        new = [each for each in read_episodes(store.fetch(found)) if same_text(each.question) not in known_texts]
        if not new:
            return None
        measured = rate(new)
        return measured["accuracy"], measured["ci"]


def history_rows(store: LocalStore, long_run: LongRun, past: list[PastRound]) -> list[dict[str, str]]:
    """Return one row per round, with the champion's accuracy on the long-run window where it was measured."""
    rows = []
    for each in past:
        curve = long_run.of_round(store, each, past[0])
        row = each.row()
        shown = {"long run": percent(*curve) if curve else "–"}
        first = ("round", "champion's accuracy")
        rows.append({name: row[name] for name in first} | shown | row)
    return rows


def show_history(store: LocalStore, name: str, long_run: LongRun, past: list[PastRound], folder: Path) -> None:
    """Show the rounds of the recipe of that name, and write table and picture into the last round's folder."""
    if not past:
        return
    rows = history_rows(store, long_run, past)
    key = f"history-{name.replace('.', '-')}"
    announce.table(key, f"Rounds of {name}: {len(past)} gates so far", rows)
    points: list[dict[str, Any]] = []
    for each in past:
        judged = each.judged
        curve = long_run.of_round(store, each, past[0])
        ci = evaluated_interval(judged)
        points.append({"round": each.number, "accuracy": judged.accuracy, "ci": ci, "long_run": curve and curve[0]})
    (folder / "history.json").write_text(json.dumps({"rows": rows, "points": points}, indent=2) + "\n")
    announce.picture(f"{key}-curve", rounds_curve(points, folder / "history.png"), f"Champions of {name}")
