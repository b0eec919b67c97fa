"""Law 7: accuracy is reward == 1.0, answers have signs, and a perfect player scores 100%."""

from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.reasoning_gym import policy
from apprentice.envs.server import EnvironmentServer
from apprentice.tasks.episode import Episode, Message
from apprentice.tasks.evaluate import as_record, play_together, rates


class Scripted:
    """A player that answers every episode of a batch as `say` tells it to."""

    def __init__(self, say: Any):
        self.say = say

    def reply(self, episodes: list[Episode]) -> list[Message]:
        return [self.say(episode) for episode in episodes]


def perfect(task: EnvironmentSpec) -> Any:
    def say(episode: Episode) -> Message:
        name, arguments = policy.call(task.settings, episode.messages, 0.0)
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}

    return say


def played(task: EnvironmentSpec, server: EnvironmentServer, seeds: range, say: Any) -> list[dict[str, Any]]:
    with EnvironmentPool(task, server, 25) as pool:
        records = []
        for start in range(seeds.start, seeds.stop, 25):
            records += play_together(pool, list(range(start, start + 25)), Scripted(say))  # type: ignore[arg-type]
    return [as_record(record) for record in records]


def test_a_perfect_player_scores_everything_on_the_tutorials_own_questions(
    chain_sum: EnvironmentSpec, server: EnvironmentServer
):
    """Seed 999, size 50: sixteen answers are negative, which the tutorial's regular expression cannot read."""
    records = played(chain_sum, server, range(999, 1049), perfect(chain_sum))
    negative = [record for record in records if '"-' in str(record["messages"][2]).replace("'", '"')]
    assert len(negative) == 16
    assert rates(records) == {"n": 50, "format_compliance": 1.0, "accuracy": 1.0, "mean_score": 1.0}


def test_partial_credit_is_score_but_not_accuracy(chain_sum: EnvironmentSpec, server: EnvironmentServer):
    def close(episode: Episode) -> Message:
        message = perfect(chain_sum)(episode)
        message["tool_calls"][0]["function"]["arguments"]["answer"] += "5"
        return message

    result = rates(played(chain_sum, server, range(50), close))
    assert result["accuracy"] == 0.0
    assert result["format_compliance"] == 1.0
    assert 0.0 < result["mean_score"] < 1.0


def test_a_right_answer_in_plain_text_is_neither_compliant_nor_accurate(
    chain_sum: EnvironmentSpec, server: EnvironmentServer
):
    def plain(episode: Episode) -> Message:
        return {"role": "assistant", "content": policy.call(chain_sum.settings, episode.messages, 0.0)[1]["answer"]}

    assert rates(played(chain_sum, server, range(25), plain))["accuracy"] == 0.0
    assert rates(played(chain_sum, server, range(25), plain))["format_compliance"] == 0.0


def test_records_come_in_the_order_of_the_questions(task: EnvironmentSpec, server: EnvironmentServer):
    assert [record["seed"] for record in played(task, server, range(50), perfect(task))] == list(range(50))
