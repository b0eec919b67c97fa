"""Recorded episodes are scored anew by playing their actions again; those that now go otherwise are left out."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.echo.env import Environment as Echo
from apprentice.envs.echo.text import text_of
from apprentice.envs.player import Player
from apprentice.envs.tools import tools_text
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks import rescore as rescoring
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import COUNTED, Rollouts
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.episode import Episode, prompt
from apprentice.tasks.episodes.record import Record
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.rescore import replay, rescore
from tests.odd_server import odd_server
from tests.tasks.episodes.test_episode import Guess, Settings, call
from tests.tasks.evaluations import published

ECHO = EnvironmentSpec(name="echo")


def echoed(seed: int, said: str, reward: float | None, **given: Any) -> Record:
    """What a teacher said of Echo's text, as `collect` records it."""
    instance = ECHO.make()
    function = {"name": "echo", "arguments": json.dumps({"message": said})}
    turn = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}
    reply = {"role": "tool", "name": "echo", "content": "OK.", "tool_call_id": "1"}
    about = {"environment": "echo 1", "tools": tools_text(instance.tools), "prompt_tokens": 7, "cost_usd": 0.25}
    about |= {"messages": [*prompt(instance, text_of(seed, 3)), turn, reply], "correct": text_of(seed, 3)}
    return Record(seed=seed, reward=reward, **(about | given))


def bought() -> list[Record]:
    """Of twelve episodes every third has half of the text, and one failed at the teacher."""
    records = []
    for seed in range(12):
        whole = text_of(seed, 3)
        said = whole if seed % 3 else whole[: len(whole) // 2]
        records.append(echoed(seed, said, len(said) / len(whole)))
    records[5] = records[5].model_copy(update={"reward": None, "failed_at": "teacher", "correct": ""})
    return records


class Bench:
    """The stage over given records, against a server in this process."""

    def __init__(self, folder: Path, kind: str):
        self.out = folder / "out"
        self.kind = kind
        self.store = LocalStore(folder / "artifacts", "toy")

    def __call__(self, records: list[Record]) -> dict[str, Any]:
        lines = b"".join(record.line() for record in records).decode()
        counts = dict.fromkeys(COUNTED, 0) | {"episodes": len(records), "failed": 0}
        rollouts = published(self.store, Rollouts, "a" * 20, {"rollouts.jsonl": lines}, counts)
        self.out.mkdir()
        with odd_server(self.kind) as url:
            servers = StandingServers(
                {"echo": EnvironmentServer(url=url, sessions=4, patience=0.5)}, None
            )  # there is no teacher
            context = StageContext(RunContext(self.store, servers), "0" * 20, self.out, self.out)
            return rescore.body(context, rollouts, ECHO)

    @property
    def text(self) -> bytes:
        return (self.out / "rollouts.jsonl").read_bytes()

    @property
    def rows(self) -> list[Record]:
        return [Record.model_validate_json(line) for line in self.text.splitlines()]


def test_under_the_same_rewards_every_byte_is_the_same(tmp_path: Path):
    bench = Bench(tmp_path, "sound")
    counts = bench(bought())
    assert bench.text == b"".join(record.line() for record in bought())
    assert (counts["episodes"], counts["failed"], counts["changed"], counts["left_out"]) == (12, 1, 0, 0)
    assert (counts["prompt_tokens"], counts["cost_usd"]) == (12 * 7, 12 * 0.25)
    assert json.loads((bench.out / "left_out.json").read_text()) == []


def test_another_reward_is_all_that_changes(tmp_path: Path):
    bench = Bench(tmp_path, "strict")
    counts = bench(bought())
    halves = [record.seed for record in bought() if record.reward not in (1.0, None)]
    expected = [each.model_copy(update={"reward": 0.0}) if each.seed in halves else each for each in bought()]
    assert bench.rows == expected
    assert counts["changed"] == len(halves) == 4


def test_an_episode_that_is_asked_otherwise_is_left_out_by_name(tmp_path: Path):
    records = bought()
    records[2] = records[2].model_copy(update={"messages": echoed(99, "x", 0.0).messages})
    records[7] = records[7].model_copy(update={"tools": "[]"})
    bench = Bench(tmp_path, "sound")
    counts = bench(records)
    assert [record.seed for record in bench.rows] == [seed for seed in range(12) if seed not in (2, 7)]
    assert json.loads((bench.out / "left_out.json").read_text()) == [
        {"seed": 2, "cause": "another question"},
        {"seed": 7, "cause": "the tools have another schema"},
    ]
    assert (counts["episodes"], counts["left_out"]) == (10, 2)


@pytest.mark.parametrize(("count", "more"), [(20, ""), (21, " and more, all in left_out.json")])
def test_twenty_seeds_are_named_and_then_the_file_with_all(count: int, more: str, monkeypatch: pytest.MonkeyPatch):
    warned: list[str] = []
    monkeypatch.setattr(rescoring.announce, "warn", warned.append)
    left_out = [{"seed": seed, "cause": "another question"} for seed in range(count)]
    rescoring._announce(Counter(episodes=count), Counter(), left_out)
    (said,) = warned
    assert said.endswith(f"18, 19{more}.")


def test_where_more_than_rewards_changed_nothing_is_rescored(tmp_path: Path):
    with pytest.raises(Stop, match=r"10 of 12 recorded episodes do not fit .* seed 0: another question"):
        Bench(tmp_path, "stubborn")(bought())


def test_a_server_that_is_away_stops_and_costs_no_episode(tmp_path: Path):
    bench = Bench(tmp_path, "deaf")
    with pytest.raises(Stop, match="out of reach"):
        bench(bought())


class Patient(Guess):
    """Guessing in which other rules may hold: what is replied, how many turns there are, what a guess earns."""

    def __init__(self, wrong: str = "Wrong.", turns: int = 3, each: float = 0.0):
        super().__init__(Settings(dataset="chain_sum"))
        self._wrong, self._turns, self._each = wrong, turns, each

    @property
    def max_turns(self) -> int:
        return self._turns

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: Your guess.

        Returns:
            Whether it is higher or lower.
        """
        right = super().guess(number) == "Right."
        self.reward = (self.reward or 0.0) + (0.0 if right else self._each)
        return "Right." if right else self._wrong


def guessed(*numbers: int, turns: int = 3) -> Record:
    episode = Episode(Player(Patient(turns=turns)), 2)
    for number in numbers:
        episode.step(call("guess", {"number": number}))
    tools = tools_text(Player(Patient()).tools)
    return Record(seed=2, environment="echo 1", messages=episode.messages, tools=tools, reward=episode.reward)


@pytest.mark.parametrize(
    ("numbers", "environment", "reward", "differs"),
    [
        ((1, 2), Patient(), 1.0, ""),
        ((1, 1, 1), Patient(each=0.25), 0.25, ""),
        ((1, 1, 2), Patient(wrong="Too low."), None, "another answer in turn 1"),
        ((1, 1, 2), Patient(turns=2), None, "the episode ends after 2 turns"),
        ((1, 1, 1), Patient(turns=4), None, "the episode goes on where it ended"),
    ],
)
def test_an_episode_of_several_turns_is_replayed_to_its_end_or_to_where_it_differs(
    numbers: tuple[int, ...], environment: Patient, reward: float | None, differs: str
):
    record, found = replay(Player(environment), guessed(*numbers), ECHO)
    assert found == differs
    assert differs or record.reward == reward


def test_an_episode_that_failed_is_not_played(chain_sum: EnvironmentSpec):
    failed = guessed(1).model_copy(update={"failed_at": "environment", "reward": None, "environment": "echo 0"})
    assert replay(Player(Patient(wrong="Else.")), failed, ECHO) == (
        failed.model_copy(update={"environment": "echo 1"}),
        "",
    )


def test_what_was_taken_at_its_word_has_no_seed_to_be_played_under():
    word = guessed(1).model_copy(update={"seed": -3, "verified": "no", "environment": "echo 0"})
    assert replay(Player(Patient()), word, ECHO) == (word.model_copy(update={"environment": "echo 1"}), "")


@pytest.mark.parametrize(
    ("earlier", "rewards_only"),
    [
        ({"version": "1"}, True),
        ({"version": "1.2"}, True),
        ({"version": "1.1"}, False),
        ({"version": "2"}, False),
        ({"version": "11"}, False),
        ({"version": "1", "settings": {"words": 4}}, False),
        ({"version": "1", "name": "catch"}, False),
    ],
)
def test_the_second_number_of_a_version_is_that_of_its_rewards(
    monkeypatch: pytest.MonkeyPatch, earlier: dict[str, Any], rewards_only: bool
):
    monkeypatch.setattr(Echo, "version", "1.1")
    before = {"name": "echo", "settings": {}, "code": "other", "revision": ""} | earlier
    assert EnvironmentSpec(name="echo").differs_in_rewards_only(before) == rewards_only


def test_a_mixture_differs_in_rewards_only_where_each_part_does(monkeypatch: pytest.MonkeyPatch):
    settings = {"parts": {"a": {"name": "echo"}, "b": {"name": "catch"}}}
    before = EnvironmentSpec(name="multi", settings=settings).model_dump(mode="json")
    monkeypatch.setattr(Echo, "version", "1.1")
    assert EnvironmentSpec(name="multi", settings=settings).differs_in_rewards_only(before)
    monkeypatch.setattr(Echo, "version", "2.1")
    assert not EnvironmentSpec(name="multi", settings=settings).differs_in_rewards_only(before)
