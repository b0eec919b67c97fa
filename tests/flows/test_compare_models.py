"""`apprentice evaluate` as a user calls it."""

import json
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.serving.process import local_server
from apprentice.flows.compare_models import compared
from apprentice.flows.recipe.loading import load_recipe
from apprentice.tasks.reporting import announce
from tests.endpoint import KEY, Endpoint, call
from tests.flows.commands import BIN, ROOT, TOY, run_command
from tests.hostile.endings import assert_clear_exit
from tests.odd_server import odd_server
from tests.tasks.analysis.test_thought_worth import thinking
from tests.tasks.evaluations import episodes

CHAIN_SUM = ROOT / "deployments" / "recipes" / "chain-sum.yaml"
PERFECT = ("--set", "teacher.scripted_error_rate=0.0", "--seed", "999", "--questions", "50", "--json")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compare")


def evaluate(home: Path, recipe: Path, *arguments: str) -> Any:
    return run_command([str(BIN / "apprentice"), "evaluate", str(recipe), *arguments], home)


@pytest.mark.long
def test_the_tutorials_protocol_gives_a_perfect_player_68_percent_and_says_what_it_cannot_see(home: Path):
    done = evaluate(home, CHAIN_SUM, "--model", "teacher", "--protocol", "tutorial", *PERFECT)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["n"], found["format_compliance"], found["accuracy"]) == (50, 0.68, 0.68)
    assert found["protocol"] == "tutorial"
    assert "The tutorial's protocol" in done.stdout
    assert "ignores minus signs" in done.stdout


@pytest.mark.long
def test_parity_gives_the_same_player_everything(home: Path):
    found = json.loads(evaluate(home, CHAIN_SUM, "--model", "teacher", *PERFECT).stdout.splitlines()[-1])
    assert (found["n"], found["format_compliance"], found["accuracy"]) == (50, 1.0, 1.0)


@pytest.mark.long
def test_inspect_gives_the_same_player_everything_and_its_log_is_named(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STUDENT_API_KEY", KEY)
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    chain_sum = load_recipe(CHAIN_SUM).environment
    teacher = ("--environment", chain_sum.name, "--settings", json.dumps(chain_sum.settings), "--error-rate", "0.0")
    with local_server("apprentice.envs.serving.scripted_teacher", *teacher) as url:
        at = ("--model", "openai-api/student/toy", "--protocol", "inspect", "--base-url", f"{url}/v1")
        done = evaluate(home, CHAIN_SUM, *at, *PERFECT)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["n"], found["format_compliance"], found["accuracy"], found["protocol"]) == (50, 1.0, 1.0, "inspect")
    assert Path(found["log"]).exists()
    assert "Held-out evaluation with Inspect AI" in done.stdout


@pytest.mark.long
def test_a_model_that_there_is_not_is_told_with_what_to_write(home: Path):
    done = evaluate(home, TOY, "--model", "champion", "--questions", "2")
    assert done.returncode == 1
    assert "toy has no champion" in done.stdout.replace("\n", " ")
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.long
def test_a_server_that_will_not_do_is_told_before_a_model_is_asked(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ENDPOINT_API_KEY", KEY)
    endpoint = Endpoint([call("answer", '{"answer": "1"}')])
    with odd_server("forgetful") as url:
        model = f"{endpoint.url}#toy"
        own = ("--set", f"server.url={url}", "--set", "environment={name: echo}", "--set", "guards=[]")
        done = evaluate(home, TOY, "--model", model, "--questions", "2", *own)
    endpoint.shutdown()
    assert_clear_exit(done)
    assert "the same seed gave two different questions" in done.stdout.replace("\n", " ")
    assert endpoint.requests == []


def test_the_tutorial_s_accuracy_is_the_mean_score():
    played = {"one": episodes([1.0, 0.5, 0.0, 0.5]), "two": episodes([1.0, 1.0, 1.0, 0.5])}
    seen = {"one": 3, "two": None}
    ours, tutorials = (compared(played, seen, protocol) for protocol in ("parity", "tutorial"))
    assert [model["accuracy"] for model in ours["models"].values()] == [0.25, 0.75]
    assert [model["accuracy"] for model in tutorials["models"].values()] == [0.5, 0.875]
    assert [each["delta"] for found in (ours, tutorials) for each in found["comparisons"]] == [0.5, 0.375]
    assert [model["seen_in_training"] for model in ours["models"].values()] == [3, None]
    assert [(each["from"], each["to"]) for each in ours["comparisons"]] == [("one", "two")]


PLAIN, THINKS = episodes([0.0, 1.0], completion_tokens=20), thinking([1.0, 1.0], 60)
PAIRS = {
    "one thinks": ((PLAIN, THINKS), [20.0, 60.0], ["20.0", "60.0"]),
    "one thinks, and its endpoint counts no tokens": ((PLAIN, thinking([1.0, 1.0], 0)), [20.0, 0.0], ["20.0", "–"]),
    "none thinks": ((PLAIN, PLAIN), None, []),
    "nobody counted": ((episodes([0.0, 1.0]), thinking([1.0, 1.0], 0)), None, []),
}


@pytest.mark.parametrize(("played", "known", "shown"), PAIRS.values(), ids=PAIRS)
def test_models_are_compared_with_their_tokens_where_one_thinks(
    played: Any, known: Any, shown: list[str], monkeypatch: pytest.MonkeyPatch
):
    tables: dict[str, Any] = {}
    monkeypatch.setattr(announce, "table", lambda key, _, rows: tables.update({key: rows}))
    found = compared(dict(zip("ab", played, strict=True)), {"a": 0, "b": 0}, "parity")
    assert [model.get("tokens_an_answer") for model in found["models"].values()] == (known or [None, None])
    rows = tables["compared-models"]
    assert [row["tokens an answer"] for row in rows if "tokens an answer" in row] == shown
