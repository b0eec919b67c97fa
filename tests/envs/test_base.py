"""What every environment does with whatever a model sends, and with a server that breaks."""

import json
from typing import Any

import pytest

from apprentice.envs.base import LONGEST_ACTION, whole_number
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.tools import are_tools_of, described_text, tools_text
from apprentice.envs.wire.reply import BadReply, Reply
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Refused, Session, SessionLost
from apprentice.tasks.episodes.episode import Episode
from apprentice.tasks.episodes.rendering import training_row


class Answering(Session):
    """A session without a server: answers, or raises, as it is told."""

    def __init__(self, outcome: Exception | None = None):
        super().__init__(EnvironmentServer(url="http://127.0.0.1:9"))
        self.outcome = outcome
        self.sent: list[dict[str, Any]] = []

    def reset(self, **question: Any) -> Reply:
        return Reply({"text": "ab"}, 0.0, False)

    def step(self, action: dict[str, Any]) -> Reply:
        self.sent.append(action)
        if self.outcome is not None:
            raise self.outcome
        return Reply({"text": "ab"}, 1.0, True)


def playing(session: Session) -> Any:
    environment = EnvironmentSpec(name="echo").make(session)
    environment.ask(1)
    return environment


def test_a_game_that_breaks_in_a_step_scores_nobody():
    episode = Episode(playing(Answering(BadReply("[Errno 28] No space left on device (code: EXECUTION_ERROR)"))), 1)
    call = {"type": "function", "function": {"name": "echo", "arguments": {"message": "ab"}}}
    episode.step({"role": "assistant", "content": "", "tool_calls": [call]})
    assert (episode.reward, episode.done) == (None, True)
    assert "No space left" in episode.broken


def test_an_episode_begins_with_nothing_of_the_one_before():
    environment = playing(Answering())
    environment.environment.echo("ab")
    assert (environment.reward, environment.done, environment.correct) == (1.0, True, "ab")
    environment.environment.failure = "as if the server had been lost"
    environment.ask(2)
    ended = environment.reward, environment.done, environment.failure, environment.correct
    assert ended == (0.0, False, None, None)


def test_an_action_that_the_server_refuses_is_told_to_the_player():
    environment = playing(Answering(Refused("message: field required (code: VALIDATION_ERROR)")))
    with pytest.raises(Refused, match="field required"):
        environment.environment.echo("ab")
    assert (environment.reward, environment.done) == (0.0, False)


def test_text_that_is_too_long_is_refused_before_it_is_sent():
    session = Answering()
    with pytest.raises(ValueError, match="too long"):
        playing(session).environment.echo("a" * LONGEST_ACTION)
    assert session.sent == []


@pytest.mark.parametrize(
    ("said", "sent"), [("漢字 🙂 עברית", "漢字 🙂 עברית"), ("a\ud800b", "a�b"), ("\ud83d\ude42", "🙂")]
)
def test_text_in_any_script_is_sent_and_half_characters_are_marked(said: str, sent: str):
    session = Answering()
    playing(session).environment.echo(said)
    assert session.sent == [{"message": sent}]


@pytest.mark.parametrize("said", [7, "7", " 7 ", "07"])
def test_seven_and_its_text_are_one_number(said: Any):
    assert whole_number(said, "row", 1, 9) == 7


@pytest.mark.parametrize("said", [0, 10, "x", None, True, 7.5, "7.5", [7], "９" * 400])
def test_what_is_no_such_number_is_refused_with_its_bounds(said: Any):
    with pytest.raises(ValueError, match="row must be a whole number, 1 to 9"):
        whole_number(said, "row", 1, 9)


RECORDED = (
    '[{"type": "function", "function": {"name": "echo", "description": "Say the text again.", "parameters": {"type": '
    '"object", "properties": {"message": {"type": "string", "description": "The text, as it was given."}}, "required": '
    '["message"]}, "return": {"type": "string", "description": "A confirmation that the message was received."}}}]'
)
"""The tools in rollouts of before, and in the settings of a collection that was begun then."""


def test_rollouts_of_before_have_the_same_tools_and_train_the_same():
    echo = EnvironmentSpec(name="echo").make()
    assert described_text(echo.tools) == RECORDED, "else a collection that was begun would stop"
    assert "return" not in tools_text(echo.tools)
    assert are_tools_of(echo.tools, RECORDED)
    assert not are_tools_of(echo.tools, RECORDED.replace("again", "twice"))
    assert not are_tools_of(echo.tools, "no JSON")
    assert training_row([], json.loads(RECORDED)) == training_row([], echo.schemas)


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_reply_without_a_question_costs_a_connection_and_a_second_one_the_episode(bad: int):
    seeds, renewed = [], []
    session = Answering()
    session.renew = lambda: renewed.append(len(seeds))  # type: ignore[method-assign]
    environment = EnvironmentSpec(name="echo").make(session)

    def reset(*, seed: int) -> str:
        seeds.append(seed)
        if len(seeds) <= bad:
            raise BadReply("no text")
        return "ab"

    environment.environment.reset = reset  # type: ignore[method-assign]
    if bad == 2:
        with pytest.raises(SessionLost, match="no question under seed 7, twice: no text"):
            environment.ask(7)
        assert (environment.reward, environment.done) == (None, True)
    else:
        assert environment.ask(7) == "ab"
        assert environment.failure is None
    assert renewed == [1][:bad]
    assert seeds == [7] * min(bad + 1, 2)
