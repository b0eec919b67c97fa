"""Rows that no seed verifies wait for a person: written to be read and filled in, and taken by that verdict."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.echo.text import text_of
from apprentice.envs.player import Player
from apprentice.tasks.dataset import KnownQuestions, Verifier
from apprentice.tasks.episodes.record import Record
from apprentice.tasks.files.json_lines import read_rows
from apprentice.tasks.formats.waiting_rows import answer_of, waiting_row, write_waiting
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.rescore import replay
from apprentice.tasks.settings.spec import DatasetSpec
from tests.tasks.episodes.test_episode import call
from tests.tasks.test_dataset import EVALUATED, Bench, bench, chat, folder_of
from tests.tasks.test_rescore import ECHO

assert bench  # a fixture

OPEN = {"prompt": "A question of nobody", "completion": "an answer"}
WAITS = "it waits for a verdict: set right to true or false"


def waiting(bench: Bench, tmp_path: Path, *rows: Any, name: str = "waiting.jsonl") -> Path:
    """What a person is given of these rows."""
    bench(folder_of(tmp_path, *rows), "keep")
    write_waiting((each for each in bench.taken if each.verified == "no"), tmp_path / name)
    return tmp_path / name


def filled(file: Path, *verdicts: Any) -> DatasetSpec:
    rows = read_rows(file)
    assert [row["right"] for row in rows] == [None] * len(verdicts)
    lines = [json.dumps(row | {"right": right}) for row, right in zip(rows, verdicts, strict=True)]
    file.write_text("\n".join(lines) + "\n")
    return DatasetSpec(path=str(file))


def test_a_row_that_waits_is_read_by_a_person_first(bench: Bench, tmp_path: Path):
    hidden = {"prompt": text_of(EVALUATED, 3), "completion": "x"}
    file = waiting(bench, tmp_path, chat(1), OPEN, hidden, OPEN, {"prompt": "Else", "completion": "x", "reward": 7})
    (row,) = read_rows(file)  # neither what is verified or refused, nor the same row again
    assert [*row] == ["question", "answer", "right", "messages", "tools", "environment"]
    assert (row["question"], row["answer"]) == ("A question of nobody", 'echo(message="an answer")')
    assert row["right"] is None
    assert row["tools"] == ECHO.make().schemas
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.read_bytes()
    with pytest.raises(Stop, match="exists, and may have verdicts"):
        write_waiting(bench.taken[1:], file)
    assert file.read_bytes() == before
    assert write_waiting([], tmp_path / "none.jsonl") == 0
    assert not (tmp_path / "none.jsonl").exists()


@pytest.mark.parametrize(
    ("right", "reward", "cause"),
    [
        (True, 1.0, ""),
        (False, 0.0, ""),
        (None, None, WAITS),
        ("yes", None, 'it is "yes", not true'),
        (1, None, "it is 1"),
    ],
)
def test_a_row_counts_as_the_person_says_and_without_a_verdict_it_is_left_out(
    bench: Bench, tmp_path: Path, right: Any, reward: float | None, cause: str
):
    file = waiting(bench, tmp_path, chat(1), OPEN)
    before = bench.taken[1]
    spec = filled(file, right)
    file.write_text(file.read_text() + json.dumps(chat(2)) + "\n")
    bench(spec, "keep")
    judged = [each for each in bench.taken if each.seed < 0]
    assert [left["cause"].startswith(cause) for left in bench.refused] == [True] * bool(cause)
    if not cause:
        (record,) = judged
        expected = {"seed": -1, "verified": "person", "reward": reward}
        assert record == before.model_copy(update=expected)
        report = json.loads((bench.out / "verification.json").read_text())["counts"]
        assert f"judged by a person: {'right' if right else 'wrong'}" in [row["rows"] for row in report]
    else:
        assert judged == []
        assert [left["field"] for left in bench.refused] == ["right"]


def test_without_keep_no_verdict_is_taken_and_the_remedy_names_it(bench: Bench, tmp_path: Path):
    spec = filled(waiting(bench, tmp_path, chat(1), OPEN), True)
    with pytest.raises(Stop, match="no seed is known") as stop:
        bench(spec, "drop")
    assert "collect.unverified=keep" in stop.value.remedy
    bench(spec, "keep")
    assert [record.reward for record in bench.taken] == [1.0]


@pytest.mark.parametrize("right", [True, False, None])
def test_where_the_question_is_known_by_then_the_environment_decides(right: bool | None):
    known = KnownQuestions({"a question of nobody": 4}, set())
    row = waiting_row(Record.model_validate(open_record())) | {"right": right}
    found = Verifier(ECHO, known, {})(Answering(), row)
    assert (found.cause, found.record and found.record.reward, found.by_person) == ("", 1.0, False)


def open_record(**given: Any) -> dict[str, Any]:
    bare = Verifier(ECHO, KnownQuestions({}, set()), {})(Answering(), OPEN).record
    assert bare is not None
    return bare.model_dump() | given


class Answering(Player):
    """An Echo whose only question is that of nobody."""

    def __init__(self) -> None:
        super().__init__(ECHO.make().environment)

    def ask(self, seed: int) -> str:
        self.environment.reward, self.environment.done = 0.0, False
        return "A question of nobody"

    def act(self, name: str, arguments: Any) -> str:
        self.environment.reward, self.environment.done = 1.0, True
        return "OK."


@pytest.mark.parametrize("right", ["a text of others", None, 3])
def test_a_column_of_that_name_in_rows_of_others_means_nothing(bench: Bench, tmp_path: Path, right: Any):
    bench(folder_of(tmp_path, OPEN, chat(1)), "keep")
    before = (bench.out / "rollouts.jsonl").read_bytes()
    (tmp_path / "again").mkdir()
    bench(folder_of(tmp_path / "again", OPEN | {"right": right}, chat(1, right=right)), "keep")
    assert (bench.out / "rollouts.jsonl").read_bytes() == before


def test_a_row_of_a_mixture_still_names_its_environment():
    part = {"name": "echo", "settings": {"words": 1}}
    mixed = EnvironmentSpec(name="multi", settings={"parts": {"one": part, "two": part | {"settings": {"words": 2}}}})
    row = waiting_row(Record.model_validate(open_record(environment="two: echo 1"))) | {"right": True}
    found = Verifier(mixed, KnownQuestions({}, set()), {})(mixed.make(), row)
    assert found.record is not None
    assert (found.record.environment, found.record.reward, found.by_person) == ("two: echo 1", 1.0, True)


@pytest.mark.parametrize("by", ["person", "teacher", "no"])
def test_nobody_else_than_the_environment_is_asked_again_where_rewards_change(by: str):
    record = Record.model_validate(open_record(seed=-1, verified=by, reward=1.0))
    assert replay(ECHO.make(), record, ECHO) == (record, "")


@pytest.mark.parametrize(
    ("turns", "text"),
    [
        ([call("guess", {"number": 3}), call("guess", {"number": 4})], "guess(number=3) → guess(number=4)"),
        ([{"role": "assistant", "content": "I cannot."}], "I cannot."),
        ([call("f", {"a": "x", "b": [1]}) | {"content": "So:"}], 'So: f(a="x", b=[1])'),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}], "f({)"),
    ],
)
def test_an_answer_is_shown_as_a_short_text(turns: list[Any], text: str):
    messages = [{"role": "user", "content": "?"}]
    for each in turns:
        for one in each.get("tool_calls", []):
            if not isinstance(one["function"]["arguments"], str):
                one["function"]["arguments"] = json.dumps(one["function"]["arguments"])
        messages += [each, {"role": "tool", "name": "f", "content": "OK."}]
    assert answer_of(messages) == text
