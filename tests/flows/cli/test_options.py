"""What each command hands on: every option, and what it is without one. The work itself is done by stand-ins."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.utilities import urls
from rich.console import Console
from typer.testing import CliRunner, Result

from apprentice.flows import compare_models, dashboard, improve, inspect_models, lessons, library, retrain, status, view
from apprentice.flows.cli import data
from apprentice.flows.cli.app import app
from apprentice.flows.cli.runs import _window
from apprentice.flows.pages import report_view
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.runtime import deployed_runs, prefect_server, servers
from apprentice.tasks import dataset
from apprentice.tasks.artifacts.hub import HubStore
from apprentice.tasks.reporting import announce, permanent_server
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import Window
from tests.flows.commands import TOY

Stand = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    """Puts something in the place of a function, which keeps what it is given."""

    def put(module: Any, name: str, answer: Any = None) -> list[tuple[Any, ...]]:
        given: list[tuple[Any, ...]] = []

        def instead(*arguments: Any, **named: Any) -> Any:
            given.append((*arguments, *named.items()))
            return answer

        monkeypatch.setattr(module, name, instead)
        return given

    return put


@pytest.fixture(autouse=True)
def start_calls(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which of the Prefect server's two beginnings were asked for; no server is begun."""
    starts: list[str] = []
    for name in ("begin_prefect_server", "start_prefect_server"):
        monkeypatch.setattr(prefect_server, name, lambda name=name: starts.append(name))
    monkeypatch.setattr(announce, "console", Console(width=200))
    monkeypatch.setattr(permanent_server, "shared", lambda: False)
    monkeypatch.setattr(announce, "be_verbose", lambda: starts.append("verbose"))
    return starts


def typed(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


@pytest.fixture
def report(tmp_path: Path, stand: Stand) -> Path:
    """A run's folder."""
    stages = [{"state": "made"}, {"state": "cached"}]
    (tmp_path / "report.json").write_text(json.dumps({"stages": stages, "ending": {"state": "promoted"}}))
    (tmp_path / "report.md").write_text("the brief")
    stand(report_view, "closing_lines", "closed")
    return tmp_path


@pytest.mark.parametrize("command", ["run", "rescore"])
@pytest.mark.parametrize("verbose", [[], ["--verbose"], ["-v"]])
def test_a_run_gets_its_recipe_and_folder_and_ends_with_the_closing_lines(
    command: str, verbose: list[str], report: Path, stand: Stand, start_calls: list[str], tmp_path: Path
):
    ran = stand(retrain, "retrain", report)
    looked = stand(retrain, "nothing_to_do")
    ended = typed(command, TOY, "--set", "seed=3", "--runs", tmp_path / "mine", *verbose)
    assert ended.exit_code == 0, ended.output
    chosen = load_recipe(TOY, ["seed=3"])
    assert ran == [(("recipe", chosen), ("runs", tmp_path / "mine"), ("rescore", command == "rescore"))]
    assert looked == ([(chosen, tmp_path / "mine")] if command == "run" else [])
    assert start_calls == [*(["verbose"] if verbose else []), "begin_prefect_server", "start_prefect_server"]
    assert ("the brief" in ended.stdout) == bool(verbose)
    assert "Nothing to do" not in ended.stdout
    assert ended.stdout.endswith(f"{report}\n")
    assert "closed" in ended.stdout


@pytest.mark.parametrize(("state", "style"), [("promoted", "green"), ("rejected", "yellow")])
def test_a_run_with_nothing_to_do_begins_no_server_and_says_how_many_stages_are_cached(
    state: str, style: str, report: Path, stand: Stand, start_calls: list[str]
):
    (report / "report.json").write_text(json.dumps({"stages": [{"state": "cached"}] * 7, "ending": {"state": state}}))
    stand(retrain, "nothing_to_do", SimpleNamespace(folder=report))
    ran, said = stand(retrain, "retrain"), stand(announce, "say")
    ended = typed("run", TOY)
    assert (ran, start_calls, said) == ([], [], [("closed", style)])
    assert "Nothing to do: all 7 stages are cached." in ended.stdout


def test_a_server_that_others_look_at_is_told_of_a_run_with_nothing_to_do_too(
    report: Path, stand: Stand, start_calls: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(permanent_server, "shared", lambda: True)
    ran, looked = stand(retrain, "retrain", report), stand(retrain, "nothing_to_do")
    assert typed("run", TOY).exit_code == 0
    assert (len(ran), looked) == (1, [])
    monkeypatch.setattr(permanent_server, "shared", lambda: False)
    assert typed("run", TOY, "--set", "store.hub.namespace=me").exit_code == 0
    assert (len(ran), looked) == (2, [])


@pytest.mark.parametrize("rounds", [None, 4])
def test_what_runs_on_a_pool_is_scheduled_and_named_with_its_link(rounds: int | None, stand: Stand):
    started = stand(deployed_runs, "start_on", SimpleNamespace(name="toy-seed3", id="the-id"))
    stand(urls, "url_for")
    command = ["run", TOY] if rounds is None else ["improve", TOY, "--rounds", rounds]
    ended = typed(*command, "--on", "cpu", "--set", "seed=3")
    assert started == [("cpu", TOY, ["seed=3"], rounds)]
    assert ended.stdout == "Scheduled on cpu: toy-seed3\nthe-id\n"
    typed(*command, "--on", "cpu")
    assert started[-1] == ("cpu", TOY, [], rounds)


def test_rounds_are_run_in_a_folder_and_each_is_printed(stand: Stand, start_calls: list[str], tmp_path: Path):
    ran = stand(improve, "improve", [Path("one"), Path("two")])
    ended = typed("improve", TOY, "--rounds", "2", "--set", "seed=3", "--runs", tmp_path / "mine")
    assert ran == [(("rounds", 2), ("runs", tmp_path / "mine"), ("recipe", load_recipe(TOY, ["seed=3"])))]
    assert ended.stdout == "one\ntwo\n"
    assert start_calls == ["begin_prefect_server", "start_prefect_server"]
    typed("improve", TOY)
    assert ran[-1][:2] == (("rounds", 1), ("runs", Path("runs")))


@pytest.mark.parametrize(("given", "hours"), [([], 24.0), (["--hours", "3"], 3.0)])
def test_status_looks_as_many_hours_back_as_it_says(
    given: list[str], hours: float, stand: Stand, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(status, "console", Console(width=200))
    stand(deployed_runs, "check_server")
    checks, found = stand(prefect_server, "check_answers"), {"runs": [], "failed": [], "workers": []}
    looked = stand(status, "status", found)
    ended = typed("status", *given)
    assert looked == [(hours,)]
    assert len(checks) == 1
    assert f"Failed in {hours:g} h: none" in ended.stdout
    assert "Workers: none" in ended.stdout
    assert json.loads(typed("status", "--json", *given).stdout) == found


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ([], (Path("artifacts"), None, None, True)),
        ([TOY], (load_recipe(TOY, []).store.path, "toy", None, True)),
        (
            [TOY, "--store", "there", "--port", "7000", "--no-browser", "--set", "name=other"],
            (Path("there"), "other", 7000, False),
        ),
    ],
)
def test_the_dashboard_shows_the_store_of_the_recipe_or_the_one_named(given: list[Any], shown: Any, stand: Stand):
    kept = stand(dashboard, "show_dashboard")
    ended = typed("dashboard", *given)
    assert kept == [shown]
    assert "Space" not in ended.stdout
    assert "https://huggingface.co/spaces/me/curves." in typed(
        "dashboard", TOY, "--set", "trackio.space_id=me/curves"
    ).stdout.replace("\n", "")


@pytest.mark.parametrize("sent", [[], [("a", True), ("b", False)]])
def test_what_waited_is_published_and_named(sent: list[tuple[str, bool]], stand: Stand, tmp_path: Path):
    class WaitingStore(HubStore):
        """Another process has filled it."""

        def send_waiting(self) -> list[tuple[Any, bool]]:
            return [(SimpleNamespace(repository=f"me/{key}", key=key), first) for key, first in sent]

    opened = stand(servers, "open_store", WaitingStore(tmp_path, "toy", "me"))
    ended = typed("publish", TOY, "--set", "seed=3")
    assert opened == [(load_recipe(TOY, ["seed=3"]),)]
    if not sent:
        assert ended.stdout == "Nothing waits to be published.\n"
        return
    lines = ended.stdout.splitlines()
    assert ["beside another machine's" in line for line in lines if "me/" in line] == [False, True]
    assert lines[-1] == "Run the recipe again to decide on the champion."


@pytest.mark.parametrize("protocol", ["parity", "tutorial", "inspect"])
def test_an_evaluation_asks_the_models_questions_and_seeds_that_it_is_given(
    protocol: str, stand: Stand, start_calls: list[str]
):
    name, module = ("inspect_models", inspect_models) if protocol == "inspect" else ("compare_models", compare_models)
    calls = stand(module, name, {"models": {"one": {"accuracy": 0.5}}})
    given = ["--model", "one", "--protocol", protocol, "--questions", "7", "--seed", "100", "--served-student"]
    others = ["--base-url", "http://there/v1"] if protocol == "inspect" else ["--as-of", "then", "--trust-code", "f"]
    ended = typed("evaluate", TOY, *given, *others, "--json")
    assert ended.exit_code == 0, ended.output
    chosen = load_recipe(TOY, [])
    spec = chosen.evaluate.model_copy(update={"questions": 7})
    window = Window(start=100, size=7)
    if protocol == "inspect":
        assert calls == [(chosen, ["one"], spec, window, True, "http://there/v1")]
    else:
        spec = spec.model_copy(update={"protocol": protocol})
        assert calls == [(chosen, ["one"], spec, window, "then", True, ["f"])]
    assert json.loads(ended.stdout) == {"model": "one", "accuracy": 0.5}
    assert start_calls == ["begin_prefect_server", "start_prefect_server"]
    report = json.loads(typed("evaluate", TOY, "--model", "a", "--model", "b", "--protocol", protocol, "--json").stdout)
    assert report == {"models": {"one": {"accuracy": 0.5}}}
    spec = spec.model_copy(update={"questions": chosen.evaluate.questions})
    assert calls[-1][1:4] == (["a", "b"], spec, chosen.seed_windows().evaluate)
    assert calls[-1][4:] == ((False, None) if protocol == "inspect" else (None, False, None))
    refused = typed("evaluate", TOY, "--model", "http://me:secret@there/v1#it", "--protocol", protocol)
    assert (refused.exit_code, len(calls)) == (1, 2)
    assert "must not hold a user or password" in " ".join(refused.stdout.split())
    assert "secret" not in refused.stdout


def test_an_evaluation_computes_in_what_the_recipe_says(stand: Stand):
    calls = stand(compare_models, "compare_models", {"models": {"one": {}}})
    typed("evaluate", TOY, "--model", "one", "--set", "precision=bf16")
    typed("evaluate", TOY, "--model", "one")
    assert [spec.bf16 for _, _, spec, *_ in calls] == [True, False]


@pytest.mark.parametrize("given", [[], ["--port", "7000", "--no-browser"]])
def test_episodes_are_viewed_by_recipe_or_by_key(given: list[str], stand: Stand):
    served = stand(view, "serve")
    by_recipe, by_key = stand(view, "shown_of_recipe", "of a recipe"), stand(view, "shown_of_key", "of a key")
    for what in (TOY, "toy"):
        typed("view", what, "--set", "seed=3", *given)
        assert by_recipe.pop() == (load_recipe(TOY, ["seed=3"]),)
    typed("view", "0123abc", "--store", "there", "--hub", "me", *given)
    assert by_key == [("0123abc", Path("there"), "me")]
    rest = (7000, False) if given else (0, True)
    assert served == [("of a recipe", *rest), ("of a recipe", *rest), ("of a key", *rest)]
    typed("view", "0123abc")
    assert by_key[-1] == ("0123abc", Path("artifacts"), None)


def test_an_import_sets_the_dataset_and_ends_with_the_command_that_trains_on_it(
    tmp_path: Path, stand: Stand, monkeypatch: pytest.MonkeyPatch
):
    rows = tmp_path / "rows.jsonl"
    rows.touch()
    state = SimpleNamespace(state="made")
    run = SimpleNamespace(store=SimpleNamespace(fetch=lambda _: tmp_path), log=[state])
    pinned = stand(library, "pinned_recipe", load_recipe(TOY, []))
    stand(library, "at_work", nullcontext(SimpleNamespace(run=run, questions="questions")))
    stand(lessons, "rollouts_of", SimpleNamespace(figure="3 rows", repository="toy/rollouts", key="k"))
    shown = stand(dataset, "show_report")
    production = stand(data, "_show_production")
    columns = ["--messages", "m", "--prompt", "p", "--completion", "c", "--tools", "t", "--reward", "r", "--seed", "s"]
    ended = typed(
        "import", rows, "--recipe", TOY, *columns, "--seeds", "5-9", "--unverified", "keep", "--set", "seed=3"
    )
    assert ended.exit_code == 0, ended.output
    recipe = pinned[0][0]
    assert recipe.seed == 3
    taken = recipe.collect.dataset.model_dump(exclude_none=True)
    assert taken["columns"] == {"messages": "m", "prompt": "p", "completion": "c", "tools": "t"} | {
        "reward": "r",
        "seed": "s",
    }
    assert taken["seeds"] == {"start": 5, "size": 5}
    assert recipe.collect.unverified == "keep"
    assert "3 rows are toy/rollouts@k. Train on them:\napprentice run " in ended.stdout
    assert all(each in ended.stdout for each in ("--set seed=3", "--set collect.unverified=keep", "collect.dataset="))
    assert "left out" not in ended.stdout
    assert not shown
    assert [folder for _, folder in production] == [tmp_path]
    state.state = "cached"
    (tmp_path / dataset.REPORT).touch()
    ended = typed("import", rows, "--recipe", TOY)
    assert len(shown) == 1
    assert f"every row that is left out: {tmp_path / dataset.REPORT}" in ended.stdout
    assert "unverified" not in ended.stdout.replace(str(rows), "")


@pytest.mark.parametrize("seeds", ["5", "5-", "-9", "9-5", "a-b", "5 9"])
def test_seeds_that_are_no_range_are_refused(seeds: str, tmp_path: Path):
    (tmp_path / "rows.jsonl").touch()
    refused = typed("import", tmp_path / "rows.jsonl", "--recipe", TOY, f"--seeds={seeds}")
    assert refused.exit_code == 1
    assert f"--seeds {seeds} is not of the form FIRST-LAST." in refused.stdout


def test_the_questions_are_the_window_s_unless_a_first_seed_is_given():
    recipe = load_recipe(TOY, [])
    window = recipe.seed_windows().evaluate
    assert (
        _window(recipe.seed_windows().evaluate, 1, None)
        == _window(recipe.seed_windows().evaluate, window.size, None)
        == window
    )
    assert _window(recipe.seed_windows().evaluate, 3, 7) == Window(start=7, size=3)
    assert _window(recipe.seed_windows().evaluate, window.size + 1, 0).size == window.size + 1
    with pytest.raises(Stop, match=f"has {window.size} seeds"):
        _window(recipe.seed_windows().evaluate, window.size + 1, None)
