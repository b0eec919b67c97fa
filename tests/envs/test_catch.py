"""A ball falls and is caught: every question can be won, and only left, right and stay are moves."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.catch.board import Board, openings
from apprentice.envs.catch.env import Environment, _places, call
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.reply import BadReply
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Refused, Session
from apprentice.tasks.episodes.episode import Episode, problems

CATCH = EnvironmentSpec(name="catch")
SMALL: dict[str, Any] = {"rows": 5, "columns": 4, "least_moves": 2, "most_moves": 3}


@pytest.fixture(scope="module")
def there() -> Iterator[EnvironmentServer]:
    with local_server("apprentice.envs.serving.serve", "catch", "--max-sessions", "32") as url:
        yield EnvironmentServer(url=url, sessions=32)


@pytest.fixture
def game(there: EnvironmentServer) -> Iterator[Any]:
    """Typed as anything: what a model passes is not what the signature says."""
    game = CATCH.make(Session(there))
    yield game
    game.close()


def play(game: Any, seed: int, error_rate: float = 0.0) -> Episode:
    episode = Episode(game, seed)
    while not episode.done:
        name, arguments = call({}, episode.messages, error_rate)
        episode.step(called(name, arguments))
    return episode


def called(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "function": function}]}


def result_of(episode: Episode) -> tuple[bool, bool, float | None]:
    return episode.valid, episode.player.done, episode.reward  # read at once: another episode gets its environment


def columns(text: str) -> tuple[int, int]:
    """The columns of ball and paddle."""
    return _places(text)[-1]


def above(game: Any) -> str:
    """The question of a seed whose ball hangs right above the paddle."""
    questions = (game.ask(seed) for seed in range(1000))
    return next(question for question in questions if len(set(columns(question))) == 1)


# --- the question -----------------------------------------------------------------------------------------------------


def test_the_question_is_a_readable_board_that_says_where_ball_and_paddle_are(there: EnvironmentServer):
    game = EnvironmentSpec(name="catch", settings=SMALL).make(Session(there))
    assert game.ask(1).splitlines() == [
        "Board: 5 rows, 4 columns.",
        "....",
        "....",
        ".o..",
        "....",
        ".x..",
        "Ball: row 3, column 2. Paddle: column 2.",
    ]
    game.close()


def test_a_reply_tells_the_new_places_and_no_board(game: Any):
    question = game.ask(0)
    ball, paddle = columns(question)
    reply = game.environment.move("right" if ball > paddle else "left")
    assert columns(reply)[0] == ball
    assert abs(columns(reply)[1] - paddle) == 1
    assert "\n" not in reply


@pytest.mark.long
def test_the_same_seed_is_the_same_question_twice_and_on_two_servers(game: Any):
    with local_server("apprentice.envs.serving.serve", "catch") as url:
        elsewhere = CATCH.make(Session(EnvironmentServer(url=url)))
        questions = [(game.ask(seed), elsewhere.ask(seed)) for seed in (7, 200_000_000, 7)]
        elsewhere.close()
    assert all(one == two for one, two in questions)
    assert questions[0] == questions[2] != questions[1]


def test_there_are_hundreds_of_questions_each_one_board_and_each_board_one_text(game: Any):
    settings = CATCH.make().environment.settings
    assert isinstance(settings, Board)
    assert len(openings(settings)) == 633
    assert len({game.ask(seed) for seed in range(400)}) > 250


@pytest.mark.parametrize("size", [{}, SMALL, {"rows": 10, "columns": 5, "least_moves": 9, "most_moves": 9}])
def test_every_opening_can_be_come_to_and_the_ball_still_be_caught_from_it(size: dict[str, int]):
    board = Board(**size)
    for moves, ball, paddle in openings(board):
        assert abs(ball - paddle) <= moves
        assert abs(paddle - board.columns // 2) <= board.rows - 1 - moves
        assert board.least_moves <= moves <= board.most_moves


def test_as_many_moves_as_rows_is_openspiels_own_start(there: EnvironmentServer):
    whole = EnvironmentSpec(name="catch", settings={"rows": 10, "columns": 5, "least_moves": 9, "most_moves": 9})
    game = whole.make(Session(there))
    questions = {game.ask(seed) for seed in range(60)}
    game.close()
    assert len(questions) == 5
    assert all("\nBall: row 1," in question and "Paddle: column 3" in question for question in questions)


def test_a_question_knows_its_kind(game: Any):
    question = "Board: 16 rows, 20 columns.\n....\nBall: row 11, column 12. Paddle: column 17."
    assert game.slices(0, question) == {"moves": 5, "columns away": 5, "side": "left"}


# --- the moves --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("error_rate", "least", "most"), [(0.0, 150, 150), (0.2, 105, 135), (1.0, 0, 0)])
def test_the_scripted_policy_catches_every_ball_but_on_the_share_it_is_told(
    there: EnvironmentServer, error_rate: float, least: int, most: int
):
    with EnvironmentPool(CATCH, there) as pool:
        played = dict(pool.map(lambda game, seed: result_of(play(game, seed, error_rate)), range(150)))
    assert {reward for _, _, reward in played.values()} <= {0.0, 1.0}
    assert least <= sum(reward == 1.0 for _, _, reward in played.values()) <= most
    assert all(valid and done for valid, done, _ in played.values())


def test_the_last_reply_does_not_tell_whether_the_ball_was_caught(game: Any):
    caught, missed = play(game, 3), play(game, 3, error_rate=1.0)
    assert (caught.messages[-1]["content"], missed.messages[-1]["content"]) == ("OK.", "OK.")
    assert game.correct == f"column {columns(missed.question)[0]}"


@pytest.mark.parametrize(
    ("said", "meant"), [("left", "left"), ("Left ", "left"), (" RIGHT", "right"), ("\tstay\n", "stay")]
)
def test_case_and_space_around_a_direction_do_not_matter(game: Any, said: str, meant: str):
    game.ask(0)
    expected = game.environment.move(meant)
    game.ask(0)
    assert game.environment.move(said) == expected


@pytest.mark.parametrize(
    "said", ["up", "rightt", "", "左", "\ud800", "🏓" * 30_000, None, 2, True, ["left"], {"direction": "left"}]
)
def test_what_is_no_direction_is_refused_in_words_and_taken_for_none(game: Any, said: Any):
    paddle = columns(game.ask(0))[1]
    with pytest.raises(ValueError, match="left, right or stay") as refused:
        game.environment.move(said)
    assert columns(str(refused.value))[1] == paddle
    assert len(str(refused.value)) < 150
    assert "Paddle" in game.environment.move("stay"), "the session goes on"


def test_a_refused_direction_costs_a_row_and_a_share_of_the_reward(game: Any):
    above(game)
    row = 0
    while not game.done:
        row += 1
        if row == 1:
            with pytest.raises(ValueError, match="the ball fell"):
                game.environment.move("up")
        else:
            game.environment.move("stay")
    assert game.reward == (row - 1) / row


def test_refused_directions_alone_earn_nothing_though_the_ball_falls_on_the_paddle(game: Any):
    above(game)
    while not game.done:
        with pytest.raises(ValueError, match="left, right or stay"):
            game.environment.move("banana")
    assert game.reward == 0.0


def test_a_call_after_the_end_is_refused_and_changes_no_reward(game: Any):
    play(game, 5)
    for direction in ("left", "up"):
        with pytest.raises(ValueError, match="over"):
            game.environment.move(direction)
    assert game.reward == 1.0


def test_a_direction_that_is_none_is_off_the_schema_that_models_see():
    tools = CATCH.make().schemas
    assert tools[0]["function"]["parameters"]["properties"]["direction"]["enum"] == ["left", "right", "stay"]
    assert problems(called("move", {"direction": "up"}), tools) == ["arguments off the schema"]
    assert problems(called("move", {"direction": "stay"}), tools) == []


# --- the server -------------------------------------------------------------------------------------------------------


def test_many_sessions_at_once_play_as_one_alone(there: EnvironmentServer, game: Any):
    exclusive = {seed: play(game, seed, 0.3).messages for seed in range(64)}
    with EnvironmentPool(CATCH, there) as pool:
        together = dict(pool.map(lambda each, seed: play(each, seed, 0.3).messages, range(64)))
    assert together == exclusive


def test_the_wire_is_that_of_the_published_openspiel_environment(there: EnvironmentServer):
    session = Session(there)
    reset = session.reset(seed=1)  # OpenSpiel's own board of 10 × 5
    seen = reset.observation
    assert (len(seen["info_state"]), sum(seen["info_state"]), seen["legal_actions"]) == (50, 2.0, [0, 1, 2])
    assert (seen["game_phase"], seen["current_player_id"], seen["opponent_last_action"]) == ("initial", 0, None)
    paddle = seen["info_state"].index(1.0, 45)
    moved = session.step({"action_id": "0", "game_name": "catch", "game_params": {}})  # "0" and 0 are one
    assert moved.observation["info_state"].index(1.0, 45) == paddle - 1
    assert (moved.observation["game_phase"], moved.done, moved.reward) == ("playing", False, 0.0)
    session.close()


@pytest.mark.parametrize("action", [{"action_id": 3}, {"action_id": -1}])
def test_an_action_that_the_game_has_not_scores_nobody_and_the_session_plays_on(there: EnvironmentServer, action: dict):
    session = Session(there)
    session.reset(seed=1)
    with pytest.raises(BadReply, match="is no move: 0 is left, 1 is stay, 2 is right"):
        session.step(action)
    assert session.step({"action_id": 1}).observation["game_phase"] == "playing"
    session.close()


@pytest.mark.parametrize(
    ("board", "why"),
    [
        ({"columns": 1}, "columns.*greater than or equal to 2"),
        ({"rows": 41}, "rows.*less than or equal to 40"),
        ({"least_moves": 4, "most_moves": 3}, "is more than most_moves"),
        ({"rows": 4, "most_moves": 4}, r"most_moves \(4\) must be less than rows \(4\)"),
        ({"rows": "many"}, "rows.*valid integer"),
    ],
)
def test_a_board_that_cannot_be_played_is_refused_by_settings_and_by_the_server(
    there: EnvironmentServer, board: dict[str, Any], why: str
):
    with pytest.raises(ValidationError, match=f"(?s){why}"):
        Environment.Settings.model_validate(board)
    session = Session(there)
    with pytest.raises(Refused, match=f"(?s)Catch refuses .*{why}"):
        session.reset(seed=1, **(Board().model_dump() | board))
    assert not session.reset(seed=1).done, "the session is not dead"
    session.close()


def test_a_reset_without_a_seed_is_refused(there: EnvironmentServer):
    with pytest.raises(Refused, match="names its question"):
        Session(there).reset(rows=10, columns=5)


def test_a_server_that_plays_another_board_than_asked_for_is_refused(there: EnvironmentServer):
    class Deaf(Session):
        def reset(self, **question: Any):
            return super().reset(seed=question["seed"])

    with pytest.raises(BadReply, match="14 rows and 20 columns"):
        CATCH.make(Deaf(there)).environment.reset(seed=1)
