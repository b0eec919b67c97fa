"""What the next round does follows from the store's history: its number, its champion, its questions, its rung."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun

from apprentice.flows.improve import rounds_left
from apprentice.flows.long_run import LongRun, show_history
from apprentice.flows.next_round import has_stopped, next_round
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.analysis.past_rounds import PastRound, past_rounds
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import parent
from apprentice.tasks.artifacts.types import Release
from apprentice.tasks.judgement.champions import Champions
from apprentice.tasks.lineage.node import node_of
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import Shares
from apprentice.tasks.statistics.intervals import wilson
from tests.flows.commands import TOY
from tests.flows.history import History

EASY = {"dataset": "spell_backward", "config": {"min_word_len": 3, "max_word_len": 3}}
HARD = {"dataset": "spell_backward", "config": {"min_word_len": 5, "max_word_len": 6}}


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(LocalStore(tmp_path / "artifacts", "toy"))


def planned(history: History, recipe: Recipe) -> Recipe:
    return next_round(history.store, recipe, past_rounds(history.store), None)


@pytest.fixture
def toy() -> Recipe:
    return load_recipe(TOY, ["improve.adapt=false"])


def test_without_a_history_the_round_is_the_recipe_itself(history: History, toy: Recipe):
    assert planned(history, toy) == toy


def test_a_round_begins_from_the_champion_and_knows_what_was_asked_and_kept(history: History, toy: Recipe):
    champion = history.add(toy, promoted=True)
    step = planned(history, toy).round
    assert step is not None
    assert (step.number, step.champion) == (1, champion.revision)
    (past,) = past_rounds(history.store)
    assert past.kept is not None
    assert (step.asked, step.kept) == ([past.questions.revision], [past.kept.revision])


def test_a_rejected_round_counts_and_leaves_the_champion(history: History, toy: Recipe):
    champion = history.add(toy, promoted=True)
    history.add(planned(history, toy), promoted=False)
    step = planned(history, toy).round
    assert step is not None
    assert (step.number, step.champion, len(step.asked)) == (2, champion.revision, 2)
    assert planned(history, toy) == planned(history, toy)


def test_a_champion_without_its_history_is_refused(history: History, toy: Recipe):
    history.add(toy, promoted=True)
    (noted,) = history.store.tags(Release, "champion-0001")
    history.store.untag(Release, noted)
    with pytest.raises(Stop, match="toy has a champion, but the store has no history of it"):
        planned(history, toy)


def test_a_round_whose_process_ended_before_the_tag_moved_is_the_same_round_again(history: History, toy: Recipe):
    first = history.add(toy, promoted=True)
    step = planned(history, toy)
    second = history.add(step, promoted=True)
    history.store.tag(first, "champion")
    assert planned(history, toy) == step
    Champions(history.store).promote(second, first)
    assert [each.release.revision for each in past_rounds(history.store)] == [first.revision, second.revision]


def test_a_plain_run_counts_as_a_round_0_whenever_it_was_made(history: History, toy: Recipe):
    history.add(toy, promoted=True)
    history.add(planned(history, toy), promoted=True)
    other = toy.model_copy(update={"seed": 1})
    champion = history.add(other, promoted=True, accuracy=0.6)
    assert [each.number for each in past_rounds(history.store)] == [0, 0, 1]
    step = planned(history, toy).round
    assert step is not None
    assert (step.number, step.champion) == (2, champion.revision)


def test_two_readers_of_one_store_begin_the_same_round(history: History, toy: Recipe):
    history.add(toy, promoted=True)
    elsewhere = History(LocalStore(history.store.root, "toy"))
    assert planned(history, toy) == planned(elsewhere, toy)


def test_three_rejected_rounds_in_a_row_are_a_stop(history: History, toy: Recipe):
    history.add(toy, promoted=True)
    for _ in range(3):
        assert not has_stopped(past_rounds(history.store))
        history.add(planned(history, toy), promoted=False)
    assert has_stopped(past_rounds(history.store))


@pytest.mark.parametrize(("accuracy", "level"), [(0.92, EASY), (0.97, HARD)])
def test_the_next_rung_is_taken_when_the_whole_interval_is_above_the_threshold(history: History, accuracy, level):
    recipe = load_recipe(TOY, [f"improve.ladder={json.dumps([EASY, HARD])}"])
    first = planned(history, recipe)
    assert first.environment.settings == EASY
    history.add(first, promoted=True, accuracy=accuracy)
    assert planned(history, recipe).environment.settings == level


@pytest.mark.parametrize(("samples", "level"), [(1, HARD), (8, EASY)])
def test_a_rung_is_mastered_by_questions_and_not_by_samples_of_a_few(history: History, samples: int, level: Any):
    """97% of 400 answers, of an evaluation that older code made: it says how many samples, and no more."""
    recipe = load_recipe(TOY, [f"improve.ladder={json.dumps([EASY, HARD])}"])
    history.add(planned(history, recipe), promoted=True, accuracy=0.97, samples=samples)
    assert planned(history, recipe).environment.settings == level
    (row,) = [each.row() for each in past_rounds(history.store)]
    low, high = wilson(0.97 * 400 / samples, 400 / samples)
    assert row["champion's accuracy"] == f"97.0% ({low:.1%} to {high:.1%})"


ROWS = "collect.dataset={path: rows.jsonl, content: '" + "0" * 64 + "'}"


@pytest.mark.parametrize(
    ("overrides", "promoted", "why"),
    [
        ([ROWS], True, "so SFT of round 1 of toy has nothing new to learn from"),
        ([ROWS, "teacher="], True, "no teacher plays beside them"),
        ([ROWS, "grpo=off"], True, "--set collect.students=8). To train"),
        ([ROWS], True, "or from GRPO alone (--set sft=off)"),
        ([ROWS, "collect.students=4"], False, "round 1 of toy would begin from random weights"),
        ([ROWS, "collect.students=4"], True, ""),
        ([ROWS, "sft=off"], True, ""),
        ([ROWS, "sft=off"], False, ""),
        (["collect.students=4"], False, ""),
        ([], False, ""),
    ],
)
def test_a_round_after_round_0_is_refused_where_a_dataset_leaves_it_nothing_to_learn(
    history: History, overrides: list[str], promoted: bool, why: str
):
    recipe = load_recipe(TOY, ["improve.adapt=false", *overrides])
    assert planned(history, recipe) == recipe, "round 0 learns from the rows"
    history.add(recipe, promoted=promoted)
    if why:
        with pytest.raises(Stop, match=re.escape(why)):
            planned(history, recipe)
    else:
        step = planned(history, recipe).round
        assert step
        assert step.number == 1


def kinds(**accuracy: float) -> list[dict[str, Any]]:
    models = {kind: {"base": {"accuracy": 1.0}, "grpo": {"accuracy": rate}} for kind, rate in accuracy.items()}
    return [{"trait": "word_len", "kind": kind[1:], "models": of} for kind, of in models.items()]


def test_fewer_questions_are_asked_of_the_kinds_that_the_champion_has_right(history: History):
    recipe = load_recipe(TOY, [])
    history.add(recipe, promoted=True, slices=kinds(n3=0.9, n4=0.5, n5=0.0))
    step = planned(history, recipe).round
    assert step is not None
    assert step.shares == Shares(trait="word_len", of={"3": 0.2, "4": 0.5, "5": 1.0})


@pytest.mark.parametrize(("promoted", "slices"), [(True, kinds(n3=0.5, n4=0.45)), (False, kinds(n3=0.9, n4=0.0))])
def test_where_the_champion_has_all_kinds_alike_all_are_asked_alike(history: History, promoted: bool, slices: Any):
    recipe = load_recipe(TOY, [])
    history.add(recipe, promoted=True)
    history.add(planned(history, recipe), promoted=promoted, slices=slices)
    step = planned(history, recipe).round
    assert step is not None
    assert step.shares is None


def test_a_history_that_is_not_whole_is_told(history: History, toy: Recipe):
    release = history.add(toy, promoted=True)
    node = node_of(history.store, parent(release), {})
    node.inputs["decision"].inputs.clear()
    with pytest.raises(Stop, match="not whole"):
        _ = PastRound(0, release, node).questions


def test_the_history_tells_of_each_round_who_played_and_why_it_was_not_promoted(history: History, toy: Recipe):
    history.add(toy, promoted=True, accuracy=0.25)
    history.add(planned(history, toy), promoted=False, accuracy=0.5)
    first, second = (each.row() for each in past_rounds(history.store))
    assert (first["round"], first["promoted"], first["why not"]) == ("0", "yes", "")
    assert first["champion's accuracy"].startswith("25.0% (21.0% to 29.5%)")
    assert (second["round"], second["promoted"], second["why not"]) == ("1", "no", "+0.1 points")
    assert (second["level"], second["kept"], second["bought"]) == ("0.022", "1 by the teacher", "0")


def test_the_history_and_its_picture_are_written_beside_the_report(history: History, toy: Recipe, tmp_path: Path):
    history.add(toy, promoted=True)
    show_history(history.store, toy.name, LongRun.of(toy), past_rounds(history.store), tmp_path)
    written = json.loads((tmp_path / "history.json").read_text())
    assert [each["round"] for each in written["points"]] == [0]
    assert written["rows"][0]["long run"] == "–", "it was not measured"
    assert (tmp_path / "history.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("runs", "made_at", "left"),
    [
        (1, "2026-01-05T03:30:00+00:00", 2),
        (2, "2026-01-05T03:30:00+00:00", 1),
        (2, "2026-01-05T03:00:00+00:00", 1),
        (2, "2026-01-05T02:59:00+00:00", 2),
        (2, "", 2),
    ],
)
def test_a_flow_run_that_was_started_again_runs_the_rounds_that_it_has_left(
    history: History, toy: Recipe, runs: int, made_at: str, left: int
):
    history.add(toy, promoted=True, made_at=made_at)
    began = datetime(2026, 1, 5, 3, 0, 0, 500, tzinfo=UTC)
    started = FlowRun.model_validate({"flow_id": uuid4(), "run_count": runs, "start_time": began})
    assert rounds_left(2, history.store, started) == left
    assert rounds_left(2, history.store, None) == 2, "a command is asked for as many as it says"
