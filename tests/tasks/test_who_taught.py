"""A dataset is no teacher: neither the gate's floor, nor a figure, a sign, a card or the history takes it for one."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from apprentice.flows import lessons
from apprentice.flows.pages.report_view import _cost
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.sections import RoundSpec
from apprentice.flows.view import _rollouts
from apprentice.tasks.advice.ending import floor_of, read_decision, read_verdict
from apprentice.tasks.analysis.past_rounds import _bought, _players
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import Provenance, parent
from apprentice.tasks.artifacts.types import (
    COUNTED,
    Artifact,
    BaseStudent,
    GrpoCheckpoint,
    KeptRollouts,
    RelabelledRollouts,
    RescoredRollouts,
    Rollouts,
    Verdict,
)
from apprentice.tasks.cards.dataset_facts import trained_on
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.files.json_lines import read_rows
from apprentice.tasks.gate import gate
from apprentice.tasks.judgement.contents import VerdictContents
from apprentice.tasks.judgement.rules import GateSpec
from apprentice.tasks.lineage.node import Node, node_of
from apprentice.tasks.mix import mix_rollouts
from apprentice.tasks.settings.spec import DatasetSpec, MixSpec
from apprentice.tasks.verdict import verdict
from tests.flows.commands import TOY
from tests.tasks.evaluations import episodes, evaluation, published
from tests.tasks.test_levels import published as questions
from tests.tasks.test_mix import attempt, lines

COUNTS: dict[str, Any] = dict.fromkeys((*COUNTED, "failed"), 0) | {"episodes": 40, "cost_usd": 0.02, "prompt_tokens": 7}


def made(store: LocalStore, kind: type[Artifact], stage: str, text: str, **inputs: Artifact) -> Any:
    """An artifact of a stage, with its rows."""
    name = "kept.jsonl" if kind is KeptRollouts else "rollouts.jsonl"
    counts = {"episodes": 40, "kept": 40, "dropped": {}} if kind is KeptRollouts else COUNTS
    counts = counts | ({"changed": 1, "left_out": 0} if kind is RescoredRollouts else {})
    counts = counts | ({"confirmed": 2, "replaced": 3, "undecided": 4} if kind is RelabelledRollouts else {})
    by = {"stage": stage, "inputs": {which: each.revision for which, each in inputs.items()}, "settings": {}}
    with store.staging() as folder:
        (folder / name).write_text(text)
        provenance = Provenance(inputs={which: parent(each) for which, each in inputs.items()})
        return store.publish(kind, f"{stage}-{kind.suffix}".ljust(20, "0"), folder, counts, by, provenance)


def of_a_teacher(store: LocalStore, text: str) -> Rollouts:
    return made(store, Rollouts, "collect", text)


def of_a_dataset(store: LocalStore, text: str) -> Rollouts:
    return made(store, Rollouts, "take_rollouts", text)


def rescored(store: LocalStore, text: str, before: Rollouts) -> Rollouts:
    return made(store, RescoredRollouts, "rescore", text, rollouts=before)


def judged_by_a_teacher(store: LocalStore, text: str) -> Rollouts:
    return made(store, RelabelledRollouts, "relabel", text, rollouts=of_a_dataset(store, text))


WHOSE = {
    "teacher": (of_a_teacher, True),
    "teacher, rescored": (lambda store, text: rescored(store, text, of_a_teacher(store, text)), True),
    "dataset": (of_a_dataset, False),
    "dataset, rescored": (lambda store, text: rescored(store, text, of_a_dataset(store, text)), False),
    "dataset, judged by a teacher": (judged_by_a_teacher, False),
}
whose = pytest.mark.parametrize(("make", "is_teacher"), WHOSE.values(), ids=WHOSE)


@pytest.fixture
def rows(chain_sum: Any) -> str:
    return lines(chain_sum, range(40), 1.0)


def judged(context: StageContext, rollouts: Rollouts | None, environment: Any) -> VerdictContents:
    """The verdict on a model that is right without calling anything, as GRPO may learn it."""
    silent = episodes([1.0] * 40, messages=[])
    evaluations = {
        "sft": evaluation(context.run.store, "s" * 20, episodes([0.0] * 40), "sft"),
        "grpo": evaluation(context.run.store, "g" * 20, silent),
    }
    files = {
        "learned.jsonl": "",
        "log.json": json.dumps([{"step": n, "reward": 0.5, "frac_reward_zero_std": 0.0} for n in range(12)]),
        "signals.json": json.dumps({"signals": {}, "rules": {}}),
    }
    trained = published(context.run.store, GrpoCheckpoint, "t" * 20, files, {"parameters": 1, "stage": "grpo"})
    verdict.body(context, GateSpec(), evaluations, {}, environment, rollouts, trained, 0.0)
    return read_verdict(context.out)


@whose
def test_only_a_teachers_rows_set_the_floor_and_are_measured(
    make: Any, is_teacher: bool, context: StageContext, chain_sum: Any, rows: str, monkeypatch: pytest.MonkeyPatch
):
    known: list[Any] = []
    monkeypatch.setattr("apprentice.tasks.verdict.reward_hacking", lambda *given: known.append(given[-1]) or [])
    report = judged(context, make(context.run.store, rows), chain_sum)
    assert (report.teacher is not None) is is_teacher
    assert floor_of(GateSpec(), report)[0] == (0.5 if is_teacher else 0.2)
    assert (known[0] is not None) is is_teacher, "what a teacher's episodes have in common is no rule for a model"


@whose
def test_the_gate_asks_what_a_verdict_of_older_code_was_made_of(
    make: Any, is_teacher: bool, context: StageContext, rows: str
):
    store = context.run.store
    clean = {"clean": True, "questions": 100, "shared_with_training": 0, "shared_seeds": 0, "share": 0.0, "limit": 0.0}
    files = {"verdict.json": json.dumps({"contamination": clean, "teacher": {"accuracy": 1.0}})}
    counts = {"diagnosis": "", "contaminated": False}
    results = published(store, Verdict, "v" * 20, files, counts, inputs={"rollouts": make(store, rows)})
    trained = published(store, GrpoCheckpoint, "g" * 20, {"learned.jsonl": ""}, {"parameters": 1, "stage": "grpo"})
    base = published(store, BaseStudent, "b" * 20, {"learned.jsonl": ""}, {"parameters": 1, "stage": "base"})
    both = {
        "challenger": evaluation(store, "ec" * 10, episodes([1.0] * 30 + [0.0] * 70)),
        "rival": evaluation(store, "er" * 10, episodes([0.0] * 100)),
    }
    gate.body(context, GateSpec(), trained, base, both, {}, {}, results, False)
    decision = read_decision(context.out).as_json()
    assert decision["floor"]["at_least"] == (0.5 if is_teacher else 0.2)
    assert decision["promoted"] is not is_teacher, "30% of the questions are right"


@whose
def test_the_history_and_the_pages_count_nothing_as_bought_and_name_the_dataset(
    make: Any, is_teacher: bool, work: Any, rows: str
):
    store = work.store
    rollouts = make(store, rows)
    kept = node_of(store, parent(made(store, KeptRollouts, "filter_rollouts", rows, rollouts=rollouts)), {})
    assert kept.is_of_a_dataset is not is_teacher
    counts = store.record(type(rollouts), rollouts.key, rollouts.revision).counts
    bought = counts | {"episodes": 9} if isinstance(rollouts, RelabelledRollouts) else counts if is_teacher else {}
    assert _bought(kept) == bought, "a teacher's verdicts on rows cost what they cost"
    assert _players(store, kept) == ("40 by the teacher" if is_teacher else "40 by the dataset")
    assert trained_on(kept) == ("a teacher's episodes" if is_teacher else "conversations that were given")
    assert _rollouts(kept, frozenset()).source.model == ("Teacher" if is_teacher else "Dataset")


@pytest.mark.parametrize(
    ("rows_of", "played_by", "cost"),
    [
        ("Teacher", "toy", "0.0200 USD at the recipe's prices, 7 prompt and 5 completion tokens"),
        ("Dataset", None, "nothing was bought"),
        ("Dataset", "toy", "0.0200 USD at the recipe's prices, 7 prompt and 5 completion tokens"),
    ],
)
def test_rows_of_a_dataset_cost_what_a_teacher_said_of_them_and_not_what_they_cost_once(
    rows_of: str, played_by: str | None, cost: str
):
    collected = {"prompt_tokens": 7, "completion_tokens": 5, "cost_usd": 0.02}
    assert _cost({"collect": collected, "rows_of": rows_of, "played_by": played_by}) == cost


@pytest.mark.parametrize(("teacher", "player"), [("gpt at home", "gpt at home"), ("", "the dataset")])
def test_in_a_mixture_each_row_names_who_played_it(
    teacher: str, player: str, context: StageContext, chain_sum: Any, rows: str
):
    own = evaluation(context.run.store, "t" * 20, [attempt(50, 0, 1.0)], "champion")
    rollouts = of_a_dataset(context.run.store, rows)
    mix_rollouts.body(context, MixSpec(), chain_sum, questions(context, "q1", []), rollouts, own, {}, teacher, 0)
    players = [row["player"] for row in read_rows(context.out / "kept.jsonl")]
    assert (players.count(player), players.count("the student (champion)")) == (40, 1)


ROUND = RoundSpec(number=1, asked=[], kept=[])


@pytest.mark.parametrize(("teacher", "unverified"), [(True, "drop"), (False, "drop"), (True, "relabel")])
def test_a_round_takes_no_rows_again_and_no_row_is_said_to_be_a_teachers(
    teacher: bool, unverified: str, work: RunContext, tmp_path: Path
):
    """Also where the recipe has a teacher, who is not asked where rows are given."""
    recipe = load_recipe(TOY, ["collect.students=2", *([] if teacher else ["teacher="])])
    given = {"dataset": DatasetSpec(path=str(tmp_path / "rows.jsonl")), "unverified": unverified}
    recipe = recipe.model_copy(update={"collect": recipe.collect.model_copy(update=given)})
    assert lessons.taught_by(recipe.teacher, recipe.collects, made(work.store, Rollouts, "take_rollouts", "{}\n")) == ""
    later = recipe.model_copy(update={"round": ROUND})
    asked_for: Any = None  # nothing is read
    assert lessons.rollouts_of(work, later, asked_for) is None
    assert lessons.taught_by(later.teacher, later.collects, None) == ""


def test_a_teacher_who_played_is_named():
    recipe = load_recipe(TOY, [])
    assert recipe.teacher is not None
    assert lessons.taught_by(recipe.teacher, recipe.collects, cast(Any, "rollouts")) == recipe.teacher.called != ""
    assert lessons.taught_by(recipe.teacher, recipe.collects, None) == "", "nothing was left to ask"


def test_what_is_gone_is_not_taken_for_a_dataset(tmp_path: Path):
    store = LocalStore(tmp_path / "artifacts", "toy")
    gone = parent(of_a_teacher(store, "{}\n")).model_copy(update={"revision": "f" * 40})
    assert not Node(store, gone, None, {}).is_of_a_dataset
    assert not node_of(store, gone, {}).is_of_a_dataset
