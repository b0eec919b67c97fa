"""The finished runs of a folder: what each one was, when it ran, how it ended.

In: the folder of all runs. Out: `FinishedRun`, read from the files that a run leaves, and rows for tables.
"""

import json
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from apprentice.flows.recipe.loading import MAY_BE_OFF, read_recipe
from apprentice.tasks.analysis.comparison import label, percent
from apprentice.tasks.analysis.ending import state_of
from apprentice.tasks.artifacts.champion import Champions
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.reporting.errors import Stop

LAST = "last"
"""Names the newest run."""
READ = {"recipe", "seed", "models", "lineage", "gate", "is_champion", "contamination", "collect", "stages", "effort"}
"""What is read of a report; one of older code that lacks some of it is no run that can be listed."""


class FinishedRun(NamedTuple):
    folder: Path
    report: dict[str, Any]
    recipe: dict[str, Any]
    """As the run's folder has it: the code may have changed since."""

    @property
    def ended(self) -> float:
        """Seconds since 1970."""
        return (self.folder / "report.json").stat().st_mtime

    @property
    def trained(self) -> str:
        """The name of the model that the run ended with, such as grpo."""
        return [*self.report["models"]][-1]

    def store(self, root: Path | None = None) -> LocalStore:
        """Return the store of its artifacts: a folder, which of a store on the Hub is the cache."""
        spec = self.recipe["store"]
        namespace = (spec.get("hub") or {}).get("namespace") or "local"
        return LocalStore(root or Path(spec["path"]), self.recipe["name"], namespace)

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

    def row(self, root: Path | None = None) -> dict[str, str]:
        model = self.report["models"][self.trained]
        return {
            "run": self.folder.name,
            "recipe": self.report["recipe"],
            "seed": str(self.report["seed"]),
            "when": f"{datetime.fromtimestamp(self.ended):%Y-%m-%d %H:%M}",
            "model": label(self.trained),
            "accuracy": percent(model["accuracy"], model["ci"]["accuracy"]),
            "outcome": state_of(self.report, self.report["gate"]),
            "champion": "yes" if self.is_champion(root) else "no",
            "page": str(self.folder / "report.html"),
        }


def finished(runs: Path) -> list[FinishedRun]:
    """Return the runs of a folder, the newest first."""
    found = [run for each in runs.glob("*/report.json") if (run := _read(each.parent)) is not None]
    return sorted(found, key=lambda run: run.ended, reverse=True)


def find_run(name: str, runs: Path) -> FinishedRun | None:
    """Return the run of a folder, of a name within `runs`, or the `last` one; None where there is none."""
    newest = finished(runs)[:1] if name == LAST else []
    return newest[0] if newest else _read(Path(name)) or _read(runs / name)


def run_named(name: str, runs: Path) -> FinishedRun:
    """As `find_run`. Raises Stop."""
    found = find_run(name, runs)
    if found is None:
        what = f"There is no finished run in {runs}." if name == LAST else f"{name} is no folder of a finished run."
        raise Stop(what, "`apprentice runs` lists them; --runs names another folder.")
    return found


def _read(folder: Path) -> FinishedRun | None:
    try:
        report = json.loads((folder / "report.json").read_text())
        recipe, _ = read_recipe((folder / "recipe.yaml").read_bytes())
    except (OSError, ValueError):
        return None
    if not (isinstance(report, dict) and isinstance(recipe, dict) and report.keys() >= READ and "store" in recipe):
        return None
    was = recipe | {name: None for name in MAY_BE_OFF if recipe.get(name) == "off"}  # as runs of older code wrote it
    return FinishedRun(folder.absolute(), report, was)
