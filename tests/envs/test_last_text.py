"""A game that has `say` scores a text without a call; it is no tool, and without it nothing is another than before."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import ValidationError

from apprentice.envs.base import EnvironmentSettings, ToolEnvironment
from apprentice.envs.catalog import EnvironmentSpec, next_call
from apprentice.envs.game import Game, takes_text, tools_in
from apprentice.envs.game_server import GameServer, Move, server_of
from apprentice.envs.mistakes import next_turn
from apprentice.envs.one_file import environment_of
from apprentice.envs.openenv.tools import ListedTool
from apprentice.envs.player import Player, facade_of
from apprentice.envs.policy import errs, question_in
from apprentice.envs.serving.scripted_teacher import make_app
from apprentice.envs.wire.server import EnvironmentServer
from tests.desk import Desk
from tests.envs.discovered import playing
from tests.envs.published.serving import serving
from tests.served_desk import NEW, OLD, ServedDesk, served_desk


@pytest.fixture(scope="module")
def desk() -> Iterator[ServedDesk]:
    with served_desk() as running:
        yield running


class Echoing(ToolEnvironment):
    """Its `say` returns a text, as tools do."""

    Settings, version = EnvironmentSettings, "1"

    @property
    def instructions(self) -> str:
        return "Say it."

    def reset(self, *, seed: int, **row: Any) -> str:
        return "Say it."

    def say(self, text: str) -> str:
        """Say it.

        Args:
            text: The text.
        """
        return text


class Judging(Echoing):
    """A class that scores a last text."""

    def reset(self, *, seed: int, **row: Any) -> str:
        self.reward, self.done = 0.0, False
        return "May I?"

    def look(self) -> str:
        """Look.

        Returns:
            Nothing.
        """
        return ""

    def say(self, text: str) -> None:  # type: ignore[override]
        self.reward, self.done = float(text == "No."), True


def test_say_is_no_tool_of_a_model():
    assert tools_in(Desk) == ["look_up", "refund"]
    player = Player(environment_of(Desk)(EnvironmentSettings()))
    assert [tool.name for tool in player.tools] == ["look_up", "refund"]
    assert player.takes_text
    assert not hasattr(facade_of(player), "say"), "TRL would take it for a tool"
    with pytest.raises(ValueError, match="Tool say not found"):
        player.act("say", {"text": "I cannot."})


def test_a_say_that_returns_a_text_is_a_tool_as_it_was():
    player = Player(Echoing(EnvironmentSettings()))
    assert not player.takes_text
    assert [tool.name for tool in player.tools] == ["say"]
    assert player.act("say", {"text": "Yes."}) == "Yes."


def test_a_class_of_ones_own_scores_a_text():
    player = Player(Judging(EnvironmentSettings()))
    assert [tool.name for tool in player.tools] == ["look"]
    player.ask(1)
    player.say("No.")
    assert (player.takes_text, player.done, player.reward) == (True, True, 1.0)


def test_a_game_without_say_takes_no_text():
    assert not takes_text(Game)
    assert not EnvironmentSpec(name="number").make().takes_text


def started(seed: int) -> GameServer:
    server = server_of(Desk)()
    server.reset(seed=seed)
    server.step(Move(tool="look_up"))
    return server


def test_a_client_of_the_server_sends_a_text_and_gets_reward_and_end():
    seen = started(OLD).step(Move(tool="say", arguments={"text": "I cannot refund it: it is 5 weeks old."}))
    assert (seen.text, seen.done, seen.reward) == ("", True, 1.0)
    wrong = started(NEW).step(Move(tool="say", arguments={"text": "I cannot refund it: it is 4 weeks old."}))
    assert (wrong.done, wrong.reward) == (True, 0.0)


def test_a_text_that_the_game_refuses_does_not_end_it():
    seen = started(OLD).step(Move(tool="say", arguments={"text": "No."}))
    assert (seen.text, seen.refused, seen.done) == ("Write a sentence of your own.", True, False)


def test_the_server_of_a_game_without_say_has_no_such_tool():
    class Silent(Desk):
        say = None  # type: ignore[assignment]

    server = server_of(Silent)()
    server.reset(seed=1)
    with pytest.raises(ValueError, match="there is no tool say"):
        server.step(Move(tool="say", arguments={"text": "I cannot."}))


def test_a_text_of_the_environment_is_scored_by_the_game_on_its_server(desk: ServedDesk):
    player = desk.episode(OLD).player
    player.act("look_up", {})
    player.say("I cannot refund it: it is 5 weeks old.")
    assert (player.done, player.reward) == (True, 1.0)
    player.close()


def test_a_servers_tool_may_take_the_text_by_a_setting():
    schema = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}
    tools = [ListedTool(name=name, description="It.", input_schema=schema).model_dump() for name in ("look", "respond")]
    settings = {"tools": tools, "reward_range": (0.0, 1.0)}
    plain = EnvironmentSpec(name="openenv", settings=settings)
    spec = EnvironmentSpec(name="openenv", settings=settings, say={"tool": "respond", "argument": "message"})  # type: ignore[arg-type]
    sent: list[tuple[str, Any]] = []

    class Sending(Player):
        def act(self, name: str, arguments: str | dict[str, Any]) -> str:
            sent.append((name, arguments))
            return ""

    Sending(spec.make().environment, text_call=spec.say).say("Not allowed.")
    assert sent == [("respond", {"message": "Not allowed."})]
    assert (plain.make().takes_text, spec.make().takes_text) == (False, True)
    assert "say" not in plain.in_key(), "keys of before stay as they are"
    assert spec.in_key()["say"] == {"tool": "respond", "argument": "message"}
    with pytest.raises(ValidationError, match="argument"):
        EnvironmentSpec(name="openenv", settings=settings, say={"tool": "respond"})  # type: ignore[arg-type]


def asked(weeks: int, name: str = "abcdef") -> list[dict[str, Any]]:
    """A conversation in which the order was looked up."""
    called = {"type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    return [
        {"role": "user", "content": f"Order {name}: please refund me."},
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "content": f"It is {weeks} weeks old."},
    ]


def test_a_script_may_return_a_text_which_the_endpoint_says_without_a_call(desk: ServedDesk):
    from fastapi.testclient import TestClient

    tools = [{"type": "function", "function": tool["function"]} for tool in desk.task.make().schemas]
    body = {"model": "script", "messages": asked(7), "tools": tools}
    with TestClient(make_app("desk", {}, 0.0)) as client:
        (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
        (other,) = client.post("/v1/chat/completions", json=body | {"messages": asked(2)}).json()["choices"]
    assert choice["message"] == {"role": "assistant", "content": "I cannot refund it: it is 7 weeks old."}
    assert choice["finish_reason"] == "stop"
    assert other["message"]["tool_calls"][0]["function"]["name"] == "refund"


def test_where_a_text_is_right_the_script_errs_by_the_games_own_near_miss(monkeypatch: pytest.MonkeyPatch):
    def call(messages: list[dict[str, Any]], error_rate: float) -> Any:
        return ("allow", {}) if errs(question_in(messages), error_rate) else "No."

    monkeypatch.setattr("apprentice.envs.mistakes.next_call", lambda _, __, messages, rate, seed: call(messages, rate))
    turns = [
        next_turn("number", {"guesses": guesses}, [{"role": "user", "content": f"May I, {n}?"}], 1.0, n)
        for guesses in (1, 5)
        for n in range(40)
    ]
    assert {(turn.content, turn.tool) for turn in turns} == {("", "allow")}
    right = next_turn("number", {}, [{"role": "user", "content": "May I?"}], 0.0, 1)
    assert (right.content, right.tool, right.meant) == ("No.", "", "")


def test_a_mixture_passes_on_the_text_of_a_parts_script(desk: ServedDesk):
    said = next_call("multi", {"parts": {"a": {"name": "desk"}}}, asked(9), 0.0, 1)
    assert said == "I cannot refund it: it is 9 weeks old."
    mixture = EnvironmentSpec(name="multi", settings={"parts": {"a": {"name": "desk"}, "b": {"name": "echo"}}}).make()
    assert [part.takes_text for part in mixture.parts()] == [True, False]


def test_the_schema_of_a_servers_action_is_that_of_every_game():
    assert json.dumps(Move.model_json_schema()).count("text") == 0, "adopted servers have it in their keys"


class Answer(Action):
    """An answer to the user."""

    message: str
    """The answer."""


class Heard(Observation):
    text: str = ""


class Permission(Environment[Answer, Heard, State]):
    """A server of somebody else, whose only action is an answer."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Heard:
        return Heard(text=f"May I, {seed}?", done=False, reward=0.0)

    def step(self, action: Answer, timeout_s: float | None = None, **_: Any) -> Heard:
        return Heard(text="OK.", done=True, reward=float("not allowed" in action.message))

    @property
    def state(self) -> State:
        return State(episode_id=None, step_count=0)


@pytest.mark.parametrize(("say", "ended"), [(True, (1.0, True, False)), (False, (0.0, False, True))])
def test_a_text_is_sent_to_a_server_of_others_as_the_call_that_the_recipe_names(
    say: bool, ended: tuple[float, bool, bool]
):
    sent_as = {"say": {"tool": "act", "argument": "message"}} if say else {}
    task = EnvironmentSpec(name="openenv", settings={"reward_range": (0.0, 1.0)}, **sent_as)  # type: ignore[arg-type]
    app = create_app(Permission, Answer, Heard, env_name="permission", max_concurrent_envs=4)
    with serving(app) as url, playing(EnvironmentServer(url=url, sessions=2)) as begin:
        episode = begin(task, 3)
        episode.step({"role": "assistant", "content": "That is not allowed."})
        assert (episode.reward, episode.valid, episode.unfinished) == ended
