"""A change of the recipe that did not help is read from the runs before and after it."""

import json
from pathlib import Path
from typing import Any

import pytest

from apprentice.tasks.advice.attempts import Attempt, attempts_of, changed_field, in_vain
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import Provenance
from apprentice.tasks.artifacts.types import Verdict

RECIPE: dict[str, Any] = {
    "seed": 0,
    "student": {"build": {"hidden_size": 32, "intermediate_size": 64}, "model": None},
    "sft": {"epochs": 8, "learning_rate": 1e-3},
    "grpo": {"num_generations": 8, "batch_size": 24},
    "windows": {"evaluate": {"size": 60}, "collect": {"size": 60}},
    "evaluate": {"questions": 60},
}


def changed(**values: Any) -> dict[str, Any]:
    """The recipe with other values at paths written with two underscores."""
    made = RECIPE | {name: dict(each) for name, each in RECIPE.items() if isinstance(each, dict)}
    for path, value in values.items():
        *parents, last = path.split("__")
        section = made
        for name in parents:
            section[name] = dict(section[name])
            section = section[name]
        section[last] = value
    return made


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"sft__epochs": 32}, "sft.epochs"),
        ({"sft__epochs": 32, "seed": 1}, ""),
        ({}, ""),
        ({"student__build__hidden_size": 64, "student__build__intermediate_size": 128}, "student.build.hidden_size"),
        ({"grpo__num_generations": 16, "grpo__batch_size": 48}, "grpo.num_generations"),
        ({"grpo__batch_size": 48}, "grpo.batch_size"),
        ({"evaluate__questions": 90, "windows__evaluate__size": 90}, "evaluate.questions"),
        ({"student__build": None, "student__model": "m", "sft__epochs": 4}, "student"),
        ({"student__build": None, "student__model": "m", "windows__collect__size": 4}, ""),
    ],
)
def test_a_change_has_a_name_where_it_is_one(values: dict, field: str):
    assert changed_field(RECIPE, changed(**values)) == field


def test_only_a_change_without_a_better_model_was_in_vain():
    first, better = Attempt(RECIPE, 0.1, 0.15), Attempt(changed(sft__epochs=32), 0.4, 0.45)
    assert in_vain([first], better) == set()
    more_rows = Attempt(changed(sft__epochs=32, windows__collect__size=240), 0.42, 0.47)
    assert in_vain([first, better], more_rows) == {"windows.collect.size"}
    assert in_vain([first, better, more_rows], more_rows) == {"windows.collect.size"}


def test_earlier_runs_are_read_from_their_verdicts_and_those_that_are_gone_left_out(tmp_path: Path):
    store = LocalStore(tmp_path, "toy")
    recipes = [RECIPE, changed(sft__epochs=32), changed(round={"number": 1})]
    made = [verdict(store, place, recipe) for place, recipe in enumerate(recipes)]
    assert [(each.recipe["sft"]["epochs"], each.accuracy) for each in attempts_of(store)] == [(8, 0.1), (32, 0.2)]
    file = store.fetch(made[0]) / "verdict.json"
    file.chmod(0o644)
    file.write_text("{}")
    assert [each.accuracy for each in attempts_of(store)] == [0.2]


def verdict(store: LocalStore, place: int, recipe: dict[str, Any]) -> Verdict:
    """The verdict of a run of the recipe, on 10, 20, 30 … percent."""
    accuracy = (place + 1) / 10
    rates = {"n": 50, "accuracy": accuracy, "format_compliance": 1.0, "ci": {"accuracy": (0.0, accuracy + 0.05)}}
    written = {"models": {"sft": rates}, "contamination": {"clean": True}}
    with store.staging() as folder:
        (folder / "verdict.json").write_text(json.dumps(written))
        provenance = Provenance(recipe=recipe, made_at=f"2026-11-27T00:00:0{place}")
        counts = {"diagnosis": "", "contaminated": False}
        return store.publish(Verdict, f"key{place}", folder, counts, {"stage": "verdict"}, provenance)


def test_the_way_back_is_no_attempt():
    worse = Attempt(changed(sft__epochs=2), 0.0, 0.05)
    assert in_vain([worse], Attempt(RECIPE, 0.1, 0.15)) == set()
