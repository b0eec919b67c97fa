"""`apprentice champion`: who is it, who was it before, back to an earlier one; on the toy recipe's store."""

import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from apprentice.flows.cli.app import app
from apprentice.flows.next_round import next_round
from apprentice.flows.recipe.loading import load_recipe
from apprentice.tasks.analysis.past_rounds import past_rounds
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Release
from apprentice.tasks.judgement.champions import Champions
from apprentice.tasks.reporting import announce
from tests.flows.commands import TOY
from tests.flows.history import History


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store", project="toy")


@pytest.fixture
def words_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables, too, are written to the standard output of the command."""
    monkeypatch.setattr(announce, "console", Console(width=200))


def champion(store: LocalStore, *arguments: str) -> tuple[int, str]:
    """Exit code and words of `apprentice champion …`."""
    given = ["champion", arguments[0], str(TOY), *arguments[1:], "--set", f"store.path={store.root}"]
    done = CliRunner().invoke(app, given, env={"COLUMNS": "200"})
    return done.exit_code, done.stdout


def rounds(store: LocalStore, *promoted: bool) -> list[Release]:
    """A release of each round, which the gate let through or not."""
    past, recipe = History(store), load_recipe(TOY, ["improve.adapt=false"])
    found = []
    for each in promoted:
        chosen = next_round(store, recipe, past_rounds(store), None) if found else recipe
        found.append(past.add(chosen, each))
    return found


def test_where_no_model_has_passed_the_gate_it_says_so(store: LocalStore):
    assert champion(store, "show") == (0, "There is no champion yet: no model has passed the gate.\n")
    assert champion(store, "history") == (0, "There was no champion yet.\n")
    code, words = champion(store, "rollback")
    assert code == 1
    assert "There is no earlier champion to go back to." in words


def test_the_champion_is_shown_with_the_gate_s_rules_and_its_files(store: LocalStore, words_in_one_place: None):
    current, _ = rounds(store, True, False)
    code, words = champion(store, "show")
    assert code == 0
    assert "Promoted, compared with the champion." in words
    assert words.splitlines()[-2:] == [f"{current.repository}@{current.revision}", str(store.fetch(current))]


def test_the_history_has_a_row_for_each_change_and_for_each_round(store: LocalStore, words_in_one_place: None):
    first, _, last = rounds(store, True, False, True)
    code, words = champion(store, "history")
    assert code == 0
    changes, _, of_rounds = words.partition("Rounds of toy")
    rows = [line.split() for line in changes.splitlines() if "promoted" in line]
    assert [row[-1] for row in rows] == [first.revision[:12], last.revision[:12]]
    assert [row[0] == "→" for row in rows] == [False, True]
    assert [row[-4] for row in rows] == ["1", "2"]
    assert [line.split()[0] for line in of_rounds.splitlines() if line.strip()[:1].isdigit()] == ["0", "1", "2"]


def test_an_earlier_champion_is_one_again_the_last_one_or_the_one_that_is_numbered(store: LocalStore):
    first, second, _ = rounds(store, True, True, True)
    assert champion(store, "rollback") == (0, f"The champion is {second.repository}@{second.revision} again.\n")
    assert Champions(store).current() == second
    assert champion(store, "rollback", "--to", "1")[0] == 0
    assert Champions(store).current() == first


def test_a_look_at_files_imports_neither_prefect_nor_the_environment(tmp_path: Path):
    """Each of the two takes most of a second, of the one that these commands may take."""
    script = (
        "import sys\n"
        "from apprentice.deployments.cli import app\n"
        "import apprentice.flows.compare, apprentice.flows.view\n"
        f"app(['champion', 'show', {str(TOY)!r}, '--set', 'store.path={tmp_path}'], standalone_mode=False)\n"
        "print(sorted({'prefect.context', 'reasoning_gym', 'torch', 'scipy.stats'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "There is no champion yet: no model has passed the gate.\n[]\n"
