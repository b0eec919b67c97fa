"""`apprentice view` shows the episodes of an artifact from the store: what it finds, what it serves, to whom."""

import json
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from starlette.testclient import TestClient

from apprentice.flows import view
from apprentice.flows.pages.episode_files import FIRST
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.view import app_of, shown_of_key, shown_of_recipe
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Questions, Rollouts, SftCheckpoint, Verdict
from apprentice.tasks.episodes.texts import same_text
from apprentice.tasks.reporting.errors import Stop
from tests.browser import browser
from tests.flows.commands import BIN, TOY, environment, hears_ctrl_c
from tests.flows.pages.hostile_report import rollout
from tests.tasks.evaluations import episodes, evaluation, published

assert browser  # a fixture
MANY = 3 * FIRST


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> LocalStore:
    return LocalStore(tmp_path_factory.mktemp("home") / "artifacts", "toy")


@pytest.fixture(scope="module")
def verdict(store: LocalStore) -> Verdict:
    """Two models on three questions, a regression evaluation, and many episodes of the teacher."""
    asked = ("evaluate", "Question 3?"), ("evaluate", "Question 5?"), ("grpo", "Question 5?")
    rows = ({"purpose": purpose, "seed": 3, "question": text, "used": True} for purpose, text in asked)
    counts = {"collect": 0, "grpo": 0, "evaluate": 1, "dropped_from_grpo": 0}
    questions = published(store, Questions, "e" * 20, {"questions.jsonl": "\n".join(map(json.dumps, rows))}, counts)
    sft = evaluation(store, "a" * 20, episodes([1.0, 0.0, 0.0]), "sft", inputs={"questions": questions})
    grpo = evaluation(store, "b" * 20, episodes([1.0, 1.0, 0.0]), "grpo", inputs={"questions": questions})
    regression = evaluation(store, "c" * 20, episodes([1.0]), "grpo")
    lines = b"".join(rollout(number).line() for number in range(MANY)).decode()
    bought = {name: 0 for name in ("failed", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")}
    bought |= {"episodes": MANY, "cost_usd": 0}
    rollouts = published(store, Rollouts, "d" * 20, {"rollouts.jsonl": lines}, bought)
    inputs = {"evaluations.sft": sft, "evaluations.grpo": grpo, "guards.sums.grpo": regression, "rollouts": rollouts}
    return published(store, Verdict, "f" * 20, {"verdict.json": "{}"}, {"diagnosis": "", "contaminated": False}, inputs)


@pytest.fixture
def client(store: LocalStore, verdict: Verdict) -> Iterator[TestClient]:
    with TestClient(app_of(shown_of_key(verdict.key, store.root)), base_url="http://127.0.0.1") as client:
        yield client


def all_rows(client: TestClient) -> tuple[list[Any], dict[str, Any]]:
    rows: list[Any] = []
    while True:
        chunk = client.get("/rows", params={"from": len(rows)}).json()
        rows += chunk["rows"]
        if len(rows) == chunk["total"]:
            return rows, chunk


def test_a_verdict_shows_models_regression_evaluations_and_the_teachers_episodes(store: LocalStore, verdict: Verdict):
    shown = shown_of_key(verdict.key, store.root)
    assert [(each.source.model, each.source.question_set, each.episodes) for each in shown] == [
        ("SFT", "held out", 3),
        ("GRPO", "held out", 3),
        ("GRPO", "sums", 1),
        ("Teacher", "collected", MANY),
    ]
    assert shown[-1].source.evaluation_texts == {same_text("Question 3?")}, "the filter keeps those also trained on"


def test_a_recipe_shows_its_newest_verdict_and_says_so_where_there_is_none(
    store: LocalStore, verdict: Verdict, tmp_path: Path
):
    shown = shown_of_recipe(load_recipe(TOY, [f"store.path={store.root}"]))
    assert [each.source.model for each in shown] == ["SFT", "GRPO", "GRPO", "Teacher"]
    with pytest.raises(Stop, match="no episodes"):
        shown_of_recipe(load_recipe(TOY, [f"store.path={tmp_path}"]))


def test_what_has_no_episodes_is_refused_with_what_has(store: LocalStore):
    published(store, SftCheckpoint, "9" * 20, {"model": ""}, {"parameters": 1})
    with pytest.raises(Stop, match="SftCheckpoint, which has no episodes"):
        shown_of_key("9" * 20, store.root)


def test_rows_come_in_chunks_with_the_words_that_they_name(client: TestClient):
    first = client.get("/rows?from=0").json()
    assert len(first["rows"]) == FIRST
    rows, words = all_rows(client)
    assert len(rows) == 7 + MANY
    kinds = [words["kinds"][row[5]] for row in rows]
    assert kinds[:7] == ["right", "wrong answer", "wrong answer", "right", "right", "wrong answer", "right"]
    assert kinds[7] == "wrong answer"  # of the teacher
    assert kinds[7 + 3] == "stands in the evaluation set"
    assert set(kinds[7 + 4 :]) == {"kept"}
    assert client.get("/rows?from=0").json()["rows"] == first["rows"], "a page that is loaded again begins anew"


def test_a_transcript_is_that_of_its_row(client: TestClient):
    rows, _ = all_rows(client)
    wanted = [0, 6, 7, len(rows) - 1]
    texts = [
        each["messages"][1]["content"] for each in client.get("/transcripts?rows=" + ",".join(map(str, wanted))).json()
    ]
    assert texts == ["Question 0?", "Question 0?", "Question 0?", f"Question {MANY - 1}?"]


def test_a_search_reads_what_was_said_and_not_how_it_is_stored(client: TestClient):
    rows, _ = all_rows(client)
    assert len(client.get("/search?text=QUESTION 1299?").json()) == 1
    assert client.get("/search?text=tool_calls").json() == [], "the name of a field"
    assert len(client.get('/search?text={"answer": "7"}').json()) == len(rows), (
        "a call, whose quotes are stored escaped"
    )


def test_a_page_of_another_name_gets_no_answer_and_ours_asks_nobody_else(client: TestClient):
    assert client.get("/rows?from=0", headers={"Host": "attacker.example"}).status_code == 400
    page = client.get("/").text
    assert "default-src &#39;none&#39;" in page
    assert "connect-src &#39;self&#39;" in page


@pytest.mark.long
def test_a_browser_shows_filters_and_opens_what_the_server_has(browser: Any, store: LocalStore, verdict: Verdict):
    import socket

    import uvicorn
    from playwright.sync_api import expect

    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app_of(shown_of_key(verdict.key, store.root)), log_level="critical"))
    thread = Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    tab, odd = browser.new_page(), []
    tab.on("pageerror", lambda error: odd.append(str(error)))
    tab.on("console", lambda message: odd.append(message.text) if message.type == "error" else None)
    try:
        tab.goto(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        expect(tab.locator(".found")).to_have_text(f"{7 + MANY:,} of {7 + MANY:,} episodes")
        tab.locator("select[name=pair]").select_option("SFT~GRPO~won")
        expect(tab.locator(".found")).to_contain_text("1 of ")
        tab.locator(".episodes tbody button").first.click()
        expect(tab.get_by_role("dialog")).to_contain_text("Question 1?")
        assert tab.locator("dialog section").count() == 2
        tab.keyboard.press("Escape")
        tab.get_by_role("button", name="Clear").click()
        tab.locator("input[name=text]").fill("Question 1299?")
        tab.locator("input[name=text]").press("Enter")
        expect(tab.locator(".found")).to_contain_text("1 of ")
        assert odd == [] or all("favicon" in each for each in odd)
    finally:
        tab.close()
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize("opens", [True, False])
def test_a_view_is_served_to_this_machine_until_it_is_interrupted(
    opens: bool, store: LocalStore, verdict: Verdict, tmp_path: Path
):
    shows = tmp_path / "browser"
    shows.write_text(f"#!/bin/sh\necho $1 > {tmp_path}/opened\n")
    shows.chmod(0o755)
    command = [str(BIN / "apprentice"), "view", verdict.key, "--store", str(store.root)]
    with subprocess.Popen(
        [*command, *([] if opens else ["--no-browser"])],
        env={**environment(tmp_path), "BROWSER": f"{shows} %s"},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=hears_ctrl_c,
    ) as served:
        assert served.stdout is not None
        found = re.fullmatch(
            r"The episodes are at (http://127\.0\.0\.1:\d+/); stop it with Ctrl-C\.\n", served.stdout.readline()
        )
        assert found
        with urllib.request.urlopen(found[1], timeout=60) as page:
            assert b"<!doctype html>" in page.read(200).lower()
        served.send_signal(signal.SIGINT)
        assert served.stdout.read() == "The view has stopped.\n"
    assert served.returncode == 0
    opened = tmp_path / "opened"
    assert (opened.read_text().strip() if opened.exists() else "") == (found[1] if opens else "")


def test_a_port_that_is_taken_is_told():
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(Stop, match=r"Port \d+ is not available: .*\.\n"),
    ):
        view.serve([], taken.getsockname()[1], browser=False)
