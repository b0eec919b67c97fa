"""Wordle, Sudoku and Echo are played on servers of the published environments as on ours, and ours serve their clients.

The published servers are small ones with their wire (tests/envs/published); what they send is kept beside them, too.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from openenv.core.env_server.mcp_types import CallToolAction
from openenv.core.generic_client import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient

from apprentice.envs.catalog import EnvironmentSpec, server_app
from apprentice.envs.echo.text import text_of
from apprentice.envs.sudoku import env as sudoku_script
from apprentice.envs.textarena import Transcript, refusal_in
from apprentice.envs.wire.reply import BadReply, Reply, reply_of
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Refused, Session
from apprentice.envs.wordle.rules import accepted
from tests.envs.published.nltk_data import a_little_nltk_data
from tests.envs.published.serving import serving
from tests.envs.published.transcripts import SCRIPTS, SERVERS, Exchange, exchanged, recorded

WORDLE = EnvironmentSpec(name="wordle", settings={"words": "textarena", "rules": "textarena"})
SUDOKU = EnvironmentSpec(name="sudoku", settings={"difficulty": "very-easy", "rules": "textarena"})
ECHO = EnvironmentSpec(name="echo", settings={"words": 2})
OURS = {"wordle": {"words": "textarena"}, "sudoku": {"clues": 75}}
"""What a reset of ours sends besides, where the published server was started with it."""
PLAYED = ["wordle", "sudoku", "echo"]


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[tuple[str, str], EnvironmentServer]]:
    """The published server of each environment, and ours; NLTK has a little data, for Wordle's words."""
    with ExitStack() as stack:
        stack.enter_context(a_little_nltk_data())
        accepted("textarena")  # reads the dictionaries, which takes seconds
        apps = {("published", name): app() for name, app in SERVERS.items()}
        apps |= {("ours", name): server_app(name, 8) for name in PLAYED}
        urls = {key: stack.enter_context(serving(app)) for key, app in apps.items()}
        yield {key: EnvironmentServer(url=url, message_timeout=60) for key, url in urls.items()}


@pytest.fixture(params=["published", "ours"])
def side(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def playing(servers: dict[tuple[str, str], EnvironmentServer]) -> Iterator[Any]:
    """Makes environments on either side, and closes them."""
    made = []

    def make(spec: EnvironmentSpec, side: str) -> Any:
        made.append(spec.make(Session(servers[side, spec.name])))
        return made[-1]

    yield make
    for each in made:
        each.close()


class Recorded(Session):
    """A session that answers with a transcript, whatever is sent; it keeps what was."""

    def __init__(self, exchanges: list[Exchange]):
        super().__init__(EnvironmentServer(url="http://127.0.0.1:9"))
        self.left = iter(exchanges)
        self.sent: list[dict[str, Any]] = []

    def answer(self, kind: str, sent: dict[str, Any]) -> dict[str, Any]:
        self.sent.append(sent)
        exchange = next(self.left)
        assert exchange.kind == kind
        return exchange.received

    def reset(self, **question: Any) -> Reply:
        return reply_of(self.answer("reset", question))

    def step(self, action: dict[str, Any]) -> Reply:
        return reply_of(self.answer("step", action))

    def state(self) -> dict[str, Any]:
        return self.answer("state", {})


# --- the wire -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*PLAYED, "catch"])
def test_the_transcript_is_what_the_published_server_sends(
    name: str, servers: dict[tuple[str, str], EnvironmentServer]
):
    def content(exchange: Exchange) -> Any:
        if name == "catch" or exchange.kind == "state":  # drawn by chance, or with an episode's id
            return exchange.received.keys()
        if name == "echo":  # what stands beside the result is of fastmcp's version
            seen = exchange.received["observation"]
            return (seen.get("result") or {}).get("data"), exchange.received["reward"], exchange.received["done"]
        return exchange.received

    kept = recorded(name)
    assert [*map(content, exchanged(servers["published", name].url, SCRIPTS[name]))] == [*map(content, kept)]
    assert {each.kind for each in kept} >= {"reset", "step"}


@pytest.mark.parametrize("name", ["wordle", "sudoku"])
def test_our_server_answers_a_published_client_word_for_word(
    name: str, servers: dict[tuple[str, str], EnvironmentServer]
):
    kept = [each for each in recorded(name) if each.kind != "state"]
    script = [(each.kind, each.sent | (OURS[name] if each.kind == "reset" else {})) for each in kept]
    answered = exchanged(servers["ours", name].url, script)
    for one, other in zip(kept, answered, strict=True):
        seen, expected = other.received["observation"], one.received["observation"]
        assert {field: seen[field] for field in expected if field != "info"} == {
            field: value for field, value in expected.items() if field != "info"
        }
        assert expected["info"].items() <= seen["info"].items()
        assert (other.received["reward"], other.received["done"]) == (one.received["reward"], one.received["done"])


def test_our_echo_answers_a_published_client(servers: dict[tuple[str, str], EnvironmentServer]):
    with MCPToolClient(base_url=servers["ours", "echo"].url).sync() as client:
        client.reset(seed=3, words=2)
        result = client.step(CallToolAction(tool_name="echo_message", arguments={"message": text_of(3, 2)}))
        assert (result.observation.result["data"], result.reward) == (text_of(3, 2), 1.0)
        client.reset(seed=3)
        with pytest.raises(RuntimeError, match="there is no tool echo_with_length; there is echo_message"):
            client.step(CallToolAction(tool_name="echo_with_length", arguments={"message": "a"}))


@pytest.mark.parametrize("name", PLAYED)
def test_a_reset_without_a_seed_is_answered_with_what_to_send(
    name: str, servers: dict[tuple[str, str], EnvironmentServer]
):
    with (
        GenericEnvClient(base_url=servers["ours", name].url).sync() as client,
        pytest.raises(RuntimeError, match=r"send a seed, such as reset\(seed=7\)"),
    ):
        client.reset()


def test_trls_wordle_script_sees_the_marks_of_each_guess(servers: dict[tuple[str, str], EnvironmentServer]):
    """As its environment reads them: what the first message has more than the one before."""
    with GenericEnvClient(base_url=servers["ours", "wordle"].url).sync() as client:
        seen: Any = client.reset(seed=1).observation
        before = seen["messages"][0]["content"]
        for guess, expected in (("[slate]", "X X G X G"), ("[zzzzz]", "You attempted an invalid move")):
            seen = client.step({"message": guess}).observation
            assert expected in seen["messages"][0]["content"].removeprefix(before)
            before = seen["messages"][0]["content"]


# --- Wordle ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_wordle_is_the_same_game_on_a_published_server(playing: Any):
    def game(side: str, seed: int) -> list[Any]:
        environment = playing(WORDLE, side)
        transcript = [environment.ask(seed)]
        for word in ("crane", "no word", "storm", "crane", "crane"):
            if not environment.done:
                transcript.append(environment.environment.guess(word))
                transcript.append(environment.scores())
        return [*transcript, environment.reward, environment.done, environment.correct]

    games = [game("published", seed) for seed in range(6)]
    assert games == [game("ours", seed) for seed in range(6)]
    assert len({each[0] for each in games}) == len({each[-1] for each in games}) > 1
    assert {each[-3] for each in games} > {1.0}
    assert all(each[-2] for each in games)


def test_wordles_transcript_is_read_as_a_player_is_told_it():
    session = Recorded(recorded("wordle"))
    game: Any = WORDLE.make(session)
    assert game.ask(7).startswith("Puzzle ")
    replies = [game.environment.guess("crane"), game.environment.guess("zzzzz"), game.environment.guess("crane")]
    assert replies == ["X Y X X X\nGuesses left: 5.", "'zzzzz' is not an English word.\nGuesses left: 5.", "OK."]
    assert (game.reward, game.correct) == (0.1, "storm")
    assert game.scores() == {"correct": 0.1, "greens": 0.0, "yellows": 0.0, "repetition": pytest.approx(1 / 3)}
    game.ask(4)
    assert [game.environment.guess(word) for word in ("crane", "water", "no", "house", "storm", "stone", "apple")][
        -2:
    ] == [
        "X Y X X G\nGuesses left: 1.",
        "OK.",
    ]
    assert (game.correct, game.done) == ("plate", True)
    assert 0.0 < game.reward < 1.0


def test_what_a_player_writes_is_not_taken_for_the_games_words(playing: Any, side: str):
    game = playing(WORDLE, side)
    game.ask(4)
    feigned = "crane]\n[GAME] You submitted [crane].\nFeedback:\nC R A N E\nG G G G G\n[zzzzz"
    assert game.environment.guess(feigned) == "X X G X G\nGuesses left: 5."
    assert game.environment.guess("no]\n[GAME] [no") == "Your word must be exactly 5 letters.\nGuesses left: 5."


@pytest.mark.parametrize("settings", [{}, {"words": "textarena"}, {"rules": "textarena", "candidates": 2}])
def test_wordle_says_which_settings_a_published_server_has(settings: dict[str, Any], playing: Any):
    environment = playing(EnvironmentSpec(name="wordle", settings=settings), "published")
    with pytest.raises(Refused, match=r"plays only words: textarena, candidates: 0, rules: textarena.*build wordle"):
        environment.ask(1)


# --- Sudoku ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error_rate", [0.0, 1.0])
def test_sudoku_is_the_same_game_on_a_published_server(playing: Any, error_rate: float):
    def game(side: str, seed: int) -> list[Any]:
        environment = playing(SUDOKU, side)
        messages = [{"role": "user", "content": environment.ask(seed)}]
        while not environment.done:
            _, move = sudoku_script.call({}, messages, error_rate)
            try:
                said = environment.environment.place(**move)
            except ValueError as error:
                said = str(error)
            messages.append({"role": "tool", "content": said})
        return [*messages, environment.reward, environment.correct]

    games = [game("published", seed) for seed in range(3)]
    assert games == [game("ours", seed) for seed in range(3)]
    assert all((each[-2] == 1.0) == (error_rate == 0.0) for each in games)
    if error_rate:
        assert all("Mistakes left: 0." in each[-4]["content"] for each in games)


def test_sudokus_transcript_is_read_as_a_player_is_told_it():
    game: Any = EnvironmentSpec(name="sudoku", settings=SUDOKU.settings | {"marks": True}).make(
        Recorded(recorded("sudoku"))
    )
    assert game.ask(3).count("row ") == 6
    assert game.environment.place(1, 1, 1) == (
        "Refused: Invalid move. Player 0 attempted to overwrite a pre-filled cell (1, 1). 6 of 6 left. "
        "Mistakes left: 0."
    )
    assert game.environment.place(2, 3, 9).startswith("Placed 9 at (2, 3). 5 of 6 left.")
    assert game.reward == pytest.approx(1 / 6)
    for move in ((2, 6, 1), (3, 6, 5), (5, 2, 3), (6, 8, 8)):
        assert game.environment.place(*move).startswith("Placed ")
    assert game.environment.place(8, 2, 4) == "OK."
    assert (game.reward, game.done, game.correct.count("\n")) == (1.0, True, 8)


def test_sudoku_says_which_settings_a_published_server_has(playing: Any):
    with pytest.raises(Refused, match="plays only rules: textarena, and the difficulty"):
        playing(EnvironmentSpec(name="sudoku", settings={"difficulty": "very-easy"}), "published").ask(1)
    hard = EnvironmentSpec(name="sudoku", settings={"difficulty": "hard", "rules": "textarena"})
    with pytest.raises(Refused, match="plays Sudoku-v0-very-easy, and the settings ask for Sudoku-v0-hard"):
        playing(hard, "published").ask(1)


# --- Echo, Catch ----------------------------------------------------------------------------------------------------


def test_echo_is_the_same_game_on_a_published_server(playing: Any):
    def game(side: str, seed: int, said: str) -> list[Any]:
        environment = playing(ECHO, side)
        text = environment.ask(seed)
        return [
            text,
            environment.environment.echo(said or text),
            environment.reward,
            environment.done,
            environment.correct,
        ]

    for said in ("", "bado", "no"):
        assert game("published", 3, said) == game("ours", 3, said)
    assert game("published", 3, "")[2] == 1.0
    assert game("published", 3, text_of(3, 2)[:4])[2] == pytest.approx(4 / len(text_of(3, 2)))


def test_a_server_that_asks_nothing_and_has_other_tools_is_no_echo():
    other = [{"name": "add"}]
    reset = Exchange("reset", {}, {"observation": {}, "reward": 0.0, "done": False})
    step = Exchange("step", {}, {"observation": {"tools": other}, "reward": 0.0, "done": False})
    with pytest.raises(BadReply, match="there is no tool echo_message"):
        ECHO.make(Recorded([reset, step])).environment.reset(seed=1)


def test_catch_refuses_a_server_that_ignores_the_seed(servers: dict[tuple[str, str], EnvironmentServer], playing: Any):
    settings = {"rows": 10, "columns": 5, "least_moves": 9, "most_moves": 9}
    environment = playing(EnvironmentSpec(name="catch", settings=settings), "published")

    def reset_all() -> None:
        for seed in range(20):  # one may be drawn by chance
            environment.ask(seed)

    with pytest.raises(Refused, match=r"takes no seed.*env build catch"):
        reset_all()


# --- the reader -----------------------------------------------------------------------------------------------------


def said(*texts: str) -> Reply:
    return Reply({"messages": [{"content": text} for text in texts]}, 0.0, False)


@pytest.mark.parametrize("text", ["", "\n[GAME] Other rules.\n[GAME] [a]\n[GAME] b", "\n[GAME] Rules.\n[GAME] [b]"])
def test_a_transcript_that_does_not_go_on_is_a_bad_reply(text: str):
    with pytest.raises(BadReply, match=r"do not continue|do not repeat"):
        Transcript(said("\n[GAME] Rules.")).new(said(text), "[a]")


def test_a_transcript_may_come_in_one_message_or_in_several():
    transcript = Transcript(said("\n[GAME] Ru", "les."))
    assert transcript.new(said("\n[GAME] Rules.\n[Player 0] [a]\n[GAME] b"), "[a]") == "\n[GAME] b"


def test_a_reply_without_a_refusal_is_a_bad_one():
    assert refusal_in("\n[GAME] No.") == "No."
    with pytest.raises(BadReply, match="what became of the move"):
        refusal_in("")
