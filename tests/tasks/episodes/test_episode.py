"""What an assistant message does to an episode, and what counts as a valid call (law 7)."""

from typing import ClassVar

import pytest

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.player import Player
from apprentice.envs.reasoning_gym.env import Environment, Settings
from apprentice.envs.wire.session import SessionLost
from apprentice.tasks.episodes.episode import Episode, problems
from apprentice.tasks.episodes.thinking import cut_off


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


class Risky(Guess):
    """A wrong number costs a point; a number that is named first may be looked up, which ends nothing."""

    reward_range = (-1.0, 1.0)

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: Your guess.
        """
        self.done, self.reward = True, 1.0 if number == self.seed else -1.0
        return "Over."

    def look(self, part: int) -> str:
        """Look a part of it up; the second one earns a little.

        Args:
            part: Which one.
        """
        self.reward = 0.25 if part == 2 else 0.0
        return "4"


class Streaming(Risky):
    """Counts what was looked up as a reward of its own."""

    streams: ClassVar[dict[str, float]] = {"environment_reward": 1.0, "greens": 1.0}

    def scores(self) -> dict[str, float | None]:
        return {"environment_reward": self.reward, "greens": 0.5}


class Lenient(Risky):
    """Takes no offence at a player who leaves."""

    unfinished = -0.5


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
    return Episode(Player(Guess(Settings(dataset="chain_sum"))), seed=-3)


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
    silent = Episode(episode.player, 1)
    silent.step({"role": "assistant", "content": "It is 1."})
    assert silent.done
    assert not silent.valid


TEXT = {"role": "assistant", "content": "It is 1."}
CUT = {"role": "assistant", "content": '<tool_call>{"name": "gue'}
UNKNOWN, UNREADABLE = call("solve", {"number": 1}), call("guess", "{number: 1")
LOOK, LOOK_ON, RIGHT, WRONG = (
    call("look", {"part": 1}),
    call("look", {"part": 2}),
    *(call("guess", {"number": n}) for n in (1, 2)),
)


@pytest.mark.parametrize(
    ("messages", "reward", "unfinished"),
    [
        ([RIGHT], 1.0, False),
        ([WRONG], -1.0, False),
        ([LOOK, RIGHT], 1.0, False),
        ([TEXT], -1.0, True),
        ([CUT], -1.0, True),
        ([{"role": "assistant", "content": ""}], -1.0, True),
        ([UNKNOWN] * 3, -1.0, True),
        ([UNREADABLE] * 3, -1.0, True),
        ([LOOK] * 3, -1.0, True),
        ([LOOK, TEXT], -1.0, True),
        ([LOOK, LOOK_ON, TEXT], 0.25, True),
        ([LOOK], -1.0, True),  # its tokens are used up
    ],
)
def test_to_do_nothing_is_worth_no_more_than_a_wrong_answer(messages: list, reward: float, unfinished: bool):
    episode = Episode(Player(Risky(Settings(dataset="chain_sum"))), seed=1)
    for message in messages:
        assert not episode.done
        episode.step(message)
    episode.give_up()
    assert (episode.reward, episode.unfinished, episode.done) == (reward, unfinished, True)


def test_a_thought_that_was_cut_off_takes_all_partial_credit_back_and_no_other_end_does():
    for end, reward, greens in ((TEXT, 0.25, 0.5), (cut_off("It is"), -1.0, -1.0)):
        player = Player(Streaming(Settings(dataset="chain_sum")))
        episode = Episode(player, seed=1)
        for message in (LOOK, LOOK_ON, end):
            episode.step(message)
        assert player.scores() == {"environment_reward": reward, "greens": greens}
    Episode(player, seed=2)
    assert player.scores()["greens"] == 0.5, "the next episode has its own"


def test_an_environment_may_say_what_an_unfinished_episode_earns():
    episode = Episode(Player(Lenient(Settings(dataset="chain_sum"))), seed=1)
    episode.step(TEXT)
    assert episode.reward == -0.5


def test_an_episode_that_infrastructure_lost_has_no_reward_after_its_end_as_well(episode: Episode):
    with pytest.raises(SessionLost):
        episode.step(call("crash", {}))
    episode.player.lose("gone")
    episode.give_up()
    assert (episode.reward, episode.unfinished) == (None, False)


def test_a_broken_call_is_answered_with_its_error_and_spoils_the_format(episode: Episode):
    episode.step(call("guess", "{not json"))
    episode.step(call("shout", {}))
    assert [message["content"][:9] for message in episode.messages if message["role"] == "tool"] == ["{'error':"] * 2
    assert episode.causes == ["malformed arguments", "unknown tool"]
    assert not episode.valid


def test_a_tool_that_changes_what_it_is_given_changes_no_message_that_rollouts_share():
    message = call("order", {"numbers": [3, 1, 2]})
    for _ in range(2):
        episode = Episode(Player(Sorting(Settings(dataset="chain_sum"))), 5)
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
    assert problems(message, Player(Environment(Settings(dataset="chain_sum"))).schemas) == [cause]


@pytest.mark.parametrize("answer", ["-42", "0", "4 2", "π"])
def test_negative_and_unusual_answers_are_valid_calls(answer: str):
    assert (
        problems(call("answer", {"answer": answer}), Player(Environment(Settings(dataset="chain_sum"))).schemas) == []
    )


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

    episode = Episode(Player(Broken(Settings(dataset="chain_sum"))), 7)
    episode.step(call("guess", {"number": 7}))
    assert episode.reward is None
    assert f"reward is {reward}, which is not within 0 to 1" in episode.broken
