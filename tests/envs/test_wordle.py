"""Wordle keeps TextArena's rules, gives each seed one word on any server, and needs no download."""

import json
import logging
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from pydantic import ValidationError

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Refused, Session
from apprentice.envs.wordle import env, words
from apprentice.tasks.episodes.episode import Episode
from tests.envs.published.nltk_data import write_nltk_data
from tests.tokenizers import build_tokenizer

OPEN = EnvironmentSpec(name="wordle")
WRONG_FORM = "You tried submitting a word in the wrong format. Please make sure to use squared brackets."
AMONG_TEN = EnvironmentSpec(name="wordle", settings={"candidates": 10})


@pytest.fixture(scope="module")
def wordle() -> Iterator[EnvironmentServer]:
    with local_server("apprentice.envs.serving.serve", "wordle", "--max-sessions", "32") as url:
        yield EnvironmentServer(url=url, sessions=16)


@pytest.fixture(scope="module")
def other() -> Iterator[EnvironmentServer]:
    """A second server, where NLTK has a little data."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        write_nltk_data(Path(folder), ["table", "stone", "quick", "apple", "sky"], nouns=["table", "stone", "apple"])
        patch.setenv("NLTK_DATA", folder)
        with local_server("apprentice.envs.serving.serve", "wordle") as url:
            yield EnvironmentServer(url=url)


@pytest.fixture
def game(wordle: EnvironmentServer) -> Iterator[Any]:
    """An open game, whose word under seed 1 is crave."""
    environment: Any = OPEN.make(Session(wordle))
    environment.ask(1)
    assert words.puzzle("wordle", 0, 1).secret == "crave"
    yield environment
    environment.close()


def said(word: Any) -> dict[str, Any]:
    """An assistant's message, over the wire's format."""
    function = {"name": "guess", "arguments": json.dumps({"word": word})}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


def scripted(environment: Any, seed: int, error_rate: float = 0.0) -> Episode:
    episode = Episode(environment, seed)
    while not episode.done:
        _, arguments = env.call(environment.environment.settings.model_dump(), episode.messages, error_rate)
        episode.step(said(arguments["word"]))
    return episode


# --- the game -------------------------------------------------------------------------------------------------------


def test_a_reply_holds_the_marks_of_this_guess_and_the_guesses_left(game: Any):
    assert game.environment.guess("crane") == "G G G X G\nGuesses left: 5."
    assert game.environment.guess("knack") == "X X G Y X\nGuesses left: 4."


def test_the_word_ends_the_game_with_the_whole_reward(game: Any):
    assert game.environment.guess("crave") == "OK."
    assert (game.reward, game.done, game.correct) == (1.0, True, "crave")


def test_six_misses_end_the_game_without_reward_and_the_last_reply_gives_nothing_away(game: Any):
    replies = [game.environment.guess(word) for word in ("crane", "slate", "cigar", "rebut", "sissy", "humph")]
    assert replies[-1] == "OK."
    assert [reply[-3:] for reply in replies[:-1]] == [" 5.", " 4.", " 3.", " 2.", " 1."]
    assert (game.reward, game.done, game.correct) == (0.0, True, "crave")


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("zzzzz", "'zzzzz' is not an English word."),
        ("cranes", "Your word must be exactly 5 letters."),
        ("slate", "You have already guessed 'slate' before. Please try a different word."),
        (
            "two words",
            WRONG_FORM,
        ),
        ("", WRONG_FORM),
        ("слово", "'слово' is not an English word."),
        ("🟩🟩🟩🟩🟩", WRONG_FORM),
        (12345, "'12345' is not an English word."),
        (None, "Your word must be exactly 5 letters."),
        (
            {"word": "crane"},
            WRONG_FORM,
        ),
        ("cr\ud800ne", WRONG_FORM),
    ],
    ids=str,
)
def test_an_invalid_guess_is_told_so_costs_a_turn_and_earns_nothing(game: Any, word: Any, why: str):
    game.environment.guess("slate")
    assert game.environment.guess(word) == f"{why}\nGuesses left: 4."
    assert game.scores() == {"correct": 0.0, "greens": 0.0, "yellows": 0.0, "repetition": 0.5}
    assert game.environment.guess("crave") == "OK."
    assert game.reward == 1.0


def test_six_invalid_guesses_are_a_lost_game(game: Any):
    assert [game.environment.guess("zzzzz") for _ in range(6)][-1] == "OK."
    assert (game.reward, game.done) == (0.0, True)
    assert set(game.scores().values()) == {0.0}


def test_an_oversized_guess_is_refused_and_the_session_lives_on(game: Any):
    with pytest.raises(ValueError, match="too long"):
        game.environment.guess("crane" * 10_000)
    assert game.environment.guess("crane").startswith("G G G X G")


@pytest.mark.parametrize("written", ["CRAVE", " crave\n", "[crave]"])
def test_spelling_habits_are_no_mistakes(game: Any, written: str):
    game.environment.guess(written)
    assert game.reward == 1.0


def test_a_guess_after_the_end_is_refused_and_changes_nothing(game: Any):
    game.environment.guess("crave")
    with pytest.raises(ValueError, match="over"):
        game.environment.guess("slate")
    assert game.reward == 1.0
    assert game.ask(1)
    assert game.environment.guess("slate").endswith("5.")


def test_several_guesses_in_one_message_are_played_one_by_one(game: Any):
    episode = Episode(game, 1)
    calls = [call for word in ("slate", "crave", "cigar") for call in said(word)["tool_calls"]]
    episode.step({"role": "assistant", "content": None, "tool_calls": calls})
    replies = [message["content"] for message in episode.messages if message["role"] == "tool"]
    assert replies[1] == "OK."
    assert "over" in replies[2]
    assert episode.reward == 1.0


# --- streams --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guesses", "streams"),
    [
        (["crave"], (1.0, 1.0, 0.0, 1.0)),
        (["slate"], (0.0, 0.4, 0.0, 1.0)),
        (["slate", "knack"], (0.0, 0.2, 0.2, 1.0)),
        (["knack", "slate", "slate"], (0.0, 0.0, 0.0, 2 / 3)),
        (["slate", "slate", "slate", "slate"], (0.0, 0.0, 0.0, 0.25)),
        ([], (0.0, 0.0, 0.0, 0.0)),
    ],
)
def test_the_four_streams_tell_of_the_last_turn_and_repetition_of_all(game: Any, guesses: list[str], streams: tuple):
    for word in guesses:
        game.environment.guess(word)
    assert tuple(game.scores().values()) == pytest.approx(streams)
    assert list(game.scores()) == list(game.streams) == ["correct", "greens", "yellows", "repetition"]


def test_streams_begin_anew_with_each_game_and_are_none_where_infrastructure_failed(game: Any):
    game.environment.guess("crane")
    game.ask(2)
    assert set(game.scores().values()) == {0.0}
    game.environment.reward = None
    assert game.scores() == {"correct": None, "greens": None, "yellows": None, "repetition": None}


# --- seeds ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("task", [OPEN, AMONG_TEN], ids=str)
def test_the_same_seed_is_the_same_game_on_two_servers(
    task: EnvironmentSpec, wordle: EnvironmentServer, other: EnvironmentServer
):
    def replies(server: EnvironmentServer, seed: int) -> list[Any]:
        environment: Any = task.make(Session(server))
        transcript = (
            environment.ask(seed),
            environment.environment.guess("slate"),
            environment.environment.guess("crony"),
        )
        for word in ("cigar", "rebut", "sissy", "humph"):
            environment.environment.guess(word)
        environment.close()
        return [*transcript, environment.correct]

    for seed in (3, 200_000_000, 3):
        assert replies(wordle, seed) == replies(other, seed)
    assert replies(wordle, 3) != replies(wordle, 4)


@pytest.mark.parametrize("candidates", [0, 2, 10])
def test_equal_texts_are_equal_puzzles_and_others_are_not(candidates: int):
    puzzles = [words.puzzle("wordle", candidates, seed) for seed in range(3000)]
    hidden = {(puzzle.secret, puzzle.candidates) for puzzle in puzzles}
    assert len({puzzle.question for puzzle in puzzles}) == len(hidden) == len(set(puzzles)) > 1500
    assert all(puzzle.secret in (puzzle.candidates or [puzzle.secret]) for puzzle in puzzles)


def test_no_two_words_of_the_list_share_a_puzzles_name():
    found: set[str] = set()
    seed = 0
    while len(found) < 2315:
        found.add(words.puzzle("wordle", 0, seed).question)
        seed += 1
        assert seed < 60_000
    assert set(words.word_list("wordle")) == {words.puzzle("wordle", 0, each).secret for each in range(seed)}


def test_a_puzzle_is_drawn_beside_the_global_random_state():
    random.seed(5)
    before = random.getstate()
    words.puzzle("wordle", 10, 7)
    assert random.getstate() == before


def test_many_sessions_at_once_do_not_disturb_one_another(wordle: EnvironmentServer):
    exclusive = {seed: words.puzzle("wordle", 10, seed).secret for seed in range(96)}

    def play(environment: Any, seed: int) -> tuple[float | None, str]:
        return scripted(environment, seed).reward, environment.correct

    with EnvironmentPool(AMONG_TEN, wordle) as pool:
        assert dict(pool.map(play, list(exclusive))) == {seed: (1.0, secret) for seed, secret in exclusive.items()}


# --- word lists -----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_list_in_use_is_named_in_each_observation_and_in_the_servers_log(
    wordle: EnvironmentServer, caplog: pytest.LogCaptureFixture
):
    session = Session(wordle)
    named = "wordle: 2315 words, the original game's, from the package reasoning_gym"
    assert session.reset(seed=1).observation["word_list"] == named
    assert session.step({"message": "[slate]"}).observation["word_list"] == named
    session.close()
    words.word_list.cache_clear()
    with caplog.at_level(logging.INFO, "uvicorn.error"):
        words.word_list("wordle")
    assert f"Word list in use: {named}" in caplog.text


def test_a_list_that_the_machine_has_not_is_refused_with_what_to_do():
    code = "import nltk; nltk.data.path[:] = []\nfrom apprentice.envs.wordle.words import word_list\n"
    out = subprocess.run([sys.executable, "-c", code + "word_list('textarena')"], capture_output=True, text=True)
    assert "ValueError: the word list 'textarena' is made from NLTK's data, which the server's machine" in out.stderr
    assert "run there `python -m nltk.downloader words averaged_perceptron_tagger_eng`, or choose words: wordle" in (
        out.stderr
    )


@pytest.mark.long
def test_textarenas_own_list_is_used_where_nltk_has_its_data(other: EnvironmentServer):
    session = Session(other)
    seen = session.reset(seed=1, words="textarena", candidates=3).observation
    session.close()
    assert sorted(words.candidates_in(seen["question"])) == ["apple", "stone", "table"]
    assert seen["word_list"].startswith("textarena: 3 words")


@pytest.mark.long
def test_no_download_is_tried_and_nltks_own_function_is_left_as_it_was():
    code = (
        "import nltk, nltk.downloader as d\n"
        "def refuse(*_, **__): raise SystemExit('a download was tried')\n"
        "d.Downloader.download = refuse; mine = nltk.download\n"
        "from apprentice.envs.wordle.rules import accepted\n"
        "assert 'slate' in accepted('wordle') and nltk.download is mine\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)


# --- settings and wire ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words_of_it"),
    [({"candidates": 1}, "is the answer"), ({"candidates": 101}, "100"), ({"words": "latin"}, "textarena")],
)
def test_settings_that_make_no_game_are_refused(settings: dict[str, Any], words_of_it: str):
    with pytest.raises(ValidationError, match=words_of_it):
        EnvironmentSpec(name="wordle", settings=settings)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "names its puzzle"),
        ({"seed": 1, "candidates": 1}, "0, or 2 to 2315"),
        ({"seed": 1, "candidates": 5000}, "0, or 2 to 2315"),
        ({"seed": 1, "words": "latin"}, "known: wordle, textarena"),
        ({"seed": 1, "rules": "mine"}, "known: apprentice, textarena"),
    ],
)
def test_the_server_refuses_what_names_no_puzzle_and_the_session_lives_on(
    wordle: EnvironmentServer, given: dict[str, Any], why: str
):
    session = Session(wordle)
    with pytest.raises(Refused, match=why):
        session.reset(**given)
    assert session.reset(seed=1).observation["question"] == words.puzzle("wordle", 0, 1).question
    session.close()


# --- who plays ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [OPEN, AMONG_TEN], ids=str)
def test_the_scripted_policy_finds_the_word_and_errs_on_the_share_it_is_told(
    task: EnvironmentSpec, wordle: EnvironmentServer
):
    def right(error_rate: float) -> int:
        with EnvironmentPool(task, wordle) as pool:
            return sum(
                won == 1.0 for _, won in pool.map(lambda each, seed: scripted(each, seed, error_rate).reward, range(40))
            )

    assert right(0.0) >= 39
    assert 26 <= right(0.2) <= 37


def test_the_policy_takes_no_more_candidates_than_guesses_in_turn_and_wins(wordle: EnvironmentServer):
    task = EnvironmentSpec(name="wordle", settings={"candidates": 4})
    with EnvironmentPool(task, wordle) as pool:
        played = dict(pool.map(lambda each, seed: (lambda e: (e.reward, e.turns))(scripted(each, seed)), range(12)))
    for seed, (reward, turns) in played.items():
        puzzle = words.puzzle("wordle", 4, seed)
        assert (reward, turns) == (1.0, puzzle.candidates.index(puzzle.secret) + 1)


def test_the_policys_marks_are_textarenas(game: Any):
    for word in ("knack", "slate", "cacao", "karma", "array"):
        assert game.environment.guess(word).split("\n")[0] == env.marks(word, "crave")


def test_a_student_that_is_built_here_reads_a_reply_in_a_few_tokens(game: Any):
    tokenizer = build_tokenizer(AMONG_TEN, [words.puzzle("wordle", 10, seed).question for seed in range(20)])
    for word in ("crane", "crane", "zzzzz", "no", "no word"):
        assert len(tokenizer(game.environment.guess(word))["input_ids"]) <= 8


def test_an_evaluation_can_be_sliced_by_what_lies_in_the_seed():
    environment = AMONG_TEN.make()
    puzzle = words.puzzle("wordle", 10, 3)
    assert environment.slices(3, puzzle.question) == {
        "different letters": len(set(puzzle.secret)),
        "place": puzzle.candidates.index(puzzle.secret) + 1,
    }
    assert environment.slices(4, puzzle.question) == {}
