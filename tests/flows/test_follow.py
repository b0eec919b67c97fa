"""A chain of runs follows the advice of its best run, changes each field once, and ends for a reason that it says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from apprentice.flows.cli.app import app
from apprentice.flows.finished_runs import FinishedRun
from apprentice.flows.follow import FOLLOWS, FollowBudget, as_sentence, best_of, follow
from apprentice.flows.recipe.loading import load_recipe, with_overrides
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from tests.tasks.advice.test_ending import decided, judged

EPOCHS = {"field": "sft.epochs", "value": "8 (2 now)", "why": "Still learning.", "changes": {"sft.epochs": 8.0}}
ROWS = {"field": "windows.collect.size", "value": "240 (60 now)", "why": "By heart."}
ROWS |= {"changes": {"windows.collect.size": 240}}
ENVIRONMENT = {"field": "environment.settings", "value": "", "why": "Too hard.", "changes": {}}
BROKEN = {"field": "grpo.batch_size", "value": "7 (8 now)", "why": "No.", "changes": {"grpo.batch_size": 7}}


class ToyRuns:
    """Runs a recipe by looking its accuracy up; counts the runs."""

    def __init__(self, folder: Path, accuracy: Callable[[Recipe], float], advised: list[dict[str, Any]], usd: float):
        self.folder, self.accuracy, self.advised, self.usd = folder, accuracy, advised, usd
        self.recipes: list[Recipe] = []

    def __call__(self, recipe: Recipe) -> Path:
        self.recipes.append(recipe)
        verdict = judged(self.accuracy(recipe), None)
        folder = self.folder / f"toy-{len(self.recipes)}"
        folder.mkdir()
        report = verdict | {
            "gate": decided(verdict, floor=0.5) | {"promoted": False},
            "ending": {"advised": self.advised},
            "collect": {"cost_usd": self.usd},
            "stages": [{"name": "collect", "state": "ran"}],
        }
        (folder / "report.json").write_text(json.dumps(report))
        return folder


@pytest.fixture
def toy() -> Recipe:
    return load_recipe(Path("toy"))


@pytest.fixture
def runs(tmp_path: Path) -> Callable[..., ToyRuns]:
    def made(accuracy: Callable[[Recipe], float], *advised: dict[str, Any], usd: float = 0.0) -> ToyRuns:
        return ToyRuns(tmp_path, accuracy, list(advised), usd)

    return made


def test_advice_is_followed_until_the_floor_is_reached(toy: Recipe, runs: Any):
    run = runs(lambda recipe: 0.7 if recipe.sft and recipe.sft.epochs == 8 else 0.1, EPOCHS, ROWS)
    chain = follow(toy, run, with_overrides, FollowBudget(5))
    assert [each.change for each in chain] == ["", "sft.epochs: 8 (2 now)"]
    assert chain[-1].reached
    assert json.loads((chain[-1].folder / FOLLOWS).read_text()) == {"after": "toy-1", "change": "sft.epochs: 8 (2 now)"}
    assert not (chain[0].folder / FOLLOWS).exists()


def test_a_run_that_needs_no_advice_is_the_whole_chain(toy: Recipe, runs: Any):
    assert len(follow(toy, runs(lambda _: 0.9, EPOCHS), with_overrides, FollowBudget(5))) == 1


def test_each_field_is_changed_once_and_the_best_run_goes_on(
    toy: Recipe, runs: Any, capsys: pytest.CaptureFixture[str]
):
    run = runs(lambda recipe: 0.05 if recipe.sft and recipe.sft.epochs == 8 else 0.2, EPOCHS, ROWS)
    with announce.console.capture() as said:
        chain = follow(toy, run, with_overrides, FollowBudget(5))
    assert [each.change for each in chain] == ["", "sft.epochs: 8 (2 now)", "windows.collect.size: 240 (60 now)"]
    last = run.recipes[-1]
    assert (last.sft.epochs, last.windows.collect.size) == (2.0, 240), "the change that made it worse is not kept"
    assert json.loads((chain[-1].folder / FOLLOWS).read_text())["after"] == "toy-1"
    assert best_of(chain) is chain[-1]
    assert "nothing is left to try" in " ".join(said.get().split())


@pytest.mark.parametrize(
    ("advised", "budget", "usd", "length", "why"),
    [
        ([EPOCHS, ROWS], FollowBudget(1), 0.0, 2, "--follow 1 is used up"),
        ([EPOCHS, ROWS], FollowBudget(5, minutes=0.0), 0.0, 1, "--minutes 0 are over"),
        ([EPOCHS, ROWS], FollowBudget(5, usd=0.3), 0.3, 1, "--usd 0.3 are spent"),
        ([ENVIRONMENT, EPOCHS], FollowBudget(5), 0.0, 1, "only a person can choose environment.settings (Too hard)"),
        ([BROKEN], FollowBudget(5), 0.0, 1, "grpo.batch_size cannot be changed so"),
        ([], FollowBudget(5), 0.0, 1, "nothing is left to try"),
    ],
)
def test_a_chain_says_why_it_ends(
    toy: Recipe, runs: Any, advised: list, budget: FollowBudget, usd: float, length: int, why: str
):
    with announce.console.capture() as said:
        chain = follow(toy, runs(lambda _: 0.1, *advised, usd=usd), with_overrides, budget)
    assert len(chain) == length
    assert f"No further run: {why}" in " ".join(said.get().split())


def test_advice_that_the_recipe_does_not_take_is_passed_over(toy: Recipe, runs: Any):
    chain = follow(toy, runs(lambda _: 0.1, BROKEN, EPOCHS), with_overrides, FollowBudget(1))
    assert chain[-1].change == "sft.epochs: 8 (2 now)"


def test_a_run_that_stops_ends_no_chain_and_its_change_is_not_tried_again(toy: Recipe, runs: Any):
    class Stopping(ToyRuns):
        def __call__(self, recipe: Recipe) -> Path:
            if recipe.sft and recipe.sft.epochs == 8:
                raise Stop("The Hub does not answer.", "Run again.")
            return super().__call__(recipe)

    made = runs(lambda _: 0.1, EPOCHS, ROWS)
    with announce.console.capture() as said:
        chain = follow(toy, Stopping(made.folder, made.accuracy, made.advised, 0.0), with_overrides, FollowBudget(3))
    assert [each.change for each in chain] == ["", "windows.collect.size: 240 (60 now)"]
    assert "could not be followed: The Hub does not answer." in " ".join(said.get().split())


def test_a_change_of_a_whole_section_is_followed_as_well(toy: Recipe, runs: Any):
    student = {"model": ".", "chat_template": "qwen2_5"}
    advice = {"field": "student", "value": "…", "why": "", "changes": {"student": student, "sft.epochs": 4}}
    run = runs(lambda _: 0.1, advice)
    follow(toy, run, with_overrides, FollowBudget(1))
    assert (run.recipes[1].student.model, run.recipes[1].student.build) == (".", None)
    assert run.recipes[1].sft.epochs == 4.0


@pytest.mark.parametrize(
    ("ci", "verb"), [((0.1, 0.3), "is better than"), ((-0.3, -0.1), "is worse than"), ((-0.1, 0.1), "cannot be told")]
)
def test_the_best_run_is_compared_on_fresh_questions(toy: Recipe, runs: Any, ci: tuple, verb: str):
    chain = follow(toy, runs(lambda _: 0.1, EPOCHS), with_overrides, FollowBudget(1))
    said = as_sentence(chain[0], chain[1], 40, {"comparisons": [{"delta": sum(ci) / 2, "ci": ci}]})
    assert said.startswith(f"On 40 questions that no choice saw, toy-2 {verb}")


@pytest.mark.parametrize(
    ("options", "remedy"),
    [(["--minutes", "5"], "Add --follow N"), (["--follow", "2", "--on", "a100"], "Leave one of them out")],
)
def test_options_that_do_not_go_together_are_refused(options: list[str], remedy: str):
    ended = CliRunner().invoke(app, ["run", "toy", *options], env={"COLUMNS": "200"})
    assert ended.exit_code == 1
    assert remedy in ended.output


def test_the_list_of_runs_shows_what_each_one_followed(toy: Recipe, runs: Any):
    chain = follow(toy, runs(lambda _: 0.1, EPOCHS), with_overrides, FollowBudget(1))
    shown = [FinishedRun(each.folder, {}, {}, each.verdict, None).follows for each in chain]  # type: ignore[arg-type]
    assert shown == [{}, {"after": "toy-1", "change": "sft.epochs: 8 (2 now)"}]
