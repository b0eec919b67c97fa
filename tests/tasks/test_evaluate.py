"""Law 7: accuracy is reward == 1.0, answers have signs, and a perfect player scores 100%."""

import json
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.reasoning_gym import datasets, env
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Session
from apprentice.tasks.episodes.episode import Episode
from apprentice.tasks.episodes.record import EvaluatedEpisode, Message
from apprentice.tasks.evaluate import rates
from apprentice.tasks.players.play import Play, play_alone, play_batched
from apprentice.tasks.players.protocols import PROTOCOLS
from apprentice.tasks.reporting.errors import Stop

TUTORIAL_SEEDS = range(999, 1049)


class Scripted:
    """A player that answers every episode of a batch as `say` tells it to."""

    def __init__(self, say: Any):
        self.say = say
        self.batches: list[int] = []

    def reply(self, episodes: list[Episode]) -> list[Message]:
        self.batches.append(len(episodes))
        return [self.say(episode) for episode in episodes]


def perfect(task: EnvironmentSpec) -> Any:
    def say(episode: Episode) -> Message:
        name, arguments = env.call(task.settings, episode.messages, 0.0)
        if not episode.tools:  # the tutorial's protocol shows none
            return {"role": "assistant", "content": json.dumps({"name": name, "arguments": arguments})}
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}

    return say


def question(task: EnvironmentSpec, seed: int) -> str:
    return datasets.entry(task.settings["dataset"], task.settings["config"], seed)[1]["question"]


def played(
    task: EnvironmentSpec,
    server: EnvironmentServer,
    seeds: range,
    say: Any,
    protocol: str = "parity",
    play: Any = play_batched,
) -> list[EvaluatedEpisode]:
    records: list[EvaluatedEpisode] = []
    with EnvironmentPool(task, server, 25) as pool:
        plays = [Play(place, seed, question(task, seed), 0) for place, seed in enumerate(seeds)]
        play(pool, plays, Scripted(say), PROTOCOLS[protocol], records.append)
    return sorted(records, key=lambda record: record.place)


def test_a_perfect_player_scores_everything_on_the_tutorials_own_questions(
    chain_sum: EnvironmentSpec, server: EnvironmentServer
):
    records = played(chain_sum, server, TUTORIAL_SEEDS, perfect(chain_sum))
    assert sum(json.loads(record.traits)["sign"] == "negative" for record in records) == 16
    everything = {"n": 50, "broken": 0, "unfinished": 0, "format_compliance": 1.0, "accuracy": 1.0, "mean_score": 1.0}
    assert rates(records, PROTOCOLS["parity"]) == everything


def test_under_the_tutorials_protocol_the_same_perfect_player_scores_68_percent(
    chain_sum: EnvironmentSpec, server: EnvironmentServer
):
    """Its regular expression cannot read the sixteen negative answers (seed 999, n = 50)."""
    records = played(chain_sum, server, TUTORIAL_SEEDS, perfect(chain_sum), "tutorial")
    seen = rates(records, PROTOCOLS["tutorial"])
    assert (seen["format_compliance"], seen["accuracy"]) == (0.68, 0.68)
    unread = [record for record in records if not record.valid]
    assert all(json.loads(record.traits)["sign"] == "negative" for record in unread)


def test_partial_credit_is_score_but_not_accuracy(chain_sum: EnvironmentSpec, server: EnvironmentServer):
    def close(episode: Episode) -> Message:
        message = perfect(chain_sum)(episode)
        message["tool_calls"][0]["function"]["arguments"]["answer"] += "5"
        return message

    result = rates(played(chain_sum, server, range(50), close), PROTOCOLS["parity"])
    assert result["accuracy"] == 0.0
    assert result["format_compliance"] == 1.0
    assert 0.0 < result["mean_score"] < 1.0


def test_a_right_answer_in_plain_text_is_neither_compliant_nor_accurate(
    chain_sum: EnvironmentSpec, server: EnvironmentServer
):
    def plain(episode: Episode) -> Message:
        return {"role": "assistant", "content": env.call(chain_sum.settings, episode.messages, 0.0)[1]["answer"]}

    result = rates(played(chain_sum, server, range(25), plain), PROTOCOLS["parity"])
    assert result["accuracy"] == result["format_compliance"] == 0.0


@pytest.mark.parametrize("play", [play_batched, play_alone])
def test_each_record_belongs_to_its_question_however_they_are_played(
    task: EnvironmentSpec, server: EnvironmentServer, play: Any
):
    records = played(task, server, range(60), perfect(task), play=play)
    assert [record.seed for record in records] == list(range(60))
    assert all(record.correct and record.is_right and json.loads(record.traits) for record in records)


@pytest.mark.long
def test_a_server_with_fewer_places_than_the_batch_makes_smaller_batches_of_the_same_episodes(
    chain_sum: EnvironmentSpec, server: EnvironmentServer
):
    said: list[str] = []
    scripted = Scripted(perfect(chain_sum))
    records: list[EvaluatedEpisode] = []
    plays = [Play(place, seed, question(chain_sum, seed), 0) for place, seed in enumerate(range(40))]
    with local_server("apprentice.envs.serving.serve", "reasoning_gym", "--max-sessions", "3") as url:
        few = EnvironmentServer(url=url, patience=5.0)
        with EnvironmentPool(chain_sum, few, 25, said.append) as pool:
            pool.open_ahead().result()
            play_batched(pool, plays, scripted, PROTOCOLS["parity"], records.append)
    assert set(scripted.batches) == {3, 1}
    assert len(said) == 1
    assert "grants only 3 concurrent sessions" in said[0]
    assert sorted(records, key=lambda each: each.place) == played(chain_sum, server, range(40), perfect(chain_sum))


@pytest.mark.long
def test_a_session_that_becomes_free_while_an_evaluation_plays_is_used(chain_sum: EnvironmentSpec):
    scripted = Scripted(perfect(chain_sum))
    plays = [Play(place, seed, question(chain_sum, seed), 0) for place, seed in enumerate(range(400))]
    with local_server("apprentice.envs.serving.serve", "reasoning_gym", "--max-sessions", "4") as url:
        server = EnvironmentServer(url=url)
        others = [chain_sum.make(Session(server)) for _ in range(3)]
        for other in others:
            other.ask(1)
        with EnvironmentPool(chain_sum, server, 4) as pool:

            def keep(record: EvaluatedEpisode) -> None:
                if len(scripted.batches) == 3:
                    for other in others:
                        other.close()
                    pool._ask_at = 0.0  # as if the wait before asking again was over

            play_batched(pool, plays, scripted, PROTOCOLS["parity"], keep)
    assert scripted.batches[0] == 1
    assert 4 in scripted.batches


def test_a_server_that_asks_something_else_under_a_seed_judges_nobody(
    chain_sum: EnvironmentSpec, server: EnvironmentServer
):
    with EnvironmentPool(chain_sum, server, 2) as pool:
        plays = [Play(0, 5, question(chain_sum, 5), 0), Play(1, 6, "An older version's text?", 0)]
        for play in (play_batched, play_alone):
            with pytest.raises(Stop, match="For seed 6 the server asks another question"):
                play(pool, plays, Scripted(perfect(chain_sum)), PROTOCOLS["parity"], print)
