"""What a curriculum over Reasoning Gym's own levels gains over asking all levels alike, with as many completions.

In: nothing; a store of its own in a temporary folder. `--datasets`, `--levels` (of each curriculum), `--seeds` and
`--set path=value` change both sides. Out: a table, then one line of JSON: {"rows": [{"recipe", "seed", "variant",
"accuracy", "ci", "asked", …}]}.
One student learns all datasets at once. Both sides go on from the same SFT and are examined on the same questions of
each dataset's hardest level. `uniform` is the same curriculum with `floor: 1`, which follows nothing. A level contains
those before it, as Reasoning Gym has it.

`--choose` prints what SFT alone makes of the candidates; the datasets were taken from that, before any comparison.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from apprentice.flows.recipe.sections import levels_by_label
from apprentice.tasks.analysis.comparison import compare, rate
from apprentice.tasks.analysis.kinds import ASKED
from apprentice.tasks.episodes.record import EvaluatedEpisode
from tests.bench.laptop import Report, episodes, run

DATASETS = ("count_bits", "gcd", "leg_counting", "letter_counting", "products", "spell_backward")
CANDIDATES = (*DATASETS, "basic_arithmetic", "chain_sum")
"""Those whose questions and answers are short; of them SFT has the least of `basic_arithmetic` and `chain_sum`."""
SIDES = {"uniform": 1.0, "curriculum": 0.2}
"""`grpo.curriculum.floor` of each."""
QUESTIONS = 800
"""Questions of the evaluation, a dataset."""
ALONE = ("windows.collect.size=192", "sft.epochs=60", "evaluate.questions=1000", "windows.evaluate.size=2000")
TOGETHER = (
    "student.build.hidden_size=96",
    "student.build.intermediate_size=192",
    "student.build.max_positions=384",
    "windows.collect.size=2400",
    "sft.epochs=30",
    "sft.batch_size=32",
    "sft.learning_rate=1e-3",
)
"""What is another than in the laptop recipe, for one dataset and for several."""


def overrides(datasets: list[str], levels: int, floor: float) -> list[str]:
    """A mixture of the datasets at their hardest level, trained on all of their levels."""
    rungs = levels_by_label(datasets, levels).values()
    hardest = {each["dataset"]: each for each in rungs}  # the last one of each
    parts = {_label(name): {"name": "reasoning_gym", "settings": hardest[name]} for name in datasets}
    environment = {"name": "multi", "settings": {"parts": parts}}
    questions = QUESTIONS * len(datasets)
    return [
        f"environment={json.dumps(environment)}",
        f"grpo.curriculum={json.dumps({'levels': 'own', 'most_levels': levels, 'floor': floor})}",
        f"evaluate.questions={questions}",
        f"windows.evaluate.size={2 * questions}",
        "guards=[]",
        *(TOGETHER if len(datasets) > 1 else ALONE),
    ]


def measured(folder: Path, datasets: list[str], levels: int, seed: int, sets: list[str]) -> list[dict[str, Any]]:
    """Two rows a dataset: uniform, curriculum."""
    reports = {
        side: run(folder, seed, *overrides(datasets, levels, floor), *sets).report for side, floor in SIDES.items()
    }
    played = {side: _by_dataset(folder, report, "grpo") for side, report in reports.items()}
    sft = _by_dataset(folder, reports["uniform"], "sft")
    rows = []
    for name in map(_label, datasets):
        change = compare(played["uniform"][name], played["curriculum"][name])
        for side, report in reports.items():
            row = {"recipe": name, "seed": seed, "variant": side, "asked": _asked(folder, report, name)}
            row |= {"sft": rate(sft[name])["accuracy"]} | rate(played[side][name])
            if side == "curriculum":
                row["over_uniform"] = {"delta": change["delta"], "ci": change["ci"]}
            rows.append(row)
    return rows


def _label(dataset: str) -> str:
    return dataset.replace("_", "-")


def _by_dataset(folder: Path, report: Report, model: str) -> dict[str, list[EvaluatedEpisode]]:
    found: dict[str, list[EvaluatedEpisode]] = {}
    for record in episodes(folder, report, model):
        found.setdefault(json.loads(record.traits)["environment"], []).append(record)
    return found


def _asked(folder: Path, report: Report, name: str) -> list[int]:
    """Questions that GRPO asked of each level of a dataset, easiest first."""
    made = next(row for row in report["lineage"] if row["stage"] == "grpo")
    snapshot = folder / "artifacts/models" / made["repository"] / "snapshots" / made["revision"]
    log = json.loads((snapshot / "log.json").read_text())
    kinds = sorted({key for step in log for key in step if key.startswith(f"{ASKED}{name}-")})
    return [round(sum(step.get(kind, 0.0) for step in log)) for kind in kinds]


def choose(folder: Path, datasets: list[str], levels: int, sets: list[str]) -> None:
    """Prints SFT's accuracy on the hardest level of each, beside that of always giving the commonest answer."""
    report = run(folder, 99, *overrides(datasets, levels, 1.0), "grpo.max_steps=1", *sets).report
    print("| dataset | n | commonest answer | SFT |\n|" + " --- |" * 4)
    for name, records in sorted(_by_dataset(folder, report, "sft").items()):
        answers = [record.correct for record in records]
        commonest = max(answers.count(each) for each in set(answers)) / len(answers)
        print(f"| {name} | {len(records)} | {commonest:.1%} | {rate(records)['accuracy']:.1%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+")
    parser.add_argument("--levels", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--store", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.store or Path(temporary)
        if given.choose:
            choose(folder, given.datasets or [*CANDIDATES], given.levels, given.set)
            return
        rows = []
        for seed in given.seeds:
            rows += measured(folder, given.datasets or [*DATASETS], given.levels, seed, given.set)
            print(json.dumps(rows), file=sys.stderr, flush=True)
    print("| seed | dataset | SFT | uniform | curriculum | difference |\n|" + " --- |" * 6)
    for uniform, curriculum in zip(rows[::2], rows[1::2], strict=True):
        over = curriculum["over_uniform"]
        gain = "{:+.1f} pp ({:+.1f} to {:+.1f})".format(*(100 * each for each in (over["delta"], *over["ci"])))
        rates = [f"{each:.1%}" for each in (uniform["sft"], uniform["accuracy"], curriculum["accuracy"])]
        print("| " + " | ".join([str(uniform["seed"]), f"`{uniform['recipe']}`", *rates, gain]) + " |")
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
