"""Before a run buys a token it has found out, in seconds, whether it can end."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from apprentice.envs.serving.process import local_server
from apprentice.flows.preflight import EvaluationPreflight, Preflight
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime.servers import RunServers
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.collect import collect_shard
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.models.checkpoints import save
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.announce import StageRun
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.training import forecast
from tests.endpoint import KEY, Endpoint, call
from tests.hostile.endings import assert_clear, assert_clear_exit
from tests.odd_server import odd_server
from tests.prefect_database import prefect_home
from tests.tasks.test_every_family import FORGETS
from tests.tasks.test_one_prompt import tiny_model
from tests.tokenizers import build_tokenizer

RECIPES = Path(__file__).parent.parent.parent / "deployments" / "recipes"
TOY = RECIPES / "toy.yaml"
ECHO = call("echo", '{"message": "hello"}')


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    """An echo server with room for a whole run."""
    with local_server("apprentice.envs.serving.serve", "echo", "--max-sessions", "99") as url:
        yield url


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    """A teacher's endpoint that calls echo's tool."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    endpoint = Endpoint([ECHO])
    yield endpoint
    endpoint.shutdown()


def recipe(endpoint: Endpoint, *overrides: str, environment: str = "{name: echo}") -> Recipe:
    """The toy recipe in another environment, taught by an endpoint."""
    teacher = f"teacher={{base_url: '{endpoint.url}', model: toy, patience: 1, timeout: 5}}"
    return load_recipe(TOY, [f"environment={environment}", "guards=[]", teacher, *overrides])


def look(chosen: Recipe, folder: Path, before: tuple[str, ...] = (), stage: str = "questions") -> RunContext:
    """The preflight of a run that has found `before` in its store, and not `stage`."""
    with RunServers(chosen) as servers:
        work = RunContext(LocalStore(folder / "artifacts", project="toy"), servers)
        work.log += [StageRun(name, "cached", 0.0, "") for name in before]
        Preflight(chosen, trains_here=True)(work, stage)
        return work


def stopped(chosen: Recipe, folder: Path) -> str:
    with pytest.raises(Stop) as stop:
        look(chosen, folder)
    assert_clear(stop.value)
    return str(stop.value)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("forgetful", "the same seed gave two different questions"),
        ("stubborn", "5 seeds gave the same question"),
        ("counting", "the same seed gave two different questions"),
        ("generous", "reward is 7.0, which is not within 0 to 1"),
        ("page", "/health is not that of an OpenEnv server"),
        ("deaf", "it has no WebSocket at /ws (status 403)"),
        ("asleep", "out of reach"),
    ],
)
def test_a_server_that_will_not_do_stops_the_run_before_the_teacher_is_asked(
    kind: str, says: str, endpoint: Endpoint, tmp_path: Path
):
    with odd_server(kind) as url:
        assert says in stopped(recipe(endpoint, f"server.url={url}", "server.patience=1"), tmp_path)
    assert endpoint.requests == []


@pytest.mark.long
def test_a_sudoku_that_ignores_seeds_is_found_out(endpoint: Endpoint, tmp_path: Path):
    given = yaml.safe_load((RECIPES / "sudoku-laptop.yaml").read_text())["environment"]
    with odd_server("sudoku") as url:
        chosen = recipe(endpoint, f"server.url={url}", environment=json.dumps(given))
        assert "the same seed gave two different questions" in stopped(chosen, tmp_path)
    assert endpoint.requests == []


@pytest.mark.long
def test_an_evaluation_looks_at_its_environment_once_for_all_models(endpoint: Endpoint, tmp_path: Path):
    def ahead(preflight: EvaluationPreflight, chosen: Recipe) -> None:
        with RunServers(chosen) as servers:
            work = RunContext(LocalStore(tmp_path / "artifacts", project="toy"), servers)
            work.preflight = preflight
            work.look_ahead("evaluate_endpoint")

    with odd_server("forgetful") as url:
        chosen = recipe(endpoint, f"server.url={url}", "server.patience=1")
        with pytest.raises(Stop, match="the same seed gave two different questions"):
            ahead(EvaluationPreflight(chosen, chosen.seed_windows().evaluate), chosen)
    with local_server("apprentice.envs.serving.serve", "echo") as url:
        chosen = recipe(endpoint, f"server.url={url}", "server.patience=1")
        preflight = EvaluationPreflight(chosen, chosen.seed_windows().evaluate)
        ahead(preflight, chosen)
    ahead(preflight, chosen)  # the server is gone, and nobody looks
    assert endpoint.requests == []


def test_another_environments_server_is_named(endpoint: Endpoint, tmp_path: Path, server: Any):
    said = stopped(recipe(endpoint, f"server.url={server.url}"), tmp_path)
    assert "does not work for echo" in said
    assert "--environment reasoning_gym" in said
    assert endpoint.requests == []


@pytest.mark.long
def test_too_few_sessions_stop_no_run_since_episodes_take_turns(endpoint: Endpoint, tmp_path: Path):
    with local_server("apprentice.envs.serving.serve", "echo", "--max-sessions", "3") as url:
        at = f"server.url={url}"
        look(recipe(endpoint, at), tmp_path)
        look(recipe(endpoint, at), tmp_path, before=("sft", "grpo"), stage="evaluate")
        said = stopped(recipe(endpoint, at, "grpo.processes=2"), tmp_path)
        assert "grants 3 sessions, and training needs 16" in said
        assert "grpo.processes: 1" in said


@pytest.mark.long
def test_a_regression_evaluations_server_and_its_settings_are_looked_at_too(endpoint: Endpoint, tmp_path: Path):
    with odd_server("stubborn") as url:
        regression = {"name": "words", "environment": {"name": "echo"}, "server": {"url": url}}
        chosen = load_recipe(TOY, [f"guards=[{json.dumps(regression)}]"])
        assert f"{url} does not work for echo: 5 seeds gave the same question" in stopped(chosen, tmp_path)


def test_the_teacher_is_asked_once_and_what_it_costs_is_on_the_collections_account(
    endpoint: Endpoint, echo: str, tmp_path: Path
):
    priced = f"server.url={echo}", "teacher.prices={prompt: 1.0, completion: 2.0}"
    chosen = recipe(endpoint, *priced, "teacher.budget_usd=1")
    work = look(chosen, tmp_path)
    assert len(endpoint.requests) == 1
    assert endpoint.requests[0]["tools"][0]["function"]["name"] == "echo"
    given = chosen.collect, chosen.teacher, chosen.environment, chosen.seed_windows().collect
    ledger = collect_shard.scratch(work, collect_shard.key(given, {})) / "spent_usd"
    assert float(ledger.read_text().split()[0]) > 0
    look(recipe(endpoint, *priced, "teacher.budget_usd=0.000001"), tmp_path)
    assert len(endpoint.requests) == 1, "the budget is kept"


@pytest.mark.parametrize(
    ("turn", "says"),
    [
        ([], "returns no valid tool call to 3 questions: no valid tool call in 3 answers; the last one had: no tool"),
        ([call("fly")], "unknown tool"),
        ([call("echo", '{"message": ')], "malformed arguments"),
        (401, "refused the request with status 401"),
        (503, "has not answered for 1 s (status 503: refused"),
    ],
)
def test_a_teacher_that_will_not_do_stops_the_run(turn: Any, says: str, endpoint: Endpoint, echo: str, tmp_path: Path):
    endpoint.turns = [turn]
    said = stopped(recipe(endpoint, f"server.url={echo}"), tmp_path)
    assert says in said
    assert KEY not in said


def test_a_teacher_that_fails_at_one_question_and_calls_at_the_next_will_do(
    endpoint: Endpoint, echo: str, tmp_path: Path
):
    endpoint.turns = [[], [], [], [ECHO]]
    look(recipe(endpoint, f"server.url={echo}"), tmp_path)
    assert len(endpoint.requests) == 4
    assert endpoint.requests[0]["messages"] != endpoint.requests[3]["messages"]


def test_a_missing_key_is_told_before_a_server_is_asked(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("OPENAI_API_KEY")
    assert "OPENAI_API_KEY is not set" in stopped(recipe(endpoint, "server.url=http://127.0.0.1:9"), tmp_path)


def test_what_both_trainings_lack_is_told_before_a_server_is_asked(endpoint: Endpoint, tmp_path: Path):
    away = "server.url=http://127.0.0.1:9"
    assert "needs an NVIDIA GPU" in stopped(recipe(endpoint, away, "sft.lora.quantized=true"), tmp_path)
    assert "needs vLLM" in stopped(recipe(endpoint, away, "grpo.generation.engine=vllm"), tmp_path)


def test_nothing_is_looked_at_where_only_judging_is_left(endpoint: Endpoint, tmp_path: Path):
    chosen = recipe(endpoint, "server.url=http://127.0.0.1:9")
    for stage in ("verdict", "gate", "release"):
        look(chosen, tmp_path, before=("sft", "grpo", "evaluate"), stage=stage)
    assert endpoint.requests == []


NO_TOOLS = "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (None, "has no chat template"),
        (NO_TOOLS, "renders no tool calls"),
        (FORGETS, "renders earlier turns differently"),
    ],
)
def test_a_student_that_cannot_be_taught_to_call_tools_is_told(
    template: str | None, says: str, endpoint: Endpoint, echo: str, tmp_path: Path
):
    folder, chosen = tmp_path / "student", recipe(endpoint)
    folder.mkdir()
    tokenizer = build_tokenizer(chosen.environment, ["a", "b"])
    save(tiny_model(tokenizer), tokenizer, folder)
    (folder / "chat_template.jinja").unlink()
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    said = stopped(recipe(endpoint, f"server.url={echo}", f"student={{model: '{folder}'}}"), tmp_path)
    assert says in said
    assert endpoint.requests == []


def pretrained(endpoint: Endpoint, echo: str, tmp_path: Path) -> Recipe:
    """A recipe whose student is a folder with a model."""
    folder, chosen = tmp_path / "student", recipe(endpoint)
    folder.mkdir()
    tokenizer = build_tokenizer(chosen.environment, ["a", "b"])
    save(tiny_model(tokenizer, positions=4096), tokenizer, folder)
    student = f"student={{model: '{folder}'}}"
    return recipe(endpoint, f"server.url={echo}", student, "sft.epochs=1", "grpo.max_steps=1")


@pytest.mark.long
def test_a_pretrained_student_s_stages_are_predicted_before_they_begin(
    endpoint: Endpoint, echo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    said: list[str] = []
    warned: list[str] = []
    monkeypatch.setattr(announce, "say", said.append)
    monkeypatch.setattr(announce, "warn", warned.append)
    look(pretrained(endpoint, echo, tmp_path), tmp_path)
    *_, last = said
    assert not any("may be killed" in line for line in warned)
    trainings = r"SFT about \d+ s and 2\.\d GB, GRPO about \d+ s and 2\.\d GB"
    answers = r"40 answers about \d+ s, 40 of the untrained student up to about \d+ s"
    assert re.fullmatch(rf"Predicted for this machine: {trainings}, {answers}\.", last)


@pytest.mark.long
def test_a_training_that_needs_more_memory_than_is_free_is_told_with_what_takes_less(
    endpoint: Endpoint, echo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(forecast, "free_memory", lambda: 1e9)
    said: list[str] = []
    monkeypatch.setattr(announce, "warn", said.append)
    chosen = pretrained(endpoint, echo, tmp_path)
    look(chosen, tmp_path)
    lines = [line for line in said if "may be killed" in line]
    assert [line.split()[0] for line in lines] == ["SFT", "GRPO"]
    for line, spec in zip(lines, (chosen.sft, chosen.grpo), strict=True):
        found = re.search(r"\.batch_size=(\d+) and \w+\.gradient_accumulation=(\d+)", line)
        assert found
        assert spec
        assert int(found[1]) * int(found[2]) == spec.batch_size * spec.gradient_accumulation
        assert int(found[1]) < spec.batch_size


@pytest.mark.long
def test_a_prediction_is_made_again_of_rows_that_are_far_longer(
    endpoint: Endpoint, echo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    said: list[str] = []
    monkeypatch.setattr(announce, "say", said.append)
    chosen = pretrained(endpoint, echo, tmp_path)
    preflight = Preflight(chosen, trains_here=True)
    with RunServers(chosen) as servers:
        preflight(RunContext(LocalStore(tmp_path / "artifacts", project="toy"), servers), "questions")
    assert preflight.prediction is not None
    player = chosen.environment.make()
    for letters, again in ((5, []), (500, ["Predicted for rows as long as those that were kept"])):
        said.clear()
        function = {"name": "echo", "arguments": json.dumps({"message": "a" * letters})}
        turn = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
        row = {"messages": [*prompt(player, "a"), turn], "tools": json.dumps(player.schemas)}
        (tmp_path / "kept.jsonl").write_text(json.dumps(row) + "\n")
        preflight.prediction.say_again(tmp_path)
        assert [line.partition(":")[0] for line in said] == again


@pytest.mark.long
def test_a_prediction_is_made_of_turns_as_long_as_the_scripted_policy_s(
    endpoint: Endpoint, echo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    given: list[list[tuple[str, dict[str, Any]]]] = []
    of = forecast.Texts.of
    monkeypatch.setattr(forecast.Texts, "of", lambda *texts: given.append(texts[3]) or of(*texts))
    look(pretrained(endpoint, echo, tmp_path), tmp_path)
    (calls,) = given
    assert {tool for tool, _ in calls} == {"echo"}
    assert len({each["message"] for _, each in calls}) > 1


def test_a_run_goes_on_without_a_prediction_where_the_student_s_first_layers_are_no_model(
    endpoint: Endpoint, echo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def no_model(config: Any, depth: int) -> Any:
        raise ValueError(f"{depth} layers are too few")

    said: list[str] = []
    monkeypatch.setattr(announce, "say", said.append)
    monkeypatch.setattr(forecast, "_model", no_model)
    look(pretrained(endpoint, echo, tmp_path), tmp_path)
    assert said[-1] == "There is no prediction (ValueError: 1 layers are too few)."


def test_a_question_that_the_student_cannot_read_whole_is_told(endpoint: Endpoint, echo: str, tmp_path: Path):
    assert "accepts at most 8" in stopped(
        recipe(endpoint, f"server.url={echo}", "student.build.max_positions=8"), tmp_path
    )
    assert endpoint.requests == []


def test_more_room_for_vllm_than_the_students_context_is_told(
    endpoint: Endpoint, echo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("apprentice.flows.preflight.check_hardware", lambda *_: None)  # vLLM wants a GPU
    roomy = "grpo.generation={engine: vllm, max_model_length: 512}"
    assert "max_model_length is 512, and the student accepts at most 256 tokens.\n→ Set it to 256" in stopped(
        recipe(endpoint, f"server.url={echo}", roomy), tmp_path
    )
    assert endpoint.requests == []


def test_a_dataset_that_refuses_its_configuration_is_told_when_the_recipe_is_read():
    with pytest.raises(Stop, match="max_word_len must be >= min_word_len"):
        load_recipe(TOY, ["environment.settings.config={min_word_len: 9, max_word_len: 3}"])


@pytest.mark.long
def test_a_whole_command_ends_with_cause_and_remedy_and_has_bought_nothing(endpoint: Endpoint, tmp_path: Path):
    with odd_server("forgetful") as url:
        given = {
            "environment": "{name: echo}",
            "guards": "[]",
            "teacher": f"{{base_url: '{endpoint.url}', model: toy}}",
            "server.url": url,
        }
        ended = subprocess.run(
            [
                *(sys.executable, "-c", "from apprentice.flows.cli.app import app; app()", "run", str(TOY)),
                *(part for name, value in given.items() for part in ("--set", f"{name}={value}")),
            ],
            cwd=tmp_path,
            env=os.environ | {"PREFECT_HOME": prefect_home(tmp_path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert_clear_exit(ended)
    assert "the same seed gave two different questions" in ended.stdout + ended.stderr
    assert endpoint.requests == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["evaluate.questions=5"], "with 5 questions p is at least 0.062, and only 6 or more can reach it"),
        (["evaluate.questions=13", "gate.level=0.00018"], "only 14 or more can reach it"),
        (["evaluate.questions=6"], ""),
        (["evaluate.questions=14", "gate.level=0.00018"], ""),
    ],
)
def test_a_run_warns_of_a_gate_that_its_questions_cannot_open(
    given: list[str], said: str, endpoint: Endpoint, echo: str, tmp_path: Path
):
    announce.forget_warnings()
    look(recipe(endpoint, f"server.url={echo}", *given), tmp_path)
    warned = [each for each in announce.warned() if "gate" in each]
    assert len(warned) == bool(said)
    assert said in " ".join(warned)


def test_a_run_warns_of_what_the_audit_found_in_its_environment_before(
    endpoint: Endpoint, echo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    finding = {"check": "reward.exploit", "severity": "error", "found": "'yes' earns 0.5", "evidence": ["seed 1: …"]}
    known = [{"environment": "echo", "settings": {"words": words}} | finding for words in (3, 4)]
    (tmp_path / "known.json").write_text(json.dumps(known))
    monkeypatch.setattr("apprentice.flows.audit.audit.KNOWN", tmp_path / "known.json")
    look(recipe(endpoint, f"server.url={echo}", environment="{name: echo, settings: {words: 4}}"), tmp_path)
    said = capfd.readouterr()
    output = " ".join((said.out + said.err).split())
    assert "echo 4 failed reward.exploit under default settings (error): 'yes' earns 0.5. seed 1: …" in output
    assert "echo 3" not in output
