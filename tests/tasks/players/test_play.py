"""Who plays an examination: batches stay full where episodes end at different turns, and nothing is mixed up."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from apprentice.envs.player import Player
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.reasoning_gym.env import Settings
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Session, SessionLost
from apprentice.tasks.episodes.episode import Episode
from apprentice.tasks.episodes.record import EvaluatedEpisode, Message
from apprentice.tasks.players.play import Endpoint, Play, play_alone, play_batched, plays_of
from apprentice.tasks.players.protocols import PROTOCOLS
from apprentice.tasks.settings.spec import EvaluateSpec
from tests.tasks.episodes.test_episode import Guess, call


class Places:
    """As many toy environments as a test wants; a pool without a server."""

    together = EnvironmentPool.together

    def __init__(self, size: int):
        self.players = [Player(Guess(Settings(dataset="chain_sum"))) for _ in range(size)]

    def playable(self, idle: list[int], wanted: int) -> list[int]:
        return idle[:wanted]

    def map(self, play: Any, items: list[Play]) -> Iterator[tuple[Play, EvaluatedEpisode]]:
        return ((item, play(self.players[0], item)) for item in items)


class Counting:
    """Says in turn n of an episode that the number is n: right for seed n in its n-th turn."""

    def __init__(self):
        self.batches: list[int] = []

    def reply(self, episodes: list[Episode]) -> list[Message]:
        self.batches.append(len(episodes))
        turns = [sum(message["role"] == "assistant" for message in episode.messages) + 1 for episode in episodes]
        return [call("guess", {"number": turn}) for turn in turns]


def played(seeds: list[int], size: int) -> tuple[list[EvaluatedEpisode], list[int]]:
    records: list[EvaluatedEpisode] = []
    counting = Counting()
    pool: Any = Places(size)
    plays = [Play(place, seed, "Which number?", 0) for place, seed in enumerate(seeds)]
    play_batched(pool, plays, counting, PROTOCOLS["parity"], records.append)
    return sorted(records, key=lambda record: record.place), counting.batches


def test_episodes_of_several_turns_are_played_to_their_own_end():
    records, _ = played([1, 2, 3, 4], size=4)
    assert [(record.seed, record.turns, record.reward) for record in records] == [
        (1, 1, 1.0),
        (2, 2, 1.0),
        (3, 3, 1.0),
        (4, 3, 0.0),  # out of turns
    ]


def test_a_place_whose_episode_ended_takes_the_next_one_at_once():
    """Four places, twelve episodes of one to three turns: 24 turns need six full batches, not nine for three waves."""
    _, batches = played([1, 2, 3] * 4, size=4)
    assert sum(batches) == 24
    assert len(batches) <= 7


class Leaving(Guess):
    """Its server is known to be away once `turns` turns were played."""

    def __init__(self, turns: int):
        session = Session(EnvironmentServer(url="http://127.0.0.1:9"))
        super().__init__(Settings(dataset="chain_sum"), session)
        self.leave = session._breaker.stop
        self.left = turns
        self._is_away()

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: Your guess.

        Returns:
            Whether it is higher or lower.
        """
        self.left -= 1
        self._is_away()
        return super().guess(number)

    def _is_away(self) -> None:
        if not self.left:
            self.leave()


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_no_turn_is_bought_while_the_environment_is_away(turns: int):
    pool: Any = Places(0)
    pool.players = [Player(Leaving(turns))]
    counting, records = Counting(), []
    with pytest.raises(SessionLost):
        play_alone(pool, [Play(0, 9, "Which number?", 0)], counting, PROTOCOLS["parity"], records.append)
    assert (len(counting.batches), records) == (turns, [])


class Crashing:
    """Calls the tool in which the environment is lost."""

    def reply(self, episodes: list[Episode]) -> list[Message]:
        return [call("crash", {}) for _ in episodes]


@pytest.mark.parametrize("play", [play_alone, play_batched])
def test_an_environment_that_is_lost_in_an_episode_leaves_no_record_of_it(play: Any):
    pool: Any = Places(2)
    records: list[EvaluatedEpisode] = []
    with pytest.raises(SessionLost):
        play(pool, [Play(0, 9, "Which number?", 0)], Crashing(), PROTOCOLS["parity"], records.append)
    assert records == []


def test_arguments_are_recorded_as_text_and_loaded_whatever_their_columns_are():
    records, _ = played([1], size=1)
    assert records[0].messages[2]["tool_calls"][0]["function"]["arguments"] == '{"number": 1}'


class Spending(Counting):
    """Reads ten tokens and writes two in each turn."""

    def reply(self, episodes: list[Episode]) -> list[Message]:
        for episode in episodes:
            episode.prompt_tokens += 10
            episode.completion_tokens += 2
        return super().reply(episodes)


class Rewarded(Guess):
    """An environment with two reward functions."""

    streams: ClassVar = {"found": 1.0, "early": 0.1}

    def scores(self) -> dict[str, float | None]:
        return {"found": self.reward, "early": 0.5}


def test_the_record_has_the_tokens_of_all_turns_and_the_rewards_parts():
    pool, records = Places(2), []
    pool.players[1] = Player(Rewarded(Settings(dataset="chain_sum")))
    plays = [Play(0, 2, "Which number?", 0), Play(1, 2, "Which number?", 0)]
    play_batched(pool, plays, Spending(), PROTOCOLS["parity"], records.append)  # type: ignore[arg-type]
    assert [(each.prompt_tokens, each.completion_tokens) for each in records] == [(20, 4)] * 2
    assert {each.scores for each in records} == {"{}", '{"found": 1.0, "early": 0.5}'}, "one part is the reward itself"


def test_a_record_of_older_code_is_read_without_tokens_and_parts():
    (record,), _ = played([1], size=1)
    older = record.model_dump(exclude={"scores", "prompt_tokens", "completion_tokens"})
    assert EvaluatedEpisode.model_validate(older) == record


def test_every_sample_of_a_question_has_a_place_of_its_own():
    rows = [{"seed": 8, "question": "a"}, {"seed": 9, "question": "b"}]
    assert plays_of(rows, 2) == [Play(0, 8, "a", 0), Play(1, 8, "a", 1), Play(2, 9, "b", 0), Play(3, 9, "b", 1)]


def test_several_samples_of_a_greedy_model_are_refused():
    with pytest.raises(ValueError, match="decoding: sampled"):
        EvaluateSpec(samples=2)


def test_an_endpoint_answers_each_episode_under_its_seed_and_its_tokens_are_counted():
    requests: list[Any] = []

    def say(messages: Any, tools: Any, spent: Any, choice: str, seed: int) -> dict[str, Any]:
        requests.append((messages, tools, choice, seed, spent.raw))
        spent.prompt_tokens, spent.completion_tokens = 5, 7
        return {"content": f"answer {seed}"}

    episodes: Any = [
        SimpleNamespace(messages=[n], tools=["t"], wire={n: {}}, seed=n, prompt_tokens=10, completion_tokens=20)
        for n in (1, 2)
    ]
    player: Any = Endpoint(SimpleNamespace(say=say))  # type: ignore[arg-type]
    assert [each["content"] for each in player.reply(episodes)] == ["answer 1", "answer 2"]
    assert requests == [([n], ["t"], "auto", n, {n: {}}) for n in (1, 2)]
    assert [(each.prompt_tokens, each.completion_tokens) for each in episodes] == [(15, 27)] * 2
