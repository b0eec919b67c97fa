"""What a curriculum over Reasoning Gym's own levels gains over asking all levels alike, with as many completions.

In: nothing; a store of its own in a temporary folder. `--datasets` and `--seed` choose others, `--levels` how many of a
curriculum's levels are used, `--set path=value` changes the recipe of both sides. Out: a table, then one line of JSON:
{"rows": [{"recipe", "seed", "variant", "accuracy", "ci", "asked", …}]}.
Both sides begin from the same SFT and are examined on the same questions of the hardest level. `uniform` is the same
curriculum with `floor: 1`, which follows nothing, so that it asks every level as often. A level contains those before
it, as Reasoning Gym has it.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from apprentice.flows.recipe.gym_levels import levels_by_label
from apprentice.tasks.analysis.comparison import compare
from apprentice.tasks.analysis.question_kinds import ASKED
from tests.bench.laptop import episodes, run

DATASETS = ("spell_backward",)
SIDES = {"uniform": 1.0, "curriculum": 0.2}
"""`grpo.curriculum.floor` of each."""


def overrides(dataset: str, levels: int, floor: float) -> list[str]:
    """The laptop recipe on a dataset's hardest level, trained on all of its levels."""
    *_, hardest = levels_by_label([dataset], levels).values()
    curriculum = {"levels": [dataset], "most_levels": levels, "floor": floor}
    return [
        f"environment.settings={json.dumps(hardest)}",
        f"grpo.curriculum={json.dumps(curriculum)}",
        "guards=[]",
    ]


def measured(folder: Path, dataset: str, levels: int, seed: int, sets: list[str]) -> list[dict[str, Any]]:
    """A row a side."""
    reports = {
        side: run(folder, seed, *overrides(dataset, levels, floor), *sets).report for side, floor in SIDES.items()
    }
    played = {side: episodes(folder, report, "grpo") for side, report in reports.items()}
    change = compare(played["uniform"], played["curriculum"])
    rows = []
    for side, report in reports.items():
        asked = {
            name.removeprefix(ASKED): round(sum(entry.get(name, 0.0) for entry in log))
            for log in [log_of(folder, report)]
            for name in sorted({name for entry in log for name in entry if name.startswith(ASKED)})
        }
        row = {"recipe": dataset, "seed": seed, "variant": side, "asked": asked}
        row |= {"sft": round(report["models"]["sft"]["accuracy"], 4)}
        row |= {name: report["models"]["grpo"][name] for name in ("accuracy", "ci")}
        if side == "curriculum":
            row["over_uniform"] = {"delta": round(change["delta"], 4), "ci": [round(each, 4) for each in change["ci"]]}
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def log_of(folder: Path, report: dict[str, Any]) -> list[dict[str, Any]]:
    """GRPO's log."""
    made = next(row for row in report["lineage"] if row["stage"] == "grpo")
    snapshot = folder / "artifacts/models" / made["repository"] / "snapshots" / made["revision"]
    return json.loads((snapshot / "log.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=DATASETS)
    parser.add_argument("--levels", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            row
            for dataset in given.datasets
            for row in measured(Path(folder), dataset, given.levels, given.seed, given.set)
        ]
    print("| dataset | SFT | uniform | curriculum | difference |\n|" + " --- |" * 5)
    for uniform, curriculum in zip(rows[::2], rows[1::2], strict=True):
        over = curriculum["over_uniform"]
        gain = "{:+.1f} pp ({:+.1f} to {:+.1f})".format(*(100 * each for each in (over["delta"], *over["ci"])))
        rates = [f"{each:.1%}" for each in (uniform["sft"], uniform["accuracy"], curriculum["accuracy"])]
        print("| " + " | ".join([f"`{uniform['recipe']}`", *rates, gain]) + " |")
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
