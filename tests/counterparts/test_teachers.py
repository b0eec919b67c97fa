"""Teachers' endpoints that we did not write: a chaos server, a proxy with a budget, and vLLM with its own parsers.

`make test-counterparts` installs them in environments of their own.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.collect import collect_shard
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.endpoint import TeacherSpec
from apprentice.tasks.settings.spec import BuiltStudent, CollectSpec, StudentSpec, Window
from apprentice.tasks.student import student
from tests.counterparts.servers import BUILD, ON_CPU, VLLM, free_port, serving

LLMOCK, LITELLM = BUILD / "llmock/venv/bin", BUILD / "litellm/venv/bin"
ECHO = EnvironmentSpec(name="echo", settings={"words": 4})
KEY = "sk-7f3a9c1e5b2d4f6081726354453627189"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def echo() -> Iterator[EnvironmentServer]:
    with local_server("apprentice.envs.serving.serve", "echo", "--max-sessions", "64") as url:
        yield EnvironmentServer(url=url, sessions=8)


@pytest.fixture
def context(tmp_path: Path, echo: EnvironmentServer) -> StageContext:
    for name in ("out", "scratch"):
        (tmp_path / name).mkdir()
    run = RunContext(LocalStore(tmp_path / "store", project="toy"), StandingServers({"echo": echo}, None))
    return StageContext(run, "0" * 20, tmp_path / "out", tmp_path / "scratch")


def collected(context: StageContext, echo: EnvironmentServer, url: str, size: int, **settings: Any) -> list[Json]:
    """Play the questions of a window with the teacher at `url`; return the rollouts."""
    context.run.servers = StandingServers({"echo": echo}, url)
    teacher = TeacherSpec.model_validate(
        {"model": "teacher", "base_url": url, "timeout": 20, "patience": 20} | settings
    )
    collect_shard.body(context, CollectSpec(), teacher, ECHO, Window(start=0, size=size))
    return [json.loads(line) for line in (context.out / "rollouts.jsonl").read_text().splitlines()]


@contextmanager
def chaos(folder: Path, *flags: str) -> Iterator[str]:
    port = free_port()
    command = [str(LLMOCK / "llmock"), "serve", "--host", "127.0.0.1", "--port", str(port), *flags]
    with serving(command, f"http://127.0.0.1:{port}/health", folder / "llmock.log"):
        yield f"http://127.0.0.1:{port}"


ERRORS = [f"--error-rate={status}={rate}" for status, rate in ((429, 0.1), (500, 0.1), (503, 0.05), (529, 0.05))]
BREAKS = [f"--stream-fault={kind}=0.07" for kind in ("truncate", "disconnect", "malformed")]
WHOLE = re.compile("cut after [56] chunk")
"""What the server calls cut though its fifth chunk, with the finish reason, was sent: usage and [DONE] follow it."""


def faults_found(url: str) -> list[Json]:
    """What the chaos server holds against its client."""
    findings = httpx.get(f"{url}/_llmock/verdict").json()["findings"]
    return [each for each in findings if each["severity"] == "error" and not WHOLE.search(each["title"])]


@pytest.mark.parametrize("stream", [False, True])
def test_chaos_costs_no_episode_and_the_server_finds_no_fault_with_the_client(
    context: StageContext, echo: EnvironmentServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with chaos(tmp_path, *ERRORS, *BREAKS) as url:
        rows = collected(context, echo, f"{url}/v1", 60, stream=stream, patience=180)  # half of the streams break
        found = faults_found(url)
    assert Counter(row["failed_at"] for row in rows) == {"": 60}
    assert sum(row["attempts"] for row in rows) > 65, "the server broke some answers"
    assert found == []


def test_a_quota_is_kept_to_by_waiting(
    context: StageContext, echo: EnvironmentServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with chaos(tmp_path, "--rpm", "40") as url:
        rows = collected(context, echo, f"{url}/v1", 45, patience=60)
        found = faults_found(url)
    assert Counter(row["failed_at"] for row in rows) == {"": 45}
    assert found == []


PROXY = """
model_list:
  - model_name: teacher
    litellm_params: {{model: openai/gpt-5-mini, api_base: "{url}/v1", api_key: any}}
    model_info: {{input_cost_per_token: 0.00001, output_cost_per_token: 0.00001}}
router_settings:
  provider_budget_config:
    openai: {{budget_limit: {budget}, time_period: 1d}}
"""


def test_a_proxys_own_budget_stops_the_collection_and_a_larger_one_goes_on(
    context: StageContext, echo: EnvironmentServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    @contextmanager
    def proxy(budget: float, behind: str) -> Iterator[str]:
        port = free_port()
        (tmp_path / "proxy.yaml").write_text(PROXY.format(url=behind, budget=budget))
        command = [str(LITELLM / "litellm"), "--config", str(tmp_path / "proxy.yaml"), "--host", "127.0.0.1"]
        alive = f"http://127.0.0.1:{port}/health/liveliness"
        variables = {"LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        with serving([*command, "--port", str(port)], alive, tmp_path / "proxy.log", 90.0, **variables):
            yield f"http://127.0.0.1:{port}/v1"

    def questions_behind(behind: str) -> list[str]:
        requests = httpx.get(f"{behind}/_llmock/requests").json()["requests"]
        return [each["body"]["messages"][1]["content"] for each in requests if each["path"].endswith("/completions")]

    with chaos(tmp_path) as behind:
        with proxy(0.002, behind) as url, pytest.raises(Stop, match=r"[Ee]xceeded budget") as stopped:
            collected(context, echo, url, 40, provider="proxy")
        finished = int(re.findall(r"(\d+) of 40 episodes are finished and kept", str(stopped.value))[0])
        before = questions_behind(behind)
        assert 0 < finished == len(set(before)) < 40
        with proxy(1.0, behind) as url:
            rows = collected(context, echo, url, 40, provider="proxy")
        assert not set(before) & set(questions_behind(behind)[len(before) :])
    assert Counter(row["failed_at"] for row in rows) == {"": 40}


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """vLLM on the CPU with an untrained student, whose calls are right in form because the server sees to it."""
    folder, port = tmp_path_factory.mktemp("vllm"), free_port()
    (folder / "model").mkdir()
    store = LocalStore(folder / "store", project="toy")
    with store.staging() as given:
        row = {"purpose": "collect", "seed": 1, "question": "a few words", "used": True}
        (given / "questions.jsonl").write_text(json.dumps(row) + "\n")
        counts = {"collect": 1, "grpo": 0, "evaluate": 0, "dropped_from_grpo": 0}
        questions = store.publish(Questions, "k", given, counts, {"stage": "questions"})
    run = RunContext(store, StandingServers({}, None))
    shape = BuiltStudent(hidden_size=64, intermediate_size=64, layers=1, heads=2, max_positions=4096)
    student.body(StageContext(run, "0" * 20, folder / "model", folder), StudentSpec(build=shape), ECHO, questions, 0)
    command = [str(VLLM / "python"), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder / "model")]
    command += ["--served-model-name", "teacher", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--max-num-seqs", "8"]
    alive = f"http://127.0.0.1:{port}/health"
    with serving(command, alive, folder / "vllm.log", patience=400.0, **ON_CPU):
        yield f"http://127.0.0.1:{port}/v1"


def test_vllm_makes_a_call_of_every_answer_where_one_is_required(
    context: StageContext, echo: EnvironmentServer, vllm: str, monkeypatch: pytest.MonkeyPatch
):
    """An untrained model makes up keys and never ends a text; the server's grammar allows both."""
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    rows = collected(context, echo, vllm, 6, max_tokens=256, timeout=120, patience=120)
    assert {row["failed_at"] for row in rows} <= {"", "teacher"}
    reasons = {reason for row in rows for reason in row["asked_again"].split("; ")}
    assert reasons <= {"", "arguments off the schema", "malformed arguments", "no tool call"}  # the last one cut off
    played = [row for row in rows if not row["failed_at"]]
    assert played
    assert all(row["messages"][2]["tool_calls"][0]["function"]["name"] == "echo" for row in played)
    assert all(row["prompt_tokens"] > 300 and row["completion_tokens"] > 0 for row in rows)


def test_vllm_with_a_model_that_calls_no_tool_stops_before_half_of_the_window(
    context: StageContext, echo: EnvironmentServer, vllm: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    with pytest.raises(Stop, match=r"gave no valid call .*no tool call.*\n.*Choose a teacher that calls tools"):
        collected(context, echo, vllm, 8, max_tokens=16, request={"tool_choice": "auto"}, timeout=120, patience=120)


COLLECT = """
import sys
from apprentice import collect, load_recipe
print(collect(load_recipe(sys.argv[1], sys.argv[2:])).folder)
"""


def test_the_readmes_recipe_collects_from_a_server_that_the_process_names(tmp_path: Path):
    """All but what needs the Hub: its environment's server and its student."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    block = next(each for each in re.findall(r"```yaml\n(.*?)```", readme, re.S) if each.startswith("name: chain-sum"))
    (tmp_path / "my.yaml").write_text(block.replace("COMMIT", "0" * 40))
    built = "student={build: {hidden_size: 32, intermediate_size: 64, layers: 1, heads: 2, max_positions: 512}}"
    overrides = ["server=", built, "windows.collect.size=20", "windows.grpo.size=20", "windows.evaluate.size=1100"]
    with chaos(tmp_path) as url:
        given = os.environ | {
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": KEY,
            "PREFECT_HOME": str(tmp_path / "p"),
        }
        command = [sys.executable, "-c", COLLECT, str(tmp_path / "my.yaml"), *overrides]
        done = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert f"The teacher's key goes to {url}/v1, as OPENAI_BASE_URL says." in said
    assert "of 5 USD booked, 20 requests" in said
    rows = [json.loads(line) for line in (Path(done.stdout.split()[-1]) / "rollouts.jsonl").read_text().splitlines()]
    assert Counter(row["failed_at"] for row in rows) == {"": 20}
    assert KEY not in done.stdout + done.stderr
