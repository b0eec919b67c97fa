"""The long run: which models are examined on the window that no gate reads, and on how many questions."""

from pathlib import Path
from typing import Any

import pytest

from apprentice.flows import long_run
from apprentice.flows.long_run import LongRun
from apprentice.flows.next_round import next_round
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.analysis.past_rounds import past_rounds
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.engine.run import RunContext, StandingServers
from tests.flows.commands import TOY
from tests.flows.history import History


class Examiner:
    """In place of a stage: keeps what it is given."""

    def __init__(self) -> None:
        self.given: list[tuple[Any, ...]] = []

    def titled(self, title: str) -> "Examiner":
        return self

    def __call__(self, *given: Any) -> str:
        self.given.append(given)
        return "made"


@pytest.fixture
def recipe() -> Recipe:
    return load_recipe(
        TOY, ["improve.adapt=false", "improve.long_run=7", "evaluate.samples=3", "evaluate.decoding=sampled"]
    )


@pytest.fixture
def run(tmp_path: Path) -> RunContext:
    return RunContext(LocalStore(tmp_path / "store", "toy"), StandingServers({}, None))


def test_the_champions_so_far_and_the_challenger_are_examined_once_each(
    recipe: Recipe, run: RunContext, monkeypatch: pytest.MonkeyPatch
):
    examiner, history, played = Examiner(), History(run.store), recipe
    monkeypatch.setattr(long_run, "evaluate", examiner)
    for promoted in (True, False, True):
        history.add(played, promoted)
        played = next_round(run.store, recipe, past_rounds(run.store), None)
    past = past_rounds(run.store)
    challenger = past[1].trained
    LongRun.of(recipe).measure(past[0].questions, past, run, challenger)
    assert [given[2] for given in examiner.given] == [past[0].trained, past[2].trained, challenger]
    for with_run, spec, _, environment, questions, seed in examiner.given:
        assert (with_run, environment, questions, seed) == (run, recipe.environment, past[0].questions, recipe.seed)
        assert (spec.questions, spec.samples) == (7, 1)


def test_without_a_long_run_nobody_is_asked_anything(recipe: Recipe, run: RunContext, monkeypatch: pytest.MonkeyPatch):
    examiner, history = Examiner(), History(run.store)
    for stage in ("evaluate", "exam"):
        monkeypatch.setattr(long_run, stage, examiner)
    history.add(recipe, True)
    LongRun.of(recipe).measure(None, past_rounds(run.store), run, past_rounds(run.store)[0].trained)
    without = recipe.model_copy(update={"improve": recipe.improve.model_copy(update={"long_run": 0})})
    assert LongRun.of(without).questions(run) is None
    assert examiner.given == []
    assert LongRun.of(recipe).questions(run) == "made"
    ((_, environment, window, number),) = examiner.given
    assert (environment, number, window.size) == (recipe.environment, 7, 14)
