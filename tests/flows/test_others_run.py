"""Whole runs on servers with the properties of published ones, by the server's address and one line at most."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.endpoint import KEY, Endpoint, call
from tests.envs.published.parity import StrictLabel, app, parity
from tests.envs.published.serving import serving
from tests.flows.commands import Ran, apprentice, read

pytestmark = pytest.mark.long

TASKS = [{"task_id": "easy"}, {"task_id": "medium"}, {"task_id": "hard"}]
KINDS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "tasks by name": (app(parity("by name")), {"tasks": TASKS}, "tries of the 3 tasks that it was trained on"),
    "one start": (app(parity("fixed")), {"one_task": True}, "tries of the one task that it was trained on"),
    "rewards below 1.0": (app(parity(low=0.1, high=0.8)), {}, "unseen questions"),
    "a validator, and one session": (app(parity(), StrictLabel, sessions=1), {}, "unseen questions"),
}


def right(request: dict[str, Any]) -> list[dict[str, str]]:
    """The right label."""
    question = next(each["content"] for each in request["messages"] if each["role"] == "user")
    number = int(re.findall(r"Is (\d+) odd", question)[0])
    return [call("act", json.dumps({"label": "even" if number % 2 == 0 else "odd"}))]


def unsure(request: dict[str, Any]) -> list[dict[str, str]]:
    """A label that a validator refuses, and then the right one."""
    refused = any("refuses" in str(each["content"]) for each in request["messages"] if each["role"] == "tool")
    return right(request) if refused else [call("act", '{"label": "unsure"}')]


@pytest.fixture(scope="module", params=KINDS)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path, str]:
    home = tmp_path_factory.mktemp("home")
    served, settings, _ = KINDS[request.param]
    teacher = Endpoint(unsure if "validator" in request.param else right)
    with pytest.MonkeyPatch.context() as patch, serving(served) as url:
        patch.setenv("OPENAI_API_KEY", KEY)
        found = apprentice(
            home,
            "name=parity",
            f"environment={json.dumps({'max_turns': 2} | settings)}",
            f"server.url={url}",
            "server.sessions=4",
            "teacher.scripted_error_rate=null",
            f"teacher.base_url={teacher.url}",
            "teacher.model=teacher",
            "student.build.max_positions=2048",
            "grpo.max_completion_length=48",
            "guards=[]",
        )
    return found, home, request.param


def test_every_stage_ran_and_the_end_says_what_was_asked(ran: tuple[Ran, Path, str]):
    found, _, kind = ran
    assert found.code == 0, found.out
    assert {name for name, _ in found.states} >= {"collect", "filter_rollouts", "sft", "grpo", "evaluate", "verdict"}
    assert KINDS[kind][2] in " ".join(found.out.split())


def test_what_the_teacher_did_right_counts_as_right(ran: tuple[Ran, Path, str]):
    _, home, _ = ran
    kept = [json.loads(line) for line in read(home / "artifacts/datasets/local/parity-kept-rollouts", "kept.jsonl")]
    assert kept
    assert {each["reward"] for each in kept} == {1.0}
