"""What each stage of a run was given, by its artifact's record: no option and no artifact is lost on the way.

A run of the toy recipe, one in which every player, control and regression evaluation takes part, and one in which GRPO
does not start.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.retrain import pinned_for_run, train
from apprentice.tasks.artifacts.provenance import ArtifactRecord, read_record
from apprentice.tasks.settings.spec import EvaluateSpec, MixSpec, Seeds, Spec
from tests.flows.commands import TOY, Ran


class Stages(NamedTuple):
    """The stages of one run: their records by title, and the title of the stage that made each revision."""

    recipe: Recipe
    records: dict[str, ArtifactRecord]
    makers: dict[str, str]

    def inputs(self, title: str) -> dict[str, str]:
        """By argument, the title of the stage whose artifact a stage was given."""
        return {name: self.makers[revision] for name, revision in self.records[title].made_by["inputs"].items()}

    def settings(self, title: str) -> dict[str, Any]:
        return self.records[title].made_by["settings"]


def stages_of(recipe: Recipe, folder: Path, store: Path) -> Stages:
    report = json.loads((folder / "report.json").read_text())
    titles = {stage["key"]: stage["title"] for stage in report["stages"]}
    records, makers = {}, {}
    for snapshot in store.glob("*/local/*/snapshots/*"):
        record = read_record(snapshot)
        title = titles.get(record.key, record.made_by["stage"])
        records[title], makers[snapshot.name] = record, title
    return Stages(recipe, records, makers)


@pytest.fixture(scope="module")
def toy(toy_run: Ran, toy_home: Path) -> Stages:
    return stages_of(load_recipe(TOY, []), toy_run.folder, toy_home / "artifacts")


EVERYBODY = [
    "collect={students: 2, keep: 1, teacher_questions: 6}",
    "sft.control=true",
    "sft.epochs=1",
    "grpo.temperature=0.7",
    "evaluate.decoding=sampled",
    "evaluate.base_questions=15",
    "evaluate.temperature=0.3",
    "guards=[{name: longer-words, environment: {name: reasoning_gym, settings: {dataset: spell_backward, config: "
    "{min_word_len: 6, max_word_len: 7}}}, questions: 20, max_new_tokens: 12}]",
]
"""The student and the teacher play, the control is trained, and a regression evaluation has a length of its own."""


@pytest.fixture(scope="module")
def everybody(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    folder = tmp_path_factory.mktemp("everybody")
    recipe = load_recipe(TOY, [*EVERYBODY, f"store.path={folder / 'artifacts'}"])
    return stages_of(recipe, train(pinned_for_run(recipe, []), folder / "runs", gpu="").folder, folder / "artifacts")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    folder = tmp_path_factory.mktemp("stopped")
    halted = ["sft.control=true", "probe.on_hopeless=stop", f"store.path={folder / 'artifacts'}"]
    recipe = load_recipe(TOY, halted)
    return stages_of(recipe, train(pinned_for_run(recipe, []), folder / "runs", gpu="").folder, folder / "artifacts")


BASE, SFT, GRPO = "Student", "SFT", "GRPO"
QUESTIONS = "Questions of the seed windows"
IN = "in reasoning_gym spell_backward"
REGRESSION = "Regression evaluation longer-words"
TEACHER = "Teacher's rollouts (scripted policy, error rate 0.1: not a model)"
"""Of everybody's run the teacher's episodes, of the toy recipe's as well."""
ALIKE = {
    BASE: {"questions": QUESTIONS},
    f"Probe of sft {IN}": {"checkpoint": SFT, "questions": "Questions of the probe"},
    GRPO: {"checkpoint": SFT, "questions": QUESTIONS},
    f"Evaluation of base {IN}": {"checkpoint": BASE, "questions": QUESTIONS},
    f"Evaluation of sft {IN}": {"checkpoint": SFT, "questions": QUESTIONS},
    f"Evaluation of grpo {IN}": {"checkpoint": GRPO, "questions": QUESTIONS},
    f"{REGRESSION}: sft": {"checkpoint": SFT, "questions": "Questions of a regression evaluation"},
    f"{REGRESSION}: grpo": {"checkpoint": GRPO, "questions": "Questions of a regression evaluation"},
    "Gate: challenger against base": {
        "challenger": GRPO,
        "rival": BASE,
        "evaluations.challenger": f"Evaluation of grpo {IN}",
        "evaluations.rival": f"Evaluation of base {IN}",
        "guards.longer-words.challenger": f"{REGRESSION}: grpo",
        "guards.longer-words.rival": f"{REGRESSION}: sft",
        "judged": "Comparison and diagnosis",
    },
    "Release": {
        "trained": GRPO,
        "judged": "Comparison and diagnosis",
        "decision": "Gate: challenger against base",
    },
}
JUDGED = {
    "evaluations.base": f"Evaluation of base {IN}",
    "evaluations.sft": f"Evaluation of sft {IN}",
    "evaluations.grpo": f"Evaluation of grpo {IN}",
    "guards.longer-words.sft": f"{REGRESSION}: sft",
    "guards.longer-words.grpo": f"{REGRESSION}: grpo",
    "rollouts": TEACHER,
    "trained": GRPO,
}
OF_TOY = ALIKE | {
    "Filter by reward": {"rollouts": TEACHER, "questions": QUESTIONS},
    "Token lengths": {"kept": "Filter by reward", "student": BASE},
    SFT: {"student": BASE, "kept": "Filter by reward", "lengths": "Token lengths"},
    "Comparison and diagnosis": JUDGED,
}
MIXED = "Rollouts to learn from"
OF_EVERYBODY = ALIKE | {
    f"Tries of the student {IN}": {"checkpoint": BASE, "questions": "Questions for the student to try"},
    MIXED: {"questions": QUESTIONS, "rollouts": TEACHER, "tries": f"Tries of the student {IN}"},
    "Token lengths": {"kept": MIXED, "student": BASE},
    SFT: {"student": BASE, "kept": MIXED, "lengths": "Token lengths"},
    "SFT to its best": {"student": BASE, "kept": MIXED, "lengths": "Token lengths"},
    f"Evaluation of control {IN}": {"checkpoint": "SFT to its best", "questions": QUESTIONS},
    "Comparison and diagnosis": JUDGED | {"evaluations.control": f"Evaluation of control {IN}"},
}


@pytest.mark.parametrize("title", OF_TOY)
def test_a_stage_of_the_toy_recipe_has_these_inputs(toy: Stages, title: str):
    assert toy.inputs(title) == OF_TOY[title]


@pytest.mark.long
@pytest.mark.parametrize("title", OF_EVERYBODY)
def test_where_everybody_plays_a_stage_has_these_inputs(everybody: Stages, title: str):
    assert everybody.inputs(title) == OF_EVERYBODY[title]


@pytest.mark.long
def test_where_grpo_does_not_start_sft_is_released_and_compared_with_the_student(stopped: Stages):
    judged, gate = stopped.inputs("Comparison and diagnosis"), stopped.inputs("Gate: challenger against base")
    assert stopped.inputs("Release")["trained"] == judged["trained"] == gate["challenger"] == SFT
    assert gate["guards.longer-words.rival"] == judged["guards.longer-words.base"] == f"{REGRESSION}: base"
    assert judged["evaluations.control"] == f"Evaluation of control {IN}"


def section(name: str) -> Any:
    return lambda recipe: getattr(recipe, name)


def as_regression(recipe: Recipe) -> EvaluateSpec:
    return recipe.evaluate.model_copy(update={"questions": 20, "max_new_tokens": 12})


PLAYED = EvaluateSpec(questions=60, samples=2, decoding="sampled", temperature=0.7, max_new_tokens=16, batch_size=20)
"""As GRPO plays."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("title", "argument", "given"),
    [
        ("Student", "spec", section("student")),
        ("Token lengths", "spec", section("lengths")),
        ("SFT", "spec", section("sft")),
        ("SFT to its best", "spec", lambda recipe: recipe.sft.to_its_best()),
        ("GRPO", "spec", section("grpo")),
        (f"Evaluation of sft {IN}", "spec", section("evaluate")),
        (f"Evaluation of base {IN}", "spec", lambda recipe: recipe.evaluate.model_copy(update={"questions": 15})),
        (f"{REGRESSION}: sft", "spec", as_regression),
        (f"Tries of the student {IN}", "spec", lambda _: PLAYED),
        (TEACHER, "teacher", section("teacher")),
        (TEACHER, "window", lambda _: Seeds(chosen=(0, 1, 2, 3, 4, 5))),
        (MIXED, "spec", lambda _: MixSpec(keep=1, replay=0.0)),
        ("Gate: challenger against base", "spec", section("gate")),
        ("Comparison and diagnosis", "gate", section("gate")),
    ],
)
def test_a_stage_has_its_section_of_the_recipe(everybody: Stages, title: str, argument: str, given: Any):
    spec = given(everybody.recipe)
    assert everybody.settings(title)[argument] == (spec.in_made_by() if isinstance(spec, Spec) else spec.in_key())


@pytest.mark.long
def test_the_gate_knows_what_each_regression_evaluation_may_lose(everybody: Stages):
    assert everybody.settings("Gate: challenger against base")["allowances"] == {"longer-words": 0.05}


@pytest.mark.long
def test_every_stage_that_plays_does_so_in_the_recipes_environment_but_for_a_regression_evaluation(everybody: Stages):
    own = everybody.recipe.environment.in_key()
    other = everybody.recipe.guards[0].environment.in_key()
    played = {title: record.made_by["settings"].get("environment") for title, record in everybody.records.items()}
    assert {title for title, where in played.items() if where == other} == {
        *(f"{REGRESSION}: sft", f"{REGRESSION}: grpo", "Questions of a regression evaluation"),
    }
    assert sum(where == own for where in played.values()) > 10
