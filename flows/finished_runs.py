"""The finished runs of a folder: how each ended, and whether its model is the champion now.

In: the runs' folders. Out: a `FinishedRun` each, and its row for `apprentice runs`.
"""

import json
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from apprentice.flows.follow import FOLLOWS
from apprentice.flows.recipe.recipe_yaml import read_recipe
from apprentice.tasks.advice.ending import state_of
from apprentice.tasks.artifacts.local import LOCAL, LocalStore
from apprentice.tasks.artifacts.provenance import parent
from apprentice.tasks.artifacts.types import Verdict, models_of_a_run
from apprentice.tasks.judgement.champions import Champions
from apprentice.tasks.judgement.contents import GateDecision, VerdictContents
from apprentice.tasks.judgement.model_names import label
from apprentice.tasks.judgement.run_models import Models, evaluations_of
from apprentice.tasks.lineage.node import Node, node_of
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.statistics.intervals import percent

LAST = "last"
"""Names the newest run."""
READ = {"recipe", "seed", "models", "lineage", "gate", "is_champion", "contamination"}
"""What is read of a report; one of older code that lacks some of it is no run that can be listed."""


class FinishedRun(NamedTuple):
    folder: Path
    report: dict[str, Any]
    recipe: dict[str, Any]
    """As the run's folder has it: the code may have changed since."""
    verdict: VerdictContents
    decision: GateDecision

    @property
    def ended(self) -> float:
        """Seconds since 1970, as the run says itself: a copy of its folder has another time. A run of older code says
        when it began, in its folder's name."""
        with suppress(KeyError, TypeError, ValueError):
            return datetime.fromisoformat(self.report["ended"]).timestamp()
        with suppress(ValueError):
            return datetime.strptime("-".join(self.folder.name.split("-")[-3:]), "%Y%m%d-%H%M%S-%f").timestamp()
        return (self.folder / "report.json").stat().st_mtime

    def store(self, root: Path | None = None) -> LocalStore:
        """Return the store of its artifacts: a folder, which of a store on the Hub is the cache."""
        spec = self.recipe["store"]
        namespace = (spec.get("hub") or {}).get("namespace") or LOCAL
        return LocalStore(root or Path(spec["path"]), self.recipe["name"], namespace)

    def evaluations(self, root: Path | None = None) -> Models[Node]:
        """Return the evaluation of each of its models. Raises Stop where its verdict is gone."""
        store = self.store(root)
        revision = next(row["revision"] for row in self.report["lineage"] if row["stage"] == "verdict")
        return evaluations_of(node_of(store, parent(store.at(Verdict, revision)), {}).inputs)

    def is_champion(self, root: Path | None = None) -> bool:
        """Whether its model is the champion now; for a store on the Hub, whether it was when the run ended."""
        if self.recipe["store"].get("hub"):
            return self.report["is_champion"]
        with suppress(Stop):  # the champion's files are gone
            now = Champions(self.store(root)).current()
            return now is not None and now.revision in {
                row["revision"] for row in self.report["lineage"] if row["stage"] == "release"
            }
        return False

    @property
    def follows(self) -> dict[str, str]:
        """`after`, the run whose advice it followed, and `change`, what was changed for it; empty for others."""
        file = self.folder / FOLLOWS
        return json.loads(file.read_text()) if file.exists() else {}

    def row(self, root: Path | None = None) -> dict[str, str]:
        models = self.verdict.models
        return {
            "run": self.folder.name,
            "recipe": self.report["recipe"],
            "seed": str(self.report["seed"]),
            "when": f"{datetime.fromtimestamp(self.ended):%Y-%m-%d %H:%M}",
            "model": label(models.last_name),
            "accuracy": percent(models.last.accuracy, models.last.ci["accuracy"]),
            "outcome": state_of(self.verdict, self.decision),
            "champion": "yes" if self.is_champion(root) else "no",
            "page": str(self.folder / "report.html"),
            "follows": self.follows.get("after", ""),
            "change": self.follows.get("change", ""),
        }


def finished(runs: Path) -> list[FinishedRun]:
    """Return the runs of a folder, the newest first."""
    found = [run for each in runs.glob("*/report.json") if (run := _read(each.parent)) is not None]
    return sorted(found, key=lambda run: run.ended, reverse=True)


def run_named(name: str, runs: Path) -> FinishedRun:
    """Return the run of a folder, of a name within `runs`, or the `last` one. Raises Stop where there is none."""
    newest = finished(runs)[:1] if name == LAST else []
    found = newest[0] if newest else _read(Path(name)) or _read(runs / name)
    if found is None:
        what = f"There is no finished run in {runs}." if name == LAST else f"{name} is no folder of a finished run."
        raise Stop(what, "`apprentice runs` lists them; --runs names another folder.")
    return found


def _read(folder: Path) -> FinishedRun | None:
    try:
        report = json.loads((folder / "report.json").read_text())
        recipe, _ = read_recipe((folder / "recipe.yaml").read_bytes())
        if not (isinstance(report, dict) and isinstance(recipe, dict) and report.keys() >= READ and "store" in recipe):
            return None
        judged = VerdictContents.model_validate(report), GateDecision.model_validate(report["gate"])
    except (OSError, ValueError):
        return None
    was = recipe | {
        name: None for name in models_of_a_run()[1:] if recipe.get(name) == "off"
    }  # as runs of older code wrote it
    return FinishedRun(folder.absolute(), report, was, *judged)
