"""A teacher judges the rows that no environment can play: two answers that agree count as right, nothing else does."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from apprentice.envs.echo.text import text_of
from apprentice.envs.tools import tools_text
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import COUNTED, RelabelledRollouts, Rollouts
from apprentice.tasks.dataset import REPORT, take_rollouts
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.record import Record
from apprentice.tasks.files.json_lines import read_rows
from apprentice.tasks.filter import filter_rollouts
from apprentice.tasks.open_questions import does_the_same
from apprentice.tasks.relabel import DIFFER, SEVERAL, relabel
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.endpoint import TeacherSpec, ThoughtsSpec
from apprentice.tasks.settings.spec import CollectSpec
from tests.endpoint import KEY, Endpoint, call
from tests.tasks.evaluations import published
from tests.tasks.test_dataset import EVALUATED, Bench, bench, chat, folder_of
from tests.tasks.test_rescore import ECHO

assert bench  # a fixture

PRICED = {"prices": {"prompt": 1.0, "completion": 1.0}}
DEAR = {"prices": {"prompt": 0.0, "completion": 1000.0}, "max_tokens": 2}
"""An answer of two tokens costs 0.002 USD, and no more is reserved for it."""


def said(text: str) -> dict[str, str]:
    return call("echo", json.dumps({"message": text}))


def open_row(question: str, answer: str | dict[str, str], place: int = 1, **given: Any) -> Record:
    """A row as `take_rollouts` keeps it at its word."""
    player = ECHO.make()
    function = said(answer) if isinstance(answer, str) else answer
    turn = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    reply = {"role": "tool", "name": "echo", "content": ""}
    about = {"environment": "echo 1", "tools": tools_text(player.tools), "verified": "no", "reward": 1.0}
    about |= {"messages": [*prompt(player, question), turn, reply], "seed": -place}
    return Record.model_validate(about | given)


class Judge:
    """The stage, with an endpoint that answers each question by its own list, the last answer for ever."""

    def __init__(self, folder: Path):
        self.store = LocalStore(folder / "artifacts", "toy")
        self.answers: dict[str, list[Any]] = {}
        self.endpoint = Endpoint(self._turn)
        self.teacher: dict[str, Any] = {"model": "toy", "patience": 0.3, "timeout": 5}
        self.spec = CollectSpec(asks=2)

    def _turn(self, request: dict[str, Any]) -> Any:
        ahead = self.answers[request["messages"][1]["content"]]
        answer = ahead.pop(0) if len(ahead) > 1 else ahead[0]
        return [said(answer)] if isinstance(answer, str) else answer

    def rollouts(self, *records: Record) -> Rollouts:
        lines = b"".join(record.line() for record in records).decode()
        counts = dict.fromkeys(COUNTED, 0) | {"episodes": len(records), "failed": 0}
        return published(self.store, Rollouts, "r" * 19 + str(len(records)), {"rollouts.jsonl": lines}, counts)

    def __call__(self, *records: Record, **teacher: Any) -> RelabelledRollouts:
        run = RunContext(self.store, StandingServers({}, self.endpoint.url))
        spec = TeacherSpec.model_validate(self.teacher | teacher)
        return relabel(run, self.spec, spec, ECHO, self.rollouts(*records))

    def rows(self, made: RelabelledRollouts) -> list[Record]:
        return [Record.model_validate(row) for row in read_rows(self.store.fetch(made) / "rollouts.jsonl")]

    @property
    def asked(self) -> list[str]:
        return [request["messages"][1]["content"] for request in self.endpoint.requests]


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Judge]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    made = Judge(tmp_path)
    yield made
    made.endpoint.shutdown()


class Case(NamedTuple):
    answers: list[Any]
    """What the teacher says, one answer after another."""
    said: str
    """What the row says afterwards."""
    player: str
    cause: str
    requests: int
    counts: tuple[int, int, int]
    """Confirmed, replaced, undecided."""


FILTERED = (400, {}, {"error": {"message": "content policy", "code": "content_filter"}})
CASES = {
    "the same answer": Case(["a"], "a", "", "", 1, (1, 0, 0)),
    "another one, twice": Case(["b", "b"], "b", "toy", "", 2, (0, 1, 0)),
    "two others": Case(["b", "c"], "a", "", DIFFER, 2, (0, 0, 1)),
    "the row's at the second time": Case(["b", "a"], "a", "", DIFFER, 2, (0, 0, 1)),
    "no call": Case([[]], "a", "", "no valid tool call in 2 answers; the last one had: no tool call", 2, (0, 0, 1)),
    "no call at the second time": Case(["b", []], "a", "", "no valid tool call in 2 answers", 3, (0, 0, 1)),
    "asked again for a call": Case([[], "a"], "a", "", "", 2, (1, 0, 0)),
    "a filter of the endpoint": Case([FILTERED], "a", "", "refused with status 400", 1, (0, 0, 1)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_row_is_right_where_two_answers_agree(judge: Judge, case: Case):
    judge.answers["spell it"] = case.answers
    judge.answers["known"] = ["b"]
    made = judge(open_row("spell it", "a"), open_row("known", "b", 2))
    row, other = judge.rows(made)
    assert json.loads(row.messages[2]["tool_calls"][0]["function"]["arguments"]) == {"message": case.said}
    assert (row.seed, row.player.partition(" at ")[0]) == (-1, case.player)
    assert row.cause.startswith(case.cause)
    assert (row.reward, row.verified) == ((None, "no") if case.cause else (1.0, "teacher"))
    assert bool(row.failed_at) == bool(case.cause)
    assert judge.asked.count("spell it") == case.requests
    assert (made.confirmed - 1, made.replaced, made.undecided) == case.counts
    assert (other.reward, other.verified) == (1.0, "teacher")
    assert (made.episodes, made.failed) == (2, case.counts[2])


def test_the_teacher_is_sent_the_environments_prompt_and_tools(judge: Judge):
    judge.answers["spell it"] = ["a"]
    row = open_row("spell it", "a")
    judge(row)
    (request,) = judge.endpoint.requests
    assert request["messages"] == row.messages[:2]
    assert (request["tools"], request["tool_choice"]) == (ECHO.make().schemas, "required")


def test_what_somebody_has_verified_stays_and_what_no_environment_can_reply_to_is_left_out(judge: Judge):
    two = open_row("twice", "a").messages
    rows = [
        open_row("played", "x", 1, seed=5, verified="yes", reward=0.5),
        open_row("by a person", "x", 2, verified="person", reward=0.0),
        open_row("failed", "x", 3, verified="no", failed_at="teacher", reward=None),
        open_row("twice", "a", 4, messages=[*two, *two[2:]]),
    ]
    made = judge(*rows)
    *others, several = judge.rows(made)
    assert others == rows[:3]
    assert (several.failed_at, several.cause, several.reward) == ("teacher", SEVERAL, None)
    assert judge.asked == []
    report = json.loads((judge.store.fetch(made) / REPORT).read_text())
    assert [(row["rows"], row["count"]) for row in report["counts"]] == [(f"not judged, left out: {SEVERAL}", 1)]
    assert [row["where"] for row in report["left_out"]] == ["twice"]


def test_a_question_of_several_rows_is_asked_once_and_each_row_is_judged(judge: Judge, capfd: pytest.CaptureFixture):
    judge.answers["spell it"] = ["a"]
    made = judge(*(open_row("spell it", answer, place) for place, answer in enumerate("abaa", 1)), **PRICED)
    assert judge.asked == ["spell it"] * 2, "the second time for the row that differs"
    assert (made.confirmed, made.replaced, made.undecided) == (3, 1, 0)
    assert (made.prompt_tokens, made.completion_tokens) == (20, 4)
    assert made.cost_usd == pytest.approx(24e-6)
    shown = " ".join(capfd.readouterr().out.split())
    for line in ("4 rows that no seed verifies", "the teacher gives the same answer 3", "which it gives twice 1"):
        assert line in shown
    assert "2 requests, 20 prompt tokens" in shown


def test_of_a_log_that_grows_only_new_questions_are_asked(judge: Judge):
    judge.answers |= {"one": ["a"], "two": ["b"], "three": ["c"]}
    first = [open_row("one", "a"), open_row("two", "x", 2)]
    judge(*first)
    assert sorted(judge.asked) == ["one", "two", "two"]
    grown = judge(*first, open_row("three", "c", 3), open_row("one", "y", 4))
    assert sorted(judge.asked[3:]) == ["one", "three"], "the first one again, since a new row has another answer"
    assert (grown.confirmed, grown.replaced) == (2, 2)
    judge(*first, open_row("three", "c", 3), open_row("one", "y", 4))
    assert len(judge.asked) == 5, "an artifact that exists is not made again"


def many(number: int) -> list[Record]:
    return [open_row(f"question {place}", "a", place) for place in range(1, number + 1)]


def test_a_budget_that_is_used_up_stops_and_the_remedy_asks_what_is_missing(judge: Judge):
    rows = many(6)
    judge.answers = {f"question {place}": ["a"] for place in range(1, 7)}
    with pytest.raises(Stop, match=r"The budget of 0\.005 USD is used up\. 2 answers") as stop:
        judge(*rows, budget_usd=0.005, **DEAR)
    assert stop.value.remedy == "Raise teacher.budget_usd and run again: only what is missing is asked."
    assert len(judge.asked) == 2
    made = judge(*rows, budget_usd=1.0, **DEAR)
    assert made.confirmed == 6
    assert sorted(judge.asked) == sorted(row.messages[1]["content"] for row in rows), "each was asked once"


def test_an_endpoint_that_goes_away_loses_nothing(judge: Judge):
    rows = many(4)
    judge.answers = {f"question {place}": ["a" if place < 3 else 500] for place in range(1, 5)}
    with pytest.raises(Stop) as stop:
        judge(*rows)
    assert "2 answers of the teacher are kept" in stop.value.cause
    assert stop.value.remedy.startswith("Run again")
    judge.answers = {f"question {place}": ["a"] for place in range(1, 5)}
    asked = len(judge.asked)
    assert judge(*rows).confirmed == 4
    assert sorted(judge.asked[asked:]) == ["question 3", "question 4"]


def test_a_server_without_a_parser_for_calls_stops_and_once_it_has_one_all_is_asked(judge: Judge):
    rows = many(5)
    judge.answers = {f"question {place}": [[]] for place in range(1, 6)}
    with pytest.raises(Stop, match="On 3 of 5 questions the teacher gave no valid call") as stop:
        judge(*rows)
    assert "collect.max_refused" in stop.value.remedy
    judge.answers = {f"question {place}": ["a"] for place in range(1, 6)}
    assert judge(*rows).confirmed == 5


def test_a_bare_row_of_a_student_that_thinks_has_the_teachers_thought(judge: Judge):
    message = {"role": "assistant", "content": None, "reasoning_content": "It is a."}
    message |= {"tool_calls": [{"id": "1", "type": "function", "function": said("a")}]}
    usage = {"prompt_tokens": 10, "completion_tokens": 9, "total_tokens": 19}
    thoughtful = 200, {}, {"choices": [{"index": 0, "finish_reason": "stop", "message": message}], "usage": usage}
    own = open_row("thought", "a", 2)
    own.messages[2]["reasoning_content"] = "So a."
    judge.answers |= {"bare": [thoughtful], "thought": [thoughtful]}
    thoughts = ThoughtsSpec(max_tokens=50, instruction="Think.").model_dump()
    made = judge(open_row("bare", "a"), own, thoughts=thoughts)
    bare, kept = judge.rows(made)
    assert (bare.messages[2]["reasoning_content"], bare.player) == ("It is a.", "toy at api.openai.com")
    assert kept.messages == own.messages
    assert made.confirmed == 2
    assert judge.endpoint.requests[0]["messages"][0]["content"].endswith("Think.")


TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": {"x": {}, "y": {}}}},
    }
    for name in ("f", "g")
]


def turn(*functions: tuple[str, str], text: str = "") -> dict[str, Any]:
    calls = [{"function": {"name": name, "arguments": arguments}} for name, arguments in functions]
    return {"role": "assistant", "content": text, "tool_calls": calls}


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (turn(("f", '{"x": 1, "y": 2}')), turn(("f", '{"y":2,"x":1.0}')), True),
        (turn(("f", '{"x": "\\u0061"}')), turn(("f", '{"x": "a"}')), True),
        (turn(("f", '{"x": 1}'), text="So:"), turn(("f", '{"x": 1}')), True),
        (turn(("f", '{"x": 1}')), turn(("g", '{"x": 1}')), False),
        (turn(("f", '{"x": 1}')), turn(("f", '{"x": true}')), False),
        (turn(("f", '{"x": 1}')), turn(("f", '{"x": "1"}')), False),
        (turn(("f", '{"x": null}')), turn(("f", "{}")), False),
        (turn(("f", '{"x": [1, 2]}')), turn(("f", '{"x": [2, 1]}')), False),
        (turn(("f", '{"x": 1}')), turn(("f", '{"x": 1}'), ("f", '{"x": 2}')), False),
        (turn(("f", "{")), turn(("f", "{")), False),
        (turn(("f", '{"z": 1}')), turn(("f", '{"z": 1}')), False),
        (turn(text="I cannot refund it."), turn(text="<think>Old.</think> I cannot  refund it."), True),
        (turn(text="I cannot refund it."), turn(text="I refund it."), False),
        (turn(text="1"), turn(("f", '{"x": 1}')), False),
        (turn(), turn(), False),
    ],
)
def test_two_turns_are_one_answer_by_what_they_do(one: Any, other: Any, is_same: bool):
    assert does_the_same(one, other, TOOLS) is does_the_same(other, one, TOOLS) is is_same


def test_a_question_of_the_evaluation_is_never_asked_of_the_teacher(bench: Bench, judge: Judge, tmp_path: Path):
    hidden = {"prompt": f"Unlike others: {text_of(EVALUATED, 3).upper()}", "completion": "x"}
    named = {"prompt": text_of(EVALUATED, 3), "completion": "x"}
    spec = folder_of(tmp_path, chat(1), hidden, named, {"prompt": "Else", "completion": "x"})
    taken = take_rollouts(bench.context.run, spec, ECHO, bench.questions, "keep")
    judge.answers["Else"] = ["x"]
    run = RunContext(bench.context.run.store, StandingServers({}, judge.endpoint.url))
    made = relabel(run, CollectSpec(), TeacherSpec.model_validate(judge.teacher), ECHO, taken)
    assert judge.asked == ["Else"]
    assert (made.episodes, made.confirmed) == (2, 1)
    report = json.loads((run.store.fetch(made) / REPORT).read_text())
    assert [row["cause"] for row in report["left_out"]] == ["its question stands in the evaluation set"] * 2
    assert [row["rows"] for row in report["counts"]][-1] == "the teacher gives the same answer"
    kept = filter_rollouts(run, made, bench.questions)
    assert (kept.kept, kept.dropped) == (2, {})
