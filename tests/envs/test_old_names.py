"""An environment that others wrote for the version before plays as it did, and the log says its new names once."""

import inspect
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from apprentice.envs.base import EnvironmentSettings, ToolEnvironment
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.echo.text import text_of
from apprentice.envs.old_names import _log
from apprentice.envs.player import Player, facade_of
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer, SessionLost
from apprentice.tasks.collect import play_one
from apprentice.tasks.episodes.episode import Episode, turn_of
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.players.play import play_alone, plays_of
from apprentice.tasks.players.protocols import PROTOCOLS
from apprentice.tasks.rollouts.live_rollouts import LiveRollouts
from apprentice.tasks.rollouts.rollout_modes import by_factory
from apprentice.tasks.rollouts.streams import Stream


def old_classes() -> tuple[Any, Any, Any]:
    """Classes that override and call every old name that one of an author has a reason for."""

    class Old(ToolEnvironment):
        Settings = EnvironmentSettings
        version = "1"
        streams = {"share": 1.0, "length": 0.5}  # noqa: RUF012

        @property
        def instructions(self) -> str:
            return "Say the text again."

        def reset(self, *, seed: int, **row: Any) -> str:
            self.state = self._guarded(lambda session: session.server.url)  # type: ignore[attr-defined]
            return self._start(seed, words=2).read(str, "text")  # type: ignore[attr-defined]

        def echo(self, message: str) -> str:
            """Say the text again.

            Args:
                message: The text.
            """
            reply = self._act({"message": message})  # type: ignore[attr-defined]
            self.reward, self.done, self.correct = reply.score, True, reply.read(str, "text")
            return "OK."

        def _scores(self) -> dict[str, float | None]:
            return {"share": self.reward, "length": 0.5}

        def _traits(self, seed: int, question: str) -> dict[str, int | str]:
            return super()._traits(seed, question) | {"letters": len(question)}  # type: ignore[misc]

        @classmethod
        def _version_under(cls, settings: dict[str, Any]) -> str:
            return super()._version_under(settings) + ".old"  # type: ignore[misc]

        @classmethod
        def _code_under(cls, settings: dict[str, Any]) -> str:
            return "0" * 20

        @classmethod
        def _completed(cls, settings: dict[str, Any], session: Any) -> dict[str, Any]:
            return settings | {"asked": True}

        @classmethod
        def _under(cls, settings: Any) -> Any:
            return Louder

        def _give_up(self) -> None:
            super()._give_up()  # type: ignore[misc]
            self.reward = (self.reward or 0.0) + 0.25

    class Louder(Old):
        def _scores(self) -> dict[str, float | None]:
            return super()._scores() | {"length": 1.0}

    class Both(Old):
        """A mixture of its own."""

        def __init__(self, settings: Any, session: Any = None):
            super().__init__(settings, session)
            self.made = [Louder(settings, session), Louder(settings, session)]
            for each, label in zip(self.made, ("even", "odd"), strict=True):
                vars(each)["label"] = label

        def _part(self, seed: int) -> Any:
            return self.made[seed % 2]

        def _parts(self) -> list[Any]:
            return self.made

    return Old, Louder, Both


Old, Louder, Both = old_classes()
OLD = EnvironmentSpec(name=f"{__name__}:Old")
ANSWERS = {seed: text_of(seed, 2) for seed in range(4)}


@pytest.fixture(scope="module")
def there() -> Iterator[EnvironmentServer]:
    with local_server("apprentice.envs.serving.serve", "echo", "--max-sessions", "8") as url:
        yield EnvironmentServer(url=url, sessions=4)


class Repeating:
    """A teacher and a policy that repeats its question."""

    changes = ()

    def reply(self, given: Any, *rest: Any) -> Any:
        if rest:
            return turn_of("echo", {"message": given[-1]["content"]})
        return [turn_of("echo", {"message": episode.question}) for episode in given]


def test_it_is_known_by_its_own_version_and_code():
    assert (OLD.version, OLD.code) == ("1.old", "0" * 20)
    assert Old.completed({}, None) == {"asked": True}


def test_a_teacher_plays_it_and_its_record_is_whole(there: EnvironmentServer):
    teacher: Any = Repeating()
    with EnvironmentPool(OLD, there, 2) as pool:
        played = dict(pool.map(lambda player, seed: play_one(player, seed, teacher, OLD).record, ANSWERS))
    assert {seed: record.correct for seed, record in played.items()} == ANSWERS
    assert {(record.reward, record.failed_at, record.environment) for record in played.values()} == {
        (1.0, "", f"{OLD.name} 1.old")
    }


def test_trl_is_given_its_tools_alone_and_grpo_its_rewards(there: EnvironmentServer):
    with EnvironmentPool(OLD, there, 2) as pool, LiveRollouts(pool) as rollouts:
        _, how = by_factory(OLD.make(), rollouts)
        shown = how["environment_factory"]()
        assert [name for name, _ in inspect.getmembers(type(shown), inspect.isfunction)] == ["echo", "reset"]
        assert shown.reset(seed=1, question="Which?", prompt=[]) == "Which?"
        rollouts.begin([{"seed": seed, "question": ANSWERS[seed]} for seed in (0, 1)])
        rollouts.step({0: turn_of("echo", {"message": ANSWERS[0]}), 1: {"role": "assistant", "content": "No."}})
        rollouts.wait()
        rewards = [Stream(name=name).of(each) for each in rollouts.players for name in ("share", "length")]
    assert rewards == [1.0, 1.0, 0.25, 1.0]


def test_an_evaluation_has_its_slices_and_the_parts_of_its_reward(there: EnvironmentServer):
    records: list[EvaluatedEpisode] = []
    policy: Any = Repeating()
    rows = [{"seed": seed, "question": text} for seed, text in ANSWERS.items()]
    with EnvironmentPool(OLD, there, 2) as pool:
        play_alone(pool, plays_of(rows, 1), policy, PROTOCOLS["parity"], records.append)
    assert {record.reward for record in records} == {1.0}
    assert {record.scores for record in records} == {'{"share": 1.0, "length": 1.0}'}
    assert {record.question: record.traits for record in records} == {
        text: f'{{"letters": {len(text)}}}' for text in ANSWERS.values()
    }


def test_a_mixture_that_others_wrote_is_played_by_its_parts():
    mixture = Player(Both(EnvironmentSettings()))
    assert [part.label for part in mixture.parts()] == ["even", "odd"]
    assert mixture.part(3) is mixture.parts()[1]
    assert mixture.part(3).slices(3, "ab") == {"environment": "odd", "letters": 2}


def test_a_script_may_use_a_player_as_the_environment_that_it_was(there: EnvironmentServer):
    with EnvironmentPool(OLD, there, 1) as pool:
        (environment,) = pool.players
        old: Any = environment
        assert (old.reset(seed=2), old.echo(ANSWERS[2])) == (ANSWERS[2], "OK.")
        assert (old._scores(), old._traits(1, "ab")) == ({"share": 1.0, "length": 1.0}, {"letters": 2})
        assert (old._ask(1), old._part(1) is old, old._parts()) == (ANSWERS[1], True, [old])
        with pytest.raises(AttributeError, match="nothing"):
            _ = old.nothing
        old._close()


def test_each_old_name_is_logged_once_with_the_new_one(caplog: pytest.LogCaptureFixture):
    _log.cache_clear()
    with caplog.at_level(logging.WARNING):
        _, louder, _ = old_classes()
        for _ in range(2):
            with pytest.raises(SessionLost):
                louder(EnvironmentSettings()).reset(seed=1)
    said = [record.getMessage() for record in caplog.records]
    assert sum("Old: _traits is called slices now" in each for each in said) == 1
    assert sum("Louder: _guarded is called session.guarded now" in each for each in said) == 1
    assert len(said) == len(set(said))


def test_what_has_new_names_logs_nothing(caplog: pytest.LogCaptureFixture):
    _log.cache_clear()
    with caplog.at_level(logging.WARNING):
        for name in ("number", "echo", "wordle", "catch"):
            player = EnvironmentSpec(name=name).make()
            player.give_up()
            assert (player.tools, player.scores(), player.parts()) == (player.tools, player.scores(), [player])
        assert SimpleNamespace(**vars(type(facade_of(player)))).schemas == player.schemas
    assert caplog.records == []


def test_an_episode_of_an_old_environment_is_lost_with_its_server():
    player = Player(Louder(EnvironmentSettings()))
    with pytest.raises(SessionLost, match="made without a session"):
        Episode(player, 1)
