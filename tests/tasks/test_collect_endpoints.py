"""What a collection makes of endpoints as public bug reports describe them: OpenAI, Azure, OpenRouter, Anthropic,
Gemini, DeepSeek, Mistral, Groq, xAI, Ollama, vLLM, SGLang, llama.cpp and LiteLLM.

Every endpoint here answers each question right, so an episode that is not kept is our loss, unless the row says so.
A row is collected twice: once from the endpoint as it is, and once after it has come to its senses.
"""

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import tenacity

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.analysis.outcomes import why_dropped
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.collect import collect_shard
from apprentice.tasks.endpoints import refusals
from apprentice.tasks.endpoints import teacher as teacher_client
from apprentice.tasks.endpoints.dialect import dialect_of
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.endpoint import TeacherSpec
from apprentice.tasks.settings.spec import CollectSpec, Window
from tests.endpoint import KEY, Endpoint
from tests.tasks.endpoint_answers import (
    First,
    OneQuestion,
    Said,
    answer,
    call,
    error,
    good,
    needs_back,
    question,
    refuses,
    refuses_both,
    right,
    usage,
    with_function,
)

ECHO = EnvironmentSpec(name="echo", settings={"words": 2})
WORDLE = EnvironmentSpec(name="wordle", settings={"words": "wordle", "candidates": 2, "rules": "apprentice"})
SIZE = 12
PRICES = {"prompt": 1.0, "cached": 0.1, "completion": 10.0}
Json = dict[str, Any]


@dataclass
class Row:
    """An endpoint, and what a collection makes of it."""

    said: Callable[[Json], Said]
    kept: int = SIZE
    refused: int = 0
    """Episodes that are final because the endpoint refused their question."""
    stop: str = ""
    """What the collection stops with; the second one then has every episode."""
    lost: int = 0
    """Episodes that failed at the teacher itself."""
    usd: float | None = None
    noted: str = ""
    most: int = 3 * SIZE
    """Requests of the first collection."""
    teacher: Json = field(default_factory=dict)
    environment: EnvironmentSpec = ECHO


TPD = "Rate limit reached for model `x` on tokens per day (TPD): Limit 100000, Used 99991. Please try again in 7h12m."
XAI = "Your team has either used all available credits or reached its monthly spending limit."
AZURE = {"code": "content_filter", "param": "prompt", "innererror": {"code": "ResponsibleAIPolicyViolation"}}
SIGNED = "Function call is missing a thought_signature in functionCall parts."
THOUGHT = {"extra_content": {"google": {"thought_signature": "abc=="}}}
UNKNOWN = (
    "'messages.2': for 'role:assistant' the following must be satisfied[('messages.2': property '{}' is unsupported)]"
)
EXTRA = {"detail": [{"type": "extra_forbidden", "loc": ["body", "parallel_tool_calls"], "msg": "Extra inputs"}]}
NO_CHOICES = {"id": "gen-1", "choices": None, "error": {"message": "Provider returned error", "code": 429}}

GEMINI = "You exceeded your current quota, please check your plan and billing details. Please retry in 36.7s."
PER_DAY = [
    {"violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier", "quotaValue": "50"}]},
    {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "36s"},
]
NO_PARSER = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'

ACCOUNT = {
    "402 of a router": First(
        error(402, "Insufficient credits. Add more using https://x.com/credits", code=402), after=6
    ),
    "402 of the maker": First(error(402, "Insufficient Balance", type="unknown_error"), after=6),
    "the quota as 429": First(error(429, "You exceeded your current quota.", code="insufficient_quota"), after=6),
    "the balance as 400": First(error(400, "Your credit balance is too low to access the API."), after=6),
    "a proxy's budget as 400": First(error(400, "Budget has been exceeded!", type="budget_exceeded"), after=6),
    "a key's limit as 403": First(error(403, "Key limit exceeded (monthly limit)."), after=6),
    "credits as 403": First((403, {}, {"code": "permission-denied", "error": XAI}), after=6),
    "billing as 403": First(
        error(403, "This API method requires billing to be enabled.", status="PERMISSION_DENIED"), after=6
    ),
    "a day's limit": First((429, {"Retry-After": "25920"}, {"error": {"message": TPD}}), after=6),
    "a day's limit without a header": First(error(429, TPD, code="rate_limit_exceeded"), after=6),
    "a key that was withdrawn": First(error(401, "Incorrect API key provided", code="invalid_api_key"), after=6),
    "a key in other words": First((401, {}, {"detail": "Unauthorized"}), after=6),
    "at the first request": First(error(402, "Insufficient credits.")),
    "a month's limit": First(
        error(
            400,
            "You have reached your specified API usage limits. You will regain access on 2027-12-01 at 00:00 UTC.",
            type="invalid_request_error",
        ),
        after=6,
    ),
    "a hard limit": First(
        error(400, "Billing hard limit has been reached", code="billing_hard_limit_reached"), after=6
    ),
    "a day's limit in seconds": First(
        error(429, "Requests have exceeded the limit. Please retry after 86400 seconds.", code="429"), after=6
    ),
    "a free tier's day": First(error(429, GEMINI, status="RESOURCE_EXHAUSTED", code=429, details=PER_DAY), after=6),
    "an account that is closed": First(
        error(
            403,
            "Your account is not active, please check your billing details on our website.",
            code="account_deactivated",
        ),
        after=6,
    ),
    "an address that is not allowed": First(error(401, "IP not authorized"), after=6),
}
QUESTION = {
    "a content filter, the first question": OneQuestion(error(400, "The response was filtered.", **AZURE)),
    "a content filter, a later question": OneQuestion(error(400, "The response was filtered.", **AZURE), 6),
    "moderation as 403": OneQuestion(error(403, "requires moderation", metadata={"reasons": ["violence"]}), 4),
    "risk": OneQuestion(error(400, "Content Exists Risk", code="invalid_request_error"), 4),
    "inappropriate": OneQuestion(
        error(400, "Input data may contain inappropriate content.", code="data_inspection_failed"), 4
    ),
    "too long": OneQuestion(
        error(400, "This model's maximum context length is 128 tokens.", code="context_length_exceeded"), 4
    ),
    "too long, as vLLM says it": OneQuestion(
        (
            400,
            {},
            {
                "object": "error",
                "message": "This model's maximum context length is 128 tokens. However, you requested 200 tokens",
                "type": "BadRequestError",
                "code": 400,
            },
        ),
        4,
    ),
    "too long, as 413": OneQuestion(error(413, "Request too large"), 4),
    "a filter within a 200": OneQuestion(answer({}, "content_filter"), 4),
    "too long, as a proxy says it": OneQuestion(
        error(400, "litellm.ContextWindowExceededError: prompt is too long: 208310 tokens > 200000 maximum"), 4
    ),
    "nobody knows why": OneQuestion(error(400, "Something is odd about this one."), 4),
    "legal reasons": OneQuestion(error(451, "Unavailable For Legal Reasons"), 4),
}
MOMENT = {
    "500": First(500, every=4),
    "502 as HTML": First((502, {"Content-Type": "text/html"}, b"<html>Bad gateway</html>"), every=4),
    "503 while a model is loaded": First(error(503, "Loading model", type="unavailable_error"), 3),
    "529": First(error(529, "Overloaded", type="overloaded_error"), every=4),
    "429 that ends": First((429, {"Retry-After": "0.2"}, {"error": {"message": "Too many requests"}}), every=5),
    "429 in milliseconds": First((429, {"retry-after-ms": "200"}, {"error": {"message": "slow down"}}), every=5),
    "429 with its end in the text": First(error(429, "Rate limit reached. Please try again in 120ms."), every=5),
    "an error in a 200": First((200, {}, NO_CHOICES), every=4),
    "an error in a 200 alone": First((200, {}, {"error": {"message": "Upstream overloaded", "code": 502}}), every=4),
    "no choices": First((200, {}, {"id": "1", "choices": [], "usage": usage(1, 0)}), every=4),
    "no body": First((200, {}, b""), every=4),
    "half a body": First("garbled", every=4),
    "a page": First((200, {"Content-Type": "text/html"}, b"<html>Sign in</html>"), 2),
    "a cut": First("cut", every=4),
    "finish_reason error": First(lambda body: answer({"content": ""}, "error"), every=4),
    "a generation that failed": First(error(400, "Failed to call a function.", code="tool_use_failed"), every=4),
    "a tool call that was not parsed": First(error(500, "Failed to parse input at pos 52"), every=4),
    "520 as HTML": First((524, {"Content-Type": "text/html"}, b"<html>A timeout occurred</html>"), every=4),
    "too busy": First(
        (503, {}, {"error": "Model too busy, unable to get response in less than 60 second(s)"}), every=4
    ),
    "429 that ends at a date": First(
        (429, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, {"error": {"message": "slow"}}), every=4
    ),
    "a limit in other words": First(
        (
            429,
            {},
            {"object": "error", "message": "Requests rate limit exceeded", "type": "rate_limited", "code": "1300"},
        ),
        every=4,
    ),
    "an answer cut at its limit": First(
        lambda body: answer({"tool_calls": [call(body, function={"name": "echo", "arguments": '{"mess'})]}, "length"),
        every=4,
    ),
    "message null": First(
        (200, {}, {"id": "1", "choices": [{"index": 0, "finish_reason": None, "message": None}]}), every=4
    ),
    "capacity": First((498, {}, {"error": {"message": "Flex tier capacity exceeded"}}), every=4),
}
FORMS = {
    "arguments as an object": Row(with_function(arguments=lambda _, given: given)),
    "arguments with a line break after them": Row(with_function(arguments=lambda _, given: f" {json.dumps(given)}\n")),
    "arguments as text of text": Row(with_function(arguments=lambda _, given: json.dumps(json.dumps(given)))),
    "function_call": Row(lambda body: answer({"function_call": call(body)["function"]}, "function_call")),
    "an id as a number": Row(lambda body: answer({"tool_calls": [call(body, id=7)]}), environment=WORDLE),
    "no id": Row(lambda body: answer({"tool_calls": [call(body, id=None)]}), environment=WORDLE),
    "an empty id": Row(lambda body: answer({"tool_calls": [call(body, id="")]}), environment=WORDLE),
    "no type": Row(lambda body: answer({"tool_calls": [call(body, type=None)]})),
    "finish_reason stop": Row(lambda body: answer({"tool_calls": [call(body)]}, "stop")),
    "one call twice": Row(lambda body: answer({"tool_calls": [call(body, id="1"), call(body, id="2")]}), most=SIZE),
    "text beside the call": Row(lambda body: answer({"content": "I call the tool.", "tool_calls": [call(body)]})),
    "text in parts": Row(
        lambda body: answer({"content": [{"type": "text", "text": "So."}], "tool_calls": [call(body)]})
    ),
    "reasoning beside the call": Row(lambda body: answer({"reasoning_content": "Hmm.", "tool_calls": [call(body)]})),
    "thoughts in the text": Row(lambda body: answer({"content": "<think>x</think>", "tool_calls": [call(body)]})),
    "keys that nobody knows": Row(
        lambda body: answer({"refusal": None, "annotations": [], "tool_calls": [call(body)]}, x=1)
    ),
    "usage as text": Row(
        lambda body: answer({"tool_calls": [call(body)]}, usage={"prompt_tokens": "120", "completion_tokens": "12"})
    ),
    "other calls after the first": Row(
        lambda body: answer(
            {
                "tool_calls": [
                    call(body),
                    call(body, id="2", function={"name": "echo", "arguments": '{"message": "other"}'}),
                ]
            }
        ),
        noted="2 calls, the first counts",
    ),
    "no usage": Row(lambda body: answer({"tool_calls": [call(body)]}, usage=None)),
    "a signature that must come back": Row(
        needs_back(
            lambda each: each["tool_calls"][0].get("extra_content") == THOUGHT["extra_content"],
            lambda body: {"tool_calls": [call(body, **THOUGHT)]},
            (400, {}, [{"error": {"code": 400, "message": SIGNED, "status": "INVALID_ARGUMENT"}}]),
        ),
        environment=WORDLE,
    ),
    "reasoning that must come back": Row(
        needs_back(
            lambda each: each.get("reasoning_content") == "Hmm.",
            lambda body: {"reasoning_content": "Hmm.", "tool_calls": [call(body)]},
            error(400, "Missing `reasoning_content` field in the assistant message at message index 2."),
        ),
        environment=WORDLE,
    ),
    "reasoning that must not come back": Row(
        lambda body: (
            error(400, UNKNOWN.format("reasoning"))
            if any("reasoning" in each for each in body["messages"])
            else answer({"reasoning": "Hmm.", "tool_calls": [call(body)]})
        ),
        environment=WORDLE,
        noted="messages go back without reasoning",
    ),
    "an id that must be the one given": Row(
        needs_back(
            lambda each: each["tool_calls"][0]["id"] == "D681PevKs",
            lambda body: {"tool_calls": [call(body, id="D681PevKs")]},
            error(400, "Tool call id has to be defined in a tool message"),
        ),
        environment=WORDLE,
    ),
}
DIALECTS = {
    "no parallel_tool_calls": Row(
        refuses(
            "parallel_tool_calls",
            error(
                400,
                "Unsupported parameter: 'parallel_tool_calls' is not supported with this model.",
                param="parallel_tool_calls",
            ),
        ),
        noted="without parallel_tool_calls",
    ),
    "no parallel_tool_calls, as 422": Row(
        refuses("parallel_tool_calls", (422, {}, EXTRA)), noted="without parallel_tool_calls"
    ),
    "no temperature": Row(
        refuses("temperature", error(400, "`temperature` is deprecated for this model.")), noted="without temperature"
    ),
    "only the default temperature": Row(
        refuses(
            "temperature",
            error(
                400,
                "Unsupported value: 'temperature' does not support 0.5. Only the default (1) value is supported.",
                param="temperature",
                code="unsupported_value",
            ),
            lambda value: value != 1,
        ),
        noted="without temperature",
        teacher={"temperature": 0.5},
    ),
    "max_completion_tokens": Row(
        refuses(
            "max_tokens",
            error(
                400,
                "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead.",
                param="max_tokens",
            ),
        ),
        noted="max_completion_tokens in place of max_tokens",
    ),
    "no required tool_choice": Row(
        refuses(
            "tool_choice",
            error(400, "Thinking mode does not support this tool_choice"),
            lambda value: value == "required",
        ),
        noted="tool_choice auto",
    ),
    "no tool_choice": Row(
        refuses("tool_choice", error(400, "tool_choice is not supported")), noted="without tool_choice"
    ),
    "no parallel_tool_calls, in other words": Row(
        refuses("parallel_tool_calls", error(400, "Unrecognized request argument supplied: parallel_tool_calls")),
        noted="without parallel_tool_calls",
    ),
    "any in place of required": Row(
        refuses(
            "tool_choice",
            error(400, "tool_choice: Input should be 'auto' or 'none'"),
            lambda value: value == "required",
        ),
        noted="tool_choice auto",
    ),
    "two parameters": Row(refuses_both, noted="without"),
    "temperature off in the recipe": Row(refuses("temperature", 500), teacher={"temperature": None}),
    "a field that the recipe takes out": Row(
        refuses("parallel_tool_calls", 500), teacher={"request": {"parallel_tool_calls": None}}
    ),
}
MONEY = {
    "reasoning beside completion": Row(
        lambda body: answer(
            {"tool_calls": [call(body)]},
            usage=usage(279, 6, 279 + 6 + 889, completion_tokens_details={"reasoning_tokens": 889}),
        ),
        usd=SIZE * (279 + 895 * 10) / 1e6,
    ),
    "thoughts in the total only": Row(
        lambda body: answer({"tool_calls": [call(body)]}, usage=usage(100, 10, 400)), usd=SIZE * (100 + 300 * 10) / 1e6
    ),
    "details larger than their sum": Row(
        lambda body: answer(
            {"tool_calls": [call(body)]}, usage=usage(100, 10, completion_tokens_details={"reasoning_tokens": 200})
        ),
        usd=SIZE * (100 + 210 * 10) / 1e6,
    ),
    "cached tokens at the top": Row(
        lambda body: answer(
            {"tool_calls": [call(body)]}, usage=usage(279, 20, prompt_cache_hit_tokens=256, prompt_cache_miss_tokens=23)
        ),
        usd=SIZE * (23 + 25.6 + 200) / 1e6,
    ),
    "cached tokens in the details": Row(
        lambda body: answer(
            {"tool_calls": [call(body)]}, usage=usage(279, 20, prompt_tokens_details={"cached_tokens": 256})
        ),
        usd=SIZE * (23 + 25.6 + 200) / 1e6,
    ),
    "refusals cost nothing": Row(First(error(500, "no"), every=3), usd=SIZE * (120 + 120) / 1e6),
}
STOPS = {
    "every question is filtered": Row(
        lambda _: error(400, "The response was filtered.", **AZURE), stop="The response was filtered"
    ),
    "nobody knows why, at the end": Row(
        First(error(400, "Something is odd."), after=SIZE - 3),
        stop="refused the last 3 questions .*Something is odd",
        most=3 * SIZE,
    ),
    "nobody knows why, each time": Row(lambda _: error(400, "Something is odd."), stop="Something is odd", most=40),
    "no parser": Row(lambda _: error(400, NO_PARSER), stop="--enable-auto-tool-choice", most=40),
    "no such model": Row(
        lambda _: error(404, "The model `m` does not exist", code="model_not_found"), stop="teacher.model", most=9
    ),
    "no such path": Row(
        lambda _: (404, {"Content-Type": "text/html"}, b"<html>Not Found</html>"), stop="teacher.base_url", most=9
    ),
    "words in place of calls": Row(
        lambda body: answer({"content": json.dumps(right(body))}, "stop"), stop="gave no valid call", most=10 * SIZE
    ),
    "away for longer than the patience": Row(lambda _: 503, stop="has not answered for 2 s", most=10 * SIZE),
}
SAID = "[Cc]redit|[Bb]alance|quota|Budget|limit|[Bb]illing|key|Unauthorized|not active|IP|refused the last"
ROWS = (
    {
        f"account: {name}": Row(
            said,
            stop=SAID,
            most=SIZE,
        )
        for name, said in ACCOUNT.items()
    }
    | {f"question: {name}": Row(said, kept=SIZE - 1, refused=1) for name, said in QUESTION.items()}
    | {f"moment: {name}": Row(said) for name, said in MOMENT.items()}
    | {f"stop: {name}": row for name, row in STOPS.items()}
    | {f"form: {name}": row for name, row in FORMS.items()}
    | {f"dialect: {name}": row for name, row in DIALECTS.items()}
    | {f"money: {name}": row for name, row in MONEY.items()}
)


FIRST = 3
"""Rows of a kind that the quick tests try."""


def marked(rows: dict[str, Row]) -> Iterator[Any]:
    """The rows; those of a kind of which some were tried are long tests."""
    tried: Counter[str] = Counter()
    for name, row in rows.items():
        kind = name.partition(":")[0]
        tried[kind] += 1
        yield pytest.param(row, id=name, marks=[pytest.mark.long] if tried[kind] > FIRST else [])


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, EnvironmentServer]]:
    with (
        local_server("apprentice.envs.serving.serve", "echo", "--max-sessions", "64") as echo,
        local_server("apprentice.envs.serving.serve", "wordle", "--max-sessions", "64") as wordle,
    ):
        yield {name: EnvironmentServer(url=url, sessions=3) for name, url in (("echo", echo), ("wordle", wordle))}


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of a twentieth of a second, and nothing that is known of another test's endpoint."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(refusals, "_backoff", tenacity.wait_random_exponential(multiplier=0.05, max=1.0))
    monkeypatch.setattr(teacher_client, "PAUSE", 0.05)
    dialect_of.cache_clear()


def collected_from(
    endpoint: Endpoint, servers: dict[str, EnvironmentServer], folder: Path, environment: EnvironmentSpec, **given: Any
) -> list[Json]:
    """The episodes of a collection in a folder, where an earlier one may have stopped."""
    settings = {"model": "m", "timeout": 5, "patience": 2, "max_tokens": 64, "prices": PRICES, "budget_usd": 1.0}
    teacher = TeacherSpec.model_validate(settings | {"base_url": endpoint.url} | given)
    for name in ("out", "scratch"):
        (folder / name).mkdir(exist_ok=True)
    run = RunContext(LocalStore(folder / "store", project="toy"), StandingServers(servers, endpoint.url))
    context = StageContext(run, "0" * 20, folder / "out", folder / "scratch")
    collect_shard.body(context, CollectSpec(), teacher, environment, Window(start=0, size=SIZE))
    return [json.loads(line) for line in (folder / "out/rollouts.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("row", marked(ROWS))
def test_an_endpoint_that_answers_right_loses_no_row_and_no_cent(
    row: Row, servers: dict[str, EnvironmentServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    quick(monkeypatch)
    endpoint = Endpoint(row.said)

    def collected() -> list[Json]:
        return collected_from(endpoint, servers, tmp_path, row.environment, **row.teacher)

    if row.stop:
        with pytest.raises(Stop, match=row.stop) as stopped:
            collected()
        assert f"of {SIZE} episodes are finished and kept" in str(stopped.value)
        assert KEY not in str(stopped.value)
        assert len(endpoint.requests) <= row.most
        finished = int(re.findall(rf"(\d+) of {SIZE} episodes are finished", str(stopped.value))[0])
        endpoint = endpoint.replaced(good)
        dialect_of.cache_clear()
        rows = collected()
        assert len(endpoint.requests) == SIZE - finished
    else:
        rows = collected()
        assert len(endpoint.requests) <= row.most
    why = Counter(why_dropped(each, set()) or "kept" for each in rows)
    failed = {"failed at the teacher's endpoint": row.refused, "failed at the teacher": row.lost}
    assert why == Counter({"kept": row.kept} | {name: number for name, number in failed.items() if number})
    if row.usd is not None:
        assert sum(each["cost_usd"] for each in rows) == pytest.approx(row.usd)
    assert row.noted in rows[-1]["noted"]


def test_a_question_that_is_never_answered_is_asked_in_two_runs_and_then_left_out(
    servers: dict[str, EnvironmentServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    quick(monkeypatch)
    endpoint = Endpoint(OneQuestion(error(503, "try later"), 3))

    def collected() -> list[Json]:
        return collected_from(endpoint, servers, tmp_path, ECHO, patience=0.3)

    with pytest.raises(Stop, match=r"(?s)gave no answer in 1 episodes.*not answered then either is left"):
        collected()
    rows = collected()
    assert Counter(row["failed_at"] for row in rows) == {"": SIZE - 1, "teacher's endpoint": 1}
    assert len({question(request) for request in endpoint.requests}) == SIZE, "no other question is asked a second time"


@pytest.mark.long
def test_an_endpoint_that_goes_away_is_not_asked_again_what_it_has_answered(
    servers: dict[str, EnvironmentServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    quick(monkeypatch)
    waiting, together = set[str](), threading.Barrier(servers["echo"].sessions)

    def said(body: Json) -> Said:
        if len(endpoint.requests) <= 4:
            return good(body)
        if question(body) not in waiting:
            waiting.add(question(body))
            together.wait(timeout=4)  # else one session may wait alone, as for a question that is never answered
        return error(503, "away")

    endpoint = Endpoint(said)
    with pytest.raises(Stop, match="has not answered for"):
        collected_from(endpoint, servers, tmp_path, ECHO)
    bought = Counter(question(request) for request in endpoint.requests[:4])
    assert not bought & Counter(question(request) for request in endpoint.requests[4:])


def test_questions_that_are_never_answered_are_no_questions_if_they_are_many(
    servers: dict[str, EnvironmentServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    quick(monkeypatch)

    def half(body: Json) -> Said:
        return error(503, "try later") if crc32(question(body).encode()) % 2 else good(body)

    endpoint = Endpoint(half)
    for _ in range(3):
        with pytest.raises(Stop):
            collected_from(endpoint, servers, tmp_path, ECHO, patience=0.3)


def test_a_window_that_was_begun_at_another_address_goes_on_only_if_it_is_said_to_be_the_same_model(
    servers: dict[str, EnvironmentServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    quick(monkeypatch)
    one, other = Endpoint(OneQuestion(error(402, "no credit"), 6)), Endpoint(good)
    with pytest.raises(Stop, match="no credit"):
        collected_from(one, servers, tmp_path, ECHO)
    with pytest.raises(Stop, match=r"(?s)begun at .*teacher\.moved=true; if not, set teacher\.provider"):
        collected_from(other, servers, tmp_path, ECHO)
    assert not other.requests
    rows = collected_from(other, servers, tmp_path, ECHO, moved=True)
    assert len(rows) == SIZE
    assert len(other.requests) < SIZE, "what was bought is kept"
