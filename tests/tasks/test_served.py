"""A model behind an OpenAI-compatible endpoint is examined like one that lies here."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import tenacity

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.pool import open_pools
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.types import BaseStudent, Questions
from apprentice.tasks.endpoints import refusals
from apprentice.tasks.engine.run import StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.episode import Episode
from apprentice.tasks.episodes.record import Message, read_episodes
from apprentice.tasks.episodes.rendering import parse
from apprentice.tasks.evaluate import evaluate, evaluate_endpoint
from apprentice.tasks.models.checkpoints import load_model, save
from apprentice.tasks.models.student_model import built_model
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.players.local_model import LocalModel
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.endpoint import EndpointSpec, Prices
from apprentice.tasks.settings.spec import BuiltStudent, EvaluateSpec
from tests.endpoint import Endpoint, call
from tests.tasks.evaluations import published
from tests.tasks.test_evaluate import question
from tests.tokenizers import build_tokenizer

SPEC = EvaluateSpec(questions=6, max_new_tokens=8, batch_size=4)


class ServedStudent(ThreadingHTTPServer):
    """A checkpoint behind /v1/chat/completions, as vLLM would serve it: it renders what it is sent, greedily."""

    daemon_threads = True

    def __init__(self, checkpoint: Path):
        self.tokenizer = load_tokenizer(checkpoint)
        self.model = load_model(checkpoint).eval()
        self.one_at_a_time = threading.Lock()
        self.requests: list[dict[str, Any]] = []
        super().__init__(("127.0.0.1", 0), Answering)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def answer(self, request: dict[str, Any]) -> Message:
        import torch

        self.requests.append(request)
        prompt = self.tokenizer.apply_chat_template(
            request["messages"],
            tools=request.get("tools"),
            add_generation_prompt=True,
            return_dict=False,
            **request.get("chat_template_kwargs", {}),
        )
        with self.one_at_a_time, torch.inference_mode():
            out = self.model.generate(
                torch.tensor([prompt]), max_new_tokens=request["max_tokens"], do_sample=request["temperature"] > 0
            )
        return parse(self.tokenizer, out[0, len(prompt) :].tolist(), prompt, request.get("tools") or [])


class Answering(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        served = self.server
        assert isinstance(served, ServedStudent)
        message = served.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        body = json.dumps({"choices": [{"message": message}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


def shake(checkpoint: Path) -> None:
    """Gives a model large weights: an untrained one with tied embeddings repeats its last token for ever."""
    import torch

    torch.manual_seed(0)
    model = load_model(checkpoint)
    with torch.no_grad():
        for weights in model.parameters():
            weights.normal_(0.0, 0.5)
    save(model, load_tokenizer(checkpoint), checkpoint)


class Case:
    """An untrained student in a store, and six questions."""

    def __init__(self, context: StageContext, task: EnvironmentSpec):
        self.context = context
        self.task = task
        self.store = context.run.store
        instance = task.make()
        texts = ["What is the result of 4 + 7?", "What is the result of 12 - 9?"]
        with self.store.staging() as folder:
            build = BuiltStudent(hidden_size=32, intermediate_size=32, layers=1, heads=2, max_positions=1024)
            tokenizer = build_tokenizer(task, texts)
            counts = save(built_model(build, tokenizer, 0), tokenizer, folder) | {"stage": "base"}
            shake(folder)
            self.student = self.store.publish(BaseStudent, "s" * 20, folder, counts, {})
        rows = [
            {"purpose": "evaluate", "seed": seed, "question": question(task, seed), "used": seed < 6}
            for seed in range(8)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        counted = {"collect": 0, "grpo": 0, "evaluate": 6, "dropped_from_grpo": 0}
        self.questions = published(self.store, Questions, "q" * 20, {"questions.jsonl": lines}, counted)
        assert instance.max_turns == 1

    def at(self, url: str, server: EnvironmentServer, max_failed: float = 0.05, **given: Any) -> dict[str, Any]:
        """What the evaluation of an endpoint counts."""
        spec = SPEC.model_copy(update={"max_failed": max_failed})
        self.context.run.servers = StandingServers({"reasoning_gym": server}, url)
        endpoint = EndpointSpec(**({"base_url": url, "model": "toy", "patience": 1.0} | given))
        return evaluate_endpoint.body(self.context, spec, endpoint, self.task, self.questions, "today")


@pytest.fixture
def case(context: StageContext, chain_sum: EnvironmentSpec, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-test")
    return Case(context, chain_sum)


def test_a_served_student_is_sent_the_prompt_of_training_and_says_what_it_says_here(
    case: Case, server: EnvironmentServer
):
    context = case.context
    here = evaluate.body(context, SPEC, case.student, case.task, case.questions, 0)
    locally = [record.messages for record in read_episodes(context.out)]
    (context.scratch / "episodes.jsonl").unlink()
    (context.scratch / "settings.json").unlink()
    served = ServedStudent(case.store.fetch(case.student))
    there = case.at(served.url, server, serves_student=True)
    assert [record.messages for record in read_episodes(context.out)] == locally
    assert any(messages[-1]["content"] for messages in locally)
    assert {**here, "model": ""} == {**there, "model": ""}
    assert served.requests[0]["chat_template_kwargs"] == {"enable_thinking": False}
    assert "return" not in served.requests[0]["tools"][0]["function"], "servers drop or refuse it"


def test_an_invalid_call_is_what_the_model_said_and_is_not_asked_for_again(case: Case, server: EnvironmentServer):
    endpoint = Endpoint([call(arguments="{")])
    counted = case.at(endpoint.url, server)
    assert (counted["n"], counted["format_compliance"], counted["accuracy"]) == (6, 0.0, 0.0)
    assert len(endpoint.requests) == 6
    assert endpoint.requests[0]["tool_choice"] == "auto"
    assert endpoint.requests[0]["temperature"] == 0.0


def test_what_an_endpoint_costs_is_counted(case: Case, server: EnvironmentServer):
    counted = case.at(Endpoint([call()]).url, server, prices=Prices(prompt=1.0, completion=10.0))
    assert counted["cost_usd"] == pytest.approx(6 * (10 * 1.0 + 2 * 10.0) / 1e6)


def test_an_endpoint_that_goes_away_judges_nobody_and_the_next_run_goes_on(case: Case, server: EnvironmentServer):
    """Three answers, then none any more: no zero stands for an answer that never came."""
    away = Endpoint([call()], [call()], [call()], 503)
    with pytest.raises(Stop, match="finished episodes are kept"):
        case.at(away.url, EnvironmentServer(url=server.url, sessions=1))
    assert not list(case.context.out.iterdir())
    back = Endpoint([call()])
    assert case.at(back.url, server)["n"] == 6
    assert len(back.requests) == 3


@pytest.mark.long
def test_questions_that_only_get_errors_are_asked_in_two_runs_and_then_count_as_failed(
    case: Case, server: EnvironmentServer, monkeypatch: pytest.MonkeyPatch
):
    """As `transformers serve` answers where a model's own call is no JSON: status 500, however often."""
    monkeypatch.setattr(refusals, "_backoff", tenacity.wait_random_exponential(multiplier=0.05, max=0.2))

    def said(request: dict[str, Any]) -> Any:
        asked = question_of(request)
        if len(bad) < 2 and asked not in bad:
            bad.append(asked)
        if asked in answered and not cut:  # and closes a connection that was kept
            cut.append(asked)
            return "cut"
        answered.extend({asked} - {*bad})
        return 500 if asked in bad else [call()]

    bad: list[str] = []
    answered: list[str] = []
    cut: list[str] = []
    endpoint = Endpoint(said)
    with pytest.raises(Stop, match=r"(?s)no answer in 2 episodes.*4 of 6 episodes are kept.*Run again: only these"):
        case.at(endpoint.url, server, patience=0.5)
    before = len(endpoint.requests)
    with pytest.raises(Stop, match=r"none in the run before either.*\n.*Raise evaluate.max_failed"):
        case.at(endpoint.url, server, patience=0.5)
    counted = case.at(endpoint.url, server, patience=0.5, max_failed=0.4)
    assert (counted["n"], counted["broken"]) == (6, 2)
    again = [question_of(request) for request in endpoint.requests[before:]]
    assert len([each for each in again if each not in bad]) == 2 + len(cut) == 3, (
        "in each run one that was answered tells whether it still answers"
    )
    broken = [record for record in read_episodes(case.context.out) if record.broken]
    assert [(record.reward, "status 500" in record.broken) for record in broken] == 2 * [(None, True)]


def question_of(request: dict[str, Any]) -> str:
    return request["messages"][1]["content"]


def test_a_lost_environment_judges_nobody_and_the_next_run_goes_on(case: Case, server: EnvironmentServer):
    gone = EnvironmentServer(url="http://127.0.0.1:9", patience=0.5)
    case.context.run.servers = StandingServers({"reasoning_gym": gone}, None)
    with pytest.raises(Stop, match="The evaluation lost the environment"):
        evaluate.body(case.context, SPEC, case.student, case.task, case.questions, 0)
    case.context.run.servers = StandingServers({"reasoning_gym": server}, None)
    assert evaluate.body(case.context, SPEC, case.student, case.task, case.questions, 0)["n"] == 6


def given_up() -> None:
    """Every server of this process's pools is out of reach from now on."""
    for pool in list(open_pools):
        pool.breaker.stop()


class Killing(Endpoint):
    """The environment is lost while the fourth answer is on its way."""

    def finish_request(self, request: Any, client_address: Any) -> None:
        if len(self.requests) == 3:
            given_up()
        super().finish_request(request, client_address)


def kept_in(context: StageContext) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (context.scratch / "episodes.jsonl").read_text().splitlines()]


def test_an_environment_lost_in_the_middle_is_no_zero_of_an_endpoint(case: Case, server: EnvironmentServer):
    with pytest.raises(Stop, match=r"lost the environment.*3 of 6 episodes are kept"):
        case.at(Killing([call()]).url, EnvironmentServer(url=server.url, sessions=1))
    assert [(each["place"], each["broken"]) for each in kept_in(case.context)] == [(0, ""), (1, ""), (2, "")]
    assert not list(case.context.out.iterdir())
    rest = Endpoint([call()])
    assert case.at(rest.url, server)["n"] == 6
    assert len(rest.requests) == 3


def test_an_environment_lost_in_the_middle_is_no_zero_of_a_checkpoint(
    case: Case, server: EnvironmentServer, monkeypatch: pytest.MonkeyPatch
):
    class Losing(LocalModel):
        batches = 0

        def reply(self, episodes: list[Episode]) -> list[Message]:
            self.batches += 1
            if self.batches == 2:
                given_up()
            return super().reply(episodes)

    case.context.run.servers = StandingServers({"reasoning_gym": server}, None)
    given = SPEC, case.student, case.task, case.questions, 0
    with monkeypatch.context() as patched:
        patched.setattr("apprentice.tasks.evaluate.LocalModel", Losing)
        # a call, so that the environment is needed: what this student says holds none
        patched.setattr("apprentice.tasks.players.protocols.parse", lambda *_: as_call())
        with pytest.raises(Stop, match=r"lost the environment.*4 of 6 episodes are kept"):
            evaluate.body(case.context, *given)
    assert all(each["reward"] is not None for each in kept_in(case.context))
    assert not list(case.context.out.iterdir())
    assert evaluate.body(case.context, *given)["n"] == 6


def as_call() -> Message:
    function = {"name": "answer", "arguments": '{"answer": "1"}'}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def test_sampled_answers_are_those_of_the_seed(case: Case, server: EnvironmentServer):
    case.context.run.servers = StandingServers({"reasoning_gym": server}, None)
    sampled = EvaluateSpec(questions=6, max_new_tokens=8, batch_size=4, decoding="sampled", temperature=2.0)

    def said(seed: int) -> list[Any]:
        evaluate.body(case.context, sampled, case.student, case.task, case.questions, seed)
        for file in case.context.scratch.iterdir():
            file.unlink()
        return [record.messages for record in read_episodes(case.context.out)]

    first = said(0)
    assert said(0) == first
    assert said(1) != first


def test_an_answer_without_a_choice_is_no_answer(case: Case, server: EnvironmentServer):
    """Some gateways say with status 200 that a server is overloaded: asked again, and never a zero."""
    hiccup = Endpoint(None, [call()])
    counted = case.at(hiccup.url, server, patience=30.0)
    assert (counted["n"], counted["format_compliance"], len(hiccup.requests)) == (6, 1.0, 7)
