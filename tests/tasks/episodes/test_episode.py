"""What an assistant message does to an episode, and what counts as a valid call (law 7)."""

import pytest

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.reasoning_gym.env import Environment, Settings
from apprentice.envs.wire.session import SessionLost
from apprentice.tasks.episodes.episode import Episode, problems


class Guess(ToolEnvironment):
    """A toy that needs no server: say the number that the seed names, in at most three turns."""

    Settings = Settings
    version = "1"

    @property
    def max_turns(self) -> int:
        return 3

    @property
    def instructions(self) -> str:
        return "Guess."

    def reset(self, *, seed: int, **row) -> str:
        self.seed, self.reward, self.done = seed, 0.0, False
        return "Which number?"

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: Your guess.

        Returns:
            Whether it is higher or lower.
        """
        self.done = number == self.seed
        self.reward = float(self.done)
        return "Right." if self.done else "Wrong."

    def crash(self) -> str:
        """Fails.

        Returns:
            Nothing.
        """
        raise SessionLost("gone")


class Sorting(Guess):
    """Changes the list that it is given."""

    def order(self, numbers: list[int]) -> str:
        """Sort the numbers.

        Args:
            numbers: Any.

        Returns:
            The smallest.
        """
        numbers.sort()
        return str(numbers[0])


def call(name: str, arguments) -> dict:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}],
    }


@pytest.fixture
def episode() -> Episode:
    return Episode(Guess(Settings(dataset="chain_sum")), seed=-3)


def test_an_episode_goes_on_until_the_environment_ends_it(episode: Episode):
    episode.step(call("guess", {"number": 1}))
    assert not episode.done
    episode.step(call("guess", '{"number": -3}'))
    assert episode.done
    assert (episode.reward, episode.valid) == (1.0, True)
    assert [message["role"] for message in episode.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]


def test_an_episode_ends_when_no_tool_is_called_or_the_turns_are_used_up(episode: Episode):
    for _ in range(3):
        assert not episode.done
        episode.step(call("guess", {"number": 0}))
    assert episode.done
    silent = Episode(episode.environment, 1)
    silent.step({"role": "assistant", "content": "It is 1."})
    assert silent.done
    assert not silent.valid


def test_a_broken_call_is_answered_with_its_error_and_spoils_the_format(episode: Episode):
    episode.step(call("guess", "{not json"))
    episode.step(call("shout", {}))
    assert [message["content"][:9] for message in episode.messages if message["role"] == "tool"] == ["{'error':"] * 2
    assert episode.causes == ["malformed arguments", "unknown tool"]
    assert not episode.valid


def test_a_tool_that_changes_what_it_is_given_changes_no_message_that_rollouts_share():
    message = call("order", {"numbers": [3, 1, 2]})
    for _ in range(2):
        episode = Episode(Sorting(Settings(dataset="chain_sum")), 5)
        episode.step(message)
        assert episode.messages[-1]["content"] == "1"
    assert message == call("order", {"numbers": [3, 1, 2]})


def test_a_lost_server_is_not_turned_into_text(episode: Episode):
    with pytest.raises(SessionLost):
        episode.step(call("crash", {}))


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ({"role": "assistant", "content": "42"}, "no tool call"),
        (call("reply", {"answer": "42"}), "unknown tool"),
        (call("answer", "42}"), "malformed arguments"),
        (call("answer", {}), "arguments off the schema"),
        (call("answer", {"answer": 42}), "arguments off the schema"),
        (call("answer", {"answer": "42", "why": "sum"}), "arguments off the schema"),
        (call("answer", "[]"), "arguments off the schema"),
    ],
)
def test_what_the_schema_refuses_is_named(message: dict, cause: str):
    from apprentice.envs.base import tool_schemas

    assert problems(message, tool_schemas(Environment(Settings(dataset="chain_sum")))) == [cause]


@pytest.mark.parametrize("answer", ["-42", "0", "4 2", "π"])
def test_negative_and_unusual_answers_are_valid_calls(answer: str):
    from apprentice.envs.base import tool_schemas

    assert problems(call("answer", {"answer": answer}), tool_schemas(Environment(Settings(dataset="chain_sum")))) == []


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), 7.0])
def test_a_reward_outside_its_range_is_a_broken_environment_and_never_a_reward(reward: float):
    """TRL would leave a NaN out, and make no gradient of an infinite one: neither is seen in the curves."""

    class Broken(Guess):
        def guess(self, number: int) -> str:
            """Guess the number.

            Args:
                number: Your guess.

            Returns:
                Whether it is higher or lower.
            """
            self.done, self.reward = True, reward
            return "Right."

    episode = Episode(Broken(Settings(dataset="chain_sum")), 7)
    episode.step(call("guess", {"number": 7}))
    assert episode.reward is None
    assert f"reward is {reward}, which is not within 0 to 1" in episode.broken
