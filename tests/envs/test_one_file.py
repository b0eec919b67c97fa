"""A game in one file: its server plays it, its environment has its tools, an error in it is no answer of a model."""

import math

import pytest

from apprentice.envs.game import EnvironmentSettings, Game, tools_in
from apprentice.envs.game_server import GameServer, Move, server_of
from apprentice.envs.number import Number, Settings, call
from apprentice.envs.one_file import environment_of
from apprentice.envs.player import Player


class Doors(Game):
    """Two doors."""

    instructions = "Open a door."
    max_turns = 2
    helper = "not a tool"

    def ask(self, seed: int) -> str:
        self.correct = "left"
        return f"Game {seed}."

    def left(self) -> str:
        """Open the left door."""
        self.reward, self.done = 1.0, True
        return "Open."

    def right(self, force: int) -> str:
        """Open the right door.

        Args:
            force: How hard to push.
        """
        if force > 9:
            raise ValueError("It would break.")
        return "Locked." + force  # type: ignore[operator]  # the game's own mistake

    def _secret(self) -> None: ...


def start_server(game: type[Game] = Doors) -> GameServer:
    server = server_of(game)()
    server.reset(seed=1)
    return server


def test_its_tools_are_its_own_public_methods_with_their_schemas():
    assert tools_in(Doors) == ["left", "right"]
    player = Player(environment_of(Doors)(EnvironmentSettings()))
    assert [tool.name for tool in player.tools] == ["left", "right"]
    assert player.schemas[1]["function"]["parameters"]["properties"]["force"]["type"] == "integer"


def test_the_answer_is_told_when_the_episode_is_over_and_not_before():
    server = start_server()
    refused = server.step(Move(tool="right", arguments={"force": 10}))
    assert (refused.text, refused.refused, refused.correct, refused.done) == ("It would break.", True, None, False)
    won = server.step(Move(tool="left"))
    assert (won.text, won.refused, won.correct, won.done, won.reward) == ("Open.", False, "left", True, 1.0)


def test_a_refused_call_costs_a_turn():
    server = start_server()
    seen = [server.step(Move(tool="right", arguments={"force": 10})) for _ in range(2)]
    assert [(each.done, each.reward) for each in seen] == [(False, 0.0), (True, 0.0)]


@pytest.mark.parametrize(
    ("move", "error"),
    [
        (Move(tool="right", arguments={"force": 1}), TypeError),
        (Move(tool="left", arguments={"foot": 1}), TypeError),
        (Move(tool="_secret"), ValueError),
        (Move(tool="ask", arguments={"seed": 2}), ValueError),
    ],
    ids=["the game's own mistake", "an argument that there is not", "no tool", "not a tool of the model"],
)
def test_an_error_of_the_game_or_of_its_client_is_no_reply_to_a_model(move: Move, error: type[Exception]):
    with pytest.raises(error):
        start_server().step(move)


def test_nothing_is_played_before_a_reset_or_after_the_end():
    with pytest.raises(ValueError, match="reset first"):
        server_of(Doors)().step(Move(tool="left"))
    server = start_server()
    server.step(Move(tool="left"))
    with pytest.raises(ValueError, match="reset first"):
        server.step(Move(tool="left"))


def won_by_script(halving: bool) -> float:
    won = 0.0
    for seed in range(200):
        game = Number(Settings(halving=halving))
        messages = [{"role": "user", "content": game.ask(seed)}]
        for _ in range(game.max_turns):
            _, arguments = call({"halving": halving}, messages, 0.0)
            messages += [{"role": "assistant", "content": ""}, {"role": "tool", "content": game.guess(**arguments)}]
            if game.done:
                break
        won += game.reward == 1.0
    return won / 200


def test_the_script_that_halves_finds_every_number_and_the_one_that_guesses_about_half():
    assert won_by_script(halving=True) == 1.0
    assert 0.4 < won_by_script(halving=False) < 0.65


def test_what_is_ruled_out_earns_less_than_half():
    game = Number(Settings())
    game.ask(1)
    rewards = []
    for guess in (1, 2, 3):
        game.guess(guess)
        rewards.append(game.reward)
    assert game.correct not in ("1", "2", "3", None)
    assert game.guess(int(game.correct)) == "Right."
    assert 0.0 < rewards[0] < rewards[1] < rewards[2] < 0.5
    most = game.settings.most
    assert rewards == [pytest.approx(0.5 * (1 - math.log(most - n + 1) / math.log(most + 1))) for n in (1, 2, 3)]
