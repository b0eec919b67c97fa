"""A log of `apprentice serve` with questions inside and outside of the windows trains, judged by teacher or person."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from apprentice.envs.echo.text import text_of
from apprentice.flows.beginning import question_set
from apprentice.flows.cli.data import _check_waiting, _write_waiting
from apprentice.flows.lessons import lessons_of, taken_rows
from apprentice.flows.library import at_work
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.runtime.servers import RunServers
from apprentice.flows.serving.request_log import RequestLog
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import KeptRollouts, RelabelledRollouts, Release, Rollouts
from apprentice.tasks.cards.card import write_card
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.files.json_lines import read_rows
from apprentice.tasks.reporting.errors import Stop
from tests.endpoint import KEY, Endpoint, call
from tests.flows.commands import TOY
from tests.flows.test_import import RECIPE, command
from tests.flows.test_preflight import echo, look
from tests.tasks.evaluations import published

assert echo  # a fixture

FAR = 300_000_000
"""Seeds from here on are in no window, and no teacher of the recipe is asked them."""
KNOWN, RIGHT, WRONG = range(12), range(FAR, FAR + 6), range(FAR + 6, FAR + 10)
TOOL = {"type": "function", "function": {"name": "echo", "parameters": {"type": "object", "properties": {}}}}


def answer(text: str, said: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A request with its answer."""
    function = {"name": "echo", "arguments": json.dumps({"message": said})}
    turn = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": function}]}
    return {"messages": [{"role": "user", "content": text}], "tools": [TOOL]}, {"choices": [{"message": turn}]}


def write_log(file: Path, store: LocalStore) -> None:
    """Known questions; far ones, answered right and wrong; one of the evaluation; one of several turns."""
    counts = {"weights": "w", "promoted": True, "parameters": 1, "stage": "champion"}
    model = published(store, Release, "a" * 20, {"model.txt": "a"}, counts)
    log = RequestLog(file)
    for seed in [*KNOWN, *RIGHT, *WRONG]:
        log.write(*answer(text_of(seed, 1), "wrong" if seed in WRONG else text_of(seed, 1)), model)
    log.write(*answer(text_of(200_000_000, 1), "x"), model)
    body, said = answer("asked twice", "asked twice")
    replied = [*body["messages"], said["choices"][0]["message"], {"role": "tool", "tool_call_id": "1", "content": "?"}]
    log.write(body | {"messages": replied}, said, model)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a recipe, taught by the script, and a log."""
    recipe = RECIPE | {"teacher": {"scripted_error_rate": 0.0}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    write_log(tmp_path / "log.jsonl", LocalStore(tmp_path / "other", "imported"))
    return tmp_path


def trained(home: Path, printed: str) -> tuple[dict[str, Any], LocalStore]:
    """The report of the run that an import's last line begins."""
    name, *parts = shlex.split(printed.strip().splitlines()[-1])
    assert (name, parts[0]) == ("apprentice", "run")
    ran = command(home, *parts)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads((home / ran.stdout.strip().splitlines()[-1] / "report.json").read_text())
    return report, LocalStore(home / "artifacts", "imported")


def only(store: LocalStore, kind: Any, name: str) -> list[dict[str, Any]]:
    (revision,) = store.tags(kind, "").values()
    return read_rows(store.fetch(store.at(kind, revision)) / name)


@pytest.mark.long
def test_a_log_is_judged_by_the_teacher_and_the_next_run_trains_on_both(home: Path):
    done = command(home, "import", "log.jsonl", "--recipe", "recipe.yaml", "--unverified", "relabel")
    assert done.returncode == 0, done.stdout + done.stderr
    printed = " ".join(done.stdout.split())
    for line in (
        "verified by the environment 12",
        "refused: its question stands in the evaluation set 1",
        "11 rows that no seed verifies, and the teacher",
        "the teacher gives the same answer 6",
        "replaced by the teacher's answer, which it gives twice 4",
        "not judged, left out: its episode may have several turns, whose replies no environment can give 1",
        "23 episodes, 1 failed; a teacher confirmed 6 and replaced 4",
    ):
        assert line in printed, done.stdout
    again = command(home, "import", "log.jsonl", "--recipe", "recipe.yaml", "--unverified", "relabel")
    assert "the teacher gives the same answer 6" in " ".join(again.stdout.split())
    report, store = trained(home, done.stdout)
    stages = {stage["name"]: stage["state"] for stage in report["stages"]}
    assert (stages["take_rollouts"], stages["relabel"], stages["sft"]) == ("cached", "cached", "ran")
    assert "collect" not in stages
    assert (report["collect"]["episodes"], report["collect"]["kept"]) == (23, 22)
    assert report["collect"]["causes"] == {"failed at the teacher": 1}
    assert (report["rows_of"], report["played_by"][:15]) == ("Dataset", "scripted policy")
    learned = {row["messages"][1]["content"]: row for row in only(store, KeptRollouts, "kept.jsonl")}
    assert learned.keys() == {text_of(seed, 1) for seed in (*KNOWN, *RIGHT, *WRONG)}
    for seed in WRONG:
        row = learned[text_of(seed, 1)]
        said = json.loads(row["messages"][2]["tool_calls"][0]["function"]["arguments"])
        assert (said, row["verified"]) == ({"message": text_of(seed, 1)}, "teacher")
        assert row["player"].startswith("scripted policy")


@pytest.mark.long
def test_a_log_is_judged_by_a_person_by_the_printed_commands(home: Path):
    done = command(home, "import", "log.jsonl", "--recipe", "recipe.yaml", "--waiting", "waiting.jsonl")
    assert done.returncode == 0, done.stdout + done.stderr
    printed = " ".join(done.stdout.split())
    assert "11 rows wait for a verdict in waiting.jsonl" in printed
    assert "not verified, dropped: no seed is known that asks this question 11" in printed
    assert "not verified, kept" not in printed
    assert done.stdout.strip().splitlines()[-1].startswith("apprentice run"), "on those that are verified"
    rows = read_rows(home / "waiting.jsonl")
    assert [row["question"] for row in rows[:10]] == [text_of(seed, 1) for seed in (*RIGHT, *WRONG)]
    verdicts = [True] * 6 + [False] * 4 + [None]
    lines = [json.dumps(row | {"right": right}) for row, right in zip(rows, verdicts, strict=True)]
    (home / "waiting.jsonl").write_text("\n".join(lines))
    (given,) = [line for line in done.stdout.splitlines() if line.startswith("apprentice import")]
    judged = command(home, *shlex.split(given)[1:])
    assert judged.returncode == 0, judged.stdout + judged.stderr
    printed = " ".join(judged.stdout.split())
    for line in ("judged by a person: right 6", "judged by a person: wrong 4", "refused: it waits for a verdict 1"):
        assert line in printed, judged.stdout
    assert "10 episodes are local/imported-rollouts@" in printed
    assert "--set collect.unverified=keep" in judged.stdout.strip().splitlines()[-1]


def test_where_no_question_is_known_the_rows_that_wait_are_written_all_the_same(
    echo: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    rows = [{"prompt": f"open {n}", "completion": "yes"} for n in range(3)]
    known = {"prompt": text_of(1, 3), "completion": "yes"}
    for name, given, others in (("none", rows, False), ("one", [*rows, known], True), ("no open", [known], True)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in given))
        dataset = f"collect.dataset={tmp_path / name}.jsonl"
        store = f"store.path={tmp_path / 'artifacts'}"
        chosen = load_recipe(TOY, ["environment={name: echo}", "guards=[]", f"server.url={echo}", dataset, store])
        with at_work(chosen.with_student_pinned(), lambda *_: None) as stages:
            assert _write_waiting(stages, tmp_path / f"{name} waiting.jsonl", TOY) is others
        shown = capfd.readouterr().out
        waits = name != "no open"
        assert ("Set `right` to true or false" in shown) is (tmp_path / f"{name} waiting.jsonl").exists() is waits
        assert ("No other row waits for a verdict." in shown) is not waits
        assert ("not verified, kept" in shown) is not others, "the import of the others has a table of its own"


@pytest.mark.parametrize("unverified", ["keep", "relabel"])
def test_rows_that_are_taken_otherwise_do_not_wait(unverified: str, tmp_path: Path):
    with pytest.raises(Stop, match=f"With collect.unverified: {unverified} no row waits") as stop:
        _check_waiting(tmp_path / "waiting.jsonl", unverified)
    assert "--unverified drop" in stop.value.remedy
    _check_waiting(tmp_path / "waiting.jsonl", "drop")


@pytest.mark.long
def test_a_teacher_that_is_to_judge_is_looked_at_before_and_once_it_has_nobody_asks(
    echo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The same for a model behind an endpoint: what it costs is counted, and the card names it."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    endpoint = Endpoint([])
    rows = [{"prompt": f"open {n}", "completion": "yes" if n else "no"} for n in range(3)]
    rows.append({"prompt": text_of(1, 3), "completion": text_of(1, 3)})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prices = "prices: {prompt: 1.0, completion: 1.0}"
    chosen = load_recipe(
        TOY,
        [
            *("environment={name: echo}", "guards=[]", f"server.url={echo}", "collect.unverified=relabel"),
            f"teacher={{base_url: '{endpoint.url}', model: toy, patience: 1, {prices}}}",
            f"collect.dataset={tmp_path / 'rows.jsonl'}",
        ],
    ).with_student_pinned()
    with pytest.raises(Stop, match="returns no valid tool call to 3 questions"):
        look(chosen, tmp_path)
    endpoint.turns, endpoint.requests = [[call("echo", '{"message": "yes"}')]], []
    look(chosen, tmp_path)
    assert len(endpoint.requests) == 1
    assert not [*(tmp_path / "artifacts/.scratch").glob("collect_shard*/*")], "no collection is begun"
    with RunServers(chosen) as servers:
        store = LocalStore(tmp_path / "artifacts", project="toy", describe=write_card)
        run = RunContext(store, servers, **chosen.for_work())
        asked = question_set(run, chosen)
        dataset = chosen.collect.dataset
        assert dataset is not None
        made = taken_rows(run, chosen.collect, chosen.teacher, chosen.environment, dataset, asked)
        assert isinstance(made, RelabelledRollouts)
        assert (made.confirmed, made.replaced, made.undecided, made.episodes) == (2, 1, 0, 4)
        assert made.cost_usd == pytest.approx(4 * 12e-6)
        bought = len(endpoint.requests)
        look(chosen, tmp_path)
        monkeypatch.setattr("apprentice.flows.lessons.lengths", lambda *_: None)
        kept = lessons_of(run, chosen, asked, None).kept  # type: ignore[arg-type]
        assert len(endpoint.requests) == bought
    cards = [(store.fetch(each) / "README.md").read_text() for each in (made, kept)]
    for text in cards:
        assert "A teacher answered the other questions: `toy at a private endpoint`." in text
        assert "2 rows. 1 rows have its own answer" in " ".join(text.split())
        assert "The terms of the teacher's maker may bind" in text
        assert "| `verified` |" in text
        assert "| `player` |" in text
    assert "judged by a teacher" in cards[0]
    assert [each.name for each in run.log][-1] == "filter_rollouts"
    assert [row["verified"] for row in only(store, RelabelledRollouts, "rollouts.jsonl")] == ["teacher"] * 3 + ["yes"]
    assert [row["verified"] for row in only(store, Rollouts, "rollouts.jsonl")] == ["no"] * 3 + ["yes"]
