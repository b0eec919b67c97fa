"""Exported rollouts are in the formats of other tools, and read back they are the same rollouts."""

import json
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.player import Player
from apprentice.tasks.artifacts.foreign.rows import rows_of
from apprentice.tasks.dataset import KnownQuestions, Verifier
from apprentice.tasks.episodes.episode import Episode
from apprentice.tasks.episodes.record import Message, Record
from apprentice.tasks.episodes.thinking import THOUGHT
from apprentice.tasks.formats.conversations import conversation_of
from apprentice.tasks.formats.exports import Format, export
from apprentice.tasks.settings.spec import DatasetSpec
from tests.odd_server import odd_server
from tests.tasks.episodes.test_episode import call
from tests.tasks.test_dataset import Bench
from tests.tasks.test_rescore import ECHO, Patient, bought, guessed

FORMATS: tuple[Format, ...] = ("trl", "atif", "openenv")


def exported(records: list[Record], form: Format, folder: Path) -> DatasetSpec:
    folder.mkdir()
    export(records, form, folder, "toy")
    return DatasetSpec(path=str(folder))


@pytest.mark.parametrize("form", FORMATS)
def test_a_round_trip_gives_the_same_rollouts_to_the_byte(tmp_path: Path, form: Format):
    spec = exported(bought(), form, tmp_path / form)
    with odd_server("sound") as url:
        bench = Bench(tmp_path, url)
        bench(spec)
    ended = [record for record in bought() if not record.failed_at]
    assert bench.taken == ended
    assert len(ended) == 11
    assert bench.refused == []


def played(*turns: Message) -> Record:
    """A guessing game in which 2 is right, as a player with its own spelling plays it."""
    episode = Episode(Player(Patient()), 2)
    for turn in turns:
        episode.step(turn)
    return guessed(2).model_copy(update={"messages": episode.messages, "reward": episode.reward})


def guess(arguments: str, text: str | None = "", **of_call: Any) -> Message:
    return call("guess", arguments) | {
        "content": text,
        "tool_calls": [of_call | {"type": "function", "function": {"name": "guess", "arguments": arguments}}],
    }


RIGHT = guess('{"number": 2}')


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "turns",
    [
        (guess('{"number": 1}'), RIGHT),
        (guess('{"number": 1}', id="a"), guess('{"number": 2}', id="b")),
        (guess('{"number": 1}', "It is this."), guess('{"number": 2}', None)),
        (guess('{"number":1}'), guess('{ "number" : 2 }', id="b")),
        (
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [*guess('{"number": 1}')["tool_calls"], *RIGHT["tool_calls"]],
            },
        ),
        (guess('{"number": 1, "why": "so"}'), guess("{broken"), RIGHT),
        (guess('{"number": 1}'), {"role": "assistant", "content": "I give up."}),
        (guess("[1]"), call("look", "{}"), guess("null")),
        (guess('{"number": 1}') | {"weight": 0}, RIGHT),
        (guess('{"number": 1}', "I call guess(number=2)."), RIGHT),
    ],
)
def test_turns_calls_ids_texts_and_mistakes_are_as_they_were(tmp_path: Path, form: Format, turns: tuple[Message, ...]):
    before = played(*turns)
    ((_, row),) = rows_of(exported([before], form, tmp_path / form))
    after = Verifier(ECHO, KnownQuestions({}, set()), {})(Player(Patient()), row)
    assert after.record == before, after.cause


def test_a_trajectory_is_what_atif_says(tmp_path: Path):
    exported([guessed(1, 2)], "atif", tmp_path / "atif")
    read = json.loads((tmp_path / "atif/trajectory-000000.json").read_text())
    assert (read["schema_version"], read["agent"]["name"], read["agent"]["version"]) == ("ATIF-v1.5", "toy", "echo 1")
    assert [step["step_id"] for step in read["steps"]] == [1, 2, 3, 4]
    assert [step["source"] for step in read["steps"]] == ["system", "user", "agent", "agent"]
    for step in read["steps"][2:]:
        (call,) = step["tool_calls"]
        (result,) = step["observation"]["results"]
        assert isinstance(call["arguments"], dict)
        assert result["source_call_id"] == call["tool_call_id"]
    assert read["final_metrics"]["total_steps"] == 4


def test_an_openenv_record_has_what_its_collector_writes(tmp_path: Path):
    exported([guessed(1, 2)], "openenv", tmp_path / "openenv")
    (read,) = map(json.loads, (tmp_path / "openenv/results.jsonl").read_text().splitlines())
    assert {
        "episode_id",
        "messages",
        "reward",
        "done",
        "tool_trace",
        "metrics",
        "verify_metrics",
        "artifacts",
        "task",
    } < (read.keys())
    assert [each["result"]["done"] for each in read["tool_trace"]] == [False, True]
    assert read["tool_trace"][1]["arguments"] == {"number": 2}
    assert json.loads((tmp_path / "openenv/metadata.json").read_text())["env"] == "toy"


def test_what_failed_is_counted_and_not_exported(tmp_path: Path):
    assert export(bought(), "trl", tmp_path, "toy") == (11, 1)


@pytest.mark.parametrize("form", FORMATS)
def test_thoughts_are_exported_and_taken_for_a_student_that_thinks_alone(tmp_path: Path, form: Format):
    def thinking(record: Record) -> Record:
        turns = [{**each, THOUGHT: "I say it."} if each["role"] == "assistant" else each for each in record.messages]
        return record.model_copy(update={"messages": turns})

    spec = exported([thinking(record) for record in bought()], form, tmp_path / form)
    taken: dict[bool, list[Record]] = {}
    with odd_server("sound") as url:
        for thinks in (True, False):
            (folder := tmp_path / str(thinks)).mkdir()
            bench = Bench(folder, url)
            bench(spec.model_copy(update={"thoughts": thinks}))
            taken[thinks] = bench.taken
    ended = [record for record in bought() if not record.failed_at]
    assert taken[True] == [thinking(record) for record in ended]
    assert taken[False] == ended


@pytest.mark.parametrize(
    ("said", "thought"),
    [
        ({"content": "I say it.", "tool_calls": "the call"}, "I say it."),
        ({"content": [{"type": "thinking", "thinking": "I say it."}], "tool_calls": "the call"}, "I say it."),
        ({"reasoning": "I say it.", "tool_calls": "the call"}, "I say it."),
        ({"content": '<think>I say it.</think><tool_call>{"name": "echo", "arguments": {}}</tool_call>'}, "I say it."),
        ({"tool_calls": "the call"}, ""),
    ],
)
def test_a_foreign_turn_is_read_with_its_thought(said: dict[str, Any], thought: str):
    called = {"function": {"name": "echo", "arguments": "{}"}}
    turn = {"role": "assistant", "content": None} | said
    row = {
        "messages": [
            {"role": "user", "content": "q"},
            turn | ({"tool_calls": [called]} if "tool_calls" in said else {}),
        ]
    }
    (_, read), (_, without) = (conversation_of(row).thinking(is_on).messages for is_on in (True, False))
    assert (read.thought, without.thought) == (thought, "")
    assert [call.name for call in read.tool_calls] == ["echo"]
    assert (read.content or "") == ""
