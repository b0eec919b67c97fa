"""Sudoku: a seed is a puzzle with one solution; moves are checked, told apart, and never cost the session."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pydantic import ValidationError

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.serving.process import local_server
from apprentice.envs.sudoku import env
from apprentice.envs.sudoku.grid import empty_cells, possible, solutions
from apprentice.envs.wire.reply import BadReply
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Refused, Session
from apprentice.tasks.episodes.episode import Episode
from apprentice.tasks.episodes.texts import same_text

NORMAL = EnvironmentSpec(name="sudoku", settings={"clues": 55, "mistakes": 2})
MARKED = EnvironmentSpec(name="sudoku", settings={"clues": 77, "marks": True, "mistakes": 0})


@pytest.fixture(scope="module")
def server() -> Iterator[EnvironmentServer]:
    with local_server("apprentice.envs.serving.serve", "sudoku", "--max-sessions", "64") as url:
        yield EnvironmentServer(url=url, sessions=16)


@pytest.fixture
def game(server: EnvironmentServer) -> Iterator[Any]:
    """A puzzle in play, two mistakes allowed, with its question and its solution."""
    environment: Any = NORMAL.make(Session(server))
    environment.grid = env.read(environment.ask(3))
    environment.solved = solutions(environment.grid, 1)[0]
    yield environment
    environment.close()


def played(spec: EnvironmentSpec, server: EnvironmentServer, seed: int, error_rate: float = 0.0) -> Episode:
    """An episode as the scripted teacher plays it."""
    episode = Episode(spec.make(Session(server)), seed)
    while not episode.done:
        name, arguments = env.call(spec.settings, episode.messages, error_rate)
        episode.step(said(name, arguments))
    episode.player.close()
    return episode


def said(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


def wrong_moves(game: Any) -> Iterator[tuple[int, int, int]]:
    """Digits that the rules allow in an empty cell, and the solution does not."""
    for row, column in empty_cells(game.grid):
        for digit in possible(game.grid, row, column) - {game.solved[row][column]}:
            yield row + 1, column + 1, digit


def right_move(game: Any, place: int = 0) -> tuple[int, int, int]:
    row, column = empty_cells(game.grid)[place]
    return row + 1, column + 1, game.solved[row][column]


@pytest.mark.long
def test_the_same_seed_is_the_same_puzzle_on_two_servers_and_another_one_another(server: EnvironmentServer):
    with local_server("apprentice.envs.serving.serve", "sudoku") as other:
        here, there = NORMAL.make(Session(server)), NORMAL.make(Session(EnvironmentServer(url=other)))
        puzzles = [(here.ask(seed), there.ask(seed)) for seed in (7, 100_000_000, 7)]
        here.close()
        there.close()
    assert all(one == two for one, two in puzzles)
    assert puzzles[0] == puzzles[2] != puzzles[1]


def test_a_puzzle_neither_reads_nor_moves_the_global_random_state():
    from apprentice.envs.sudoku.puzzle import Puzzle

    first = Puzzle(5, 60, 60).board
    random.random()
    before = random.getstate()
    assert Puzzle(5, 60, 60).board == first
    assert random.getstate() == before


@pytest.mark.parametrize("clues", [80, 60, 30])
def test_a_puzzle_has_as_many_clues_as_asked_for_and_one_solution(server: EnvironmentServer, clues: int):
    environment = EnvironmentSpec(name="sudoku", settings={"clues": clues}).make(Session(server))
    for seed in range(5):
        grid = env.read(environment.ask(seed))
        assert len(solutions(grid, 2)) == 1
        assert len(empty_cells(grid)) == 81 - clues
    environment.close()


def test_a_span_of_clues_gives_easy_puzzles_among_harder_ones(server: EnvironmentServer):
    spec = EnvironmentSpec(name="sudoku", settings={"clues": 77, "most_clues": 80})
    environment = spec.make(Session(server))
    empty = [environment.ask(seed).count(".") for seed in range(40)]
    environment.close()
    assert set(empty) == {1, 2, 3, 4}
    assert environment.max_turns == 4 + 3


def test_thousands_of_seeds_ask_as_many_different_questions(server: EnvironmentServer):
    environment = MARKED.make(Session(server))
    questions = {same_text(environment.ask(seed)) for seed in range(500)}
    environment.close()
    assert len(questions) == 500


def test_our_count_of_solutions_is_textarenas():
    from textarena.envs.Sudoku.env import SudokuEnv

    from apprentice.envs.sudoku.puzzle import Puzzle

    textarena_env = SudokuEnv()
    several = 0
    for seed in range(20):
        grid = Puzzle(seed, 36, 36).board
        for row, column in random.Random(seed).sample([(r, c) for r in range(9) for c in range(9)], 12):
            grid[row][column] = 0
        counted: list[Any] = []
        textarena_env._count_solutions([row[:] for row in grid], counted)
        assert len(solutions(grid, 2)) == len(counted)
        several += len(counted) == 2
    assert several > 0


@pytest.mark.parametrize("spec", [NORMAL, MARKED], ids=["normal", "marked"])
def test_the_scripted_teacher_solves_what_it_does_not_err_in(spec: EnvironmentSpec, server: EnvironmentServer):
    rewards = [played(spec, server, seed, error_rate=0.5).reward for seed in range(20)]
    assert all(played(spec, server, seed).reward == 1.0 for seed in range(3))
    assert 4 <= sum(reward == 1.0 for reward in rewards) <= 16
    assert all(reward is not None and 0.0 <= reward <= 1.0 for reward in rewards)


def test_an_episode_of_the_teacher_is_valid_and_its_last_reply_gives_nothing_away(server: EnvironmentServer):
    episode = played(MARKED, server, 1)
    replies = [message["content"] for message in episode.messages if message["role"] == "tool"]
    assert episode.valid
    assert episode.turns == 4
    assert [reply.rpartition(". ")[2] for reply in replies] == ["3 of 4 left.", "2 of 4 left.", "1 of 4 left.", "OK."]
    grid, solved = env.read(episode.question), str(episode.player.correct).split("\n")
    assert solved == ["".join(map(str, row)) for row in solutions(grid, 1)[0]]


def test_a_reply_holds_what_was_placed_and_how_much_is_left_and_no_grid(game):
    row, column, digit = right_move(game)
    assert game.environment.place(row, column, digit) == f"Placed {digit} at ({row}, {column}). 25 of 26 left."
    assert game.reward == pytest.approx(1 / 26)
    assert not game.done


def test_a_refused_move_is_told_why_and_earns_nothing(game):
    row, column, digit = right_move(game)
    given_row, given_column = next((r + 1, c + 1) for r in range(9) for c in range(9) if game.grid[r][c])
    seen = next(value for value in game.grid[row - 1] if value)
    refusals = [game.environment.place(given_row, given_column, 5), game.environment.place(row, column, seen)]
    assert refusals[0] == (
        f"Refused: row {given_row}, column {given_column} is given. 26 of 26 left. Mistakes left: 1."
    )
    assert refusals[1] == f"Refused: {seen} is in row {row}. 26 of 26 left. Mistakes left: 0."
    assert game.reward == 0.0
    assert game.environment.place(row, column, digit).startswith("Placed")


def test_a_move_that_breaks_a_column_or_a_box_is_told_apart_from_one_that_the_solution_refuses(server):
    environment: Any = EnvironmentSpec(name="sudoku", settings={"clues": 45, "mistakes": 100}).make(Session(server))
    grid = env.read(environment.ask(1))
    solved = solutions(grid, 1)[0]
    reasons = {"is in column": 0, "is in the box": 0, "leads to no solution": 0}
    for row, column in empty_cells(grid)[:16]:
        for digit in set(range(1, 10)) - {solved[row][column]} - set(grid[row]):
            in_column = digit in [each[column] for each in grid]
            in_box = not in_column and digit not in possible(grid, row, column)
            reason = "is in column" if in_column else "is in the box" if in_box else "leads to no solution"
            reasons[reason] += 1
            assert environment.environment.place(row + 1, column + 1, digit).startswith(f"Refused: {digit} {reason}")
    environment.close()
    assert all(reasons.values())


def test_pencil_marks_list_what_is_left_to_each_cell_and_a_reply_only_those_that_changed(server: EnvironmentServer):
    environment: Any = EnvironmentSpec(name="sudoku", settings={"clues": 40, "marks": True}).make(Session(server))
    question = environment.ask(1)
    grid = env.read(question)
    solved, marks = solutions(grid, 1)[0], question.split("\n")[10:]
    assert marks == [marked(grid, *cell) for cell in empty_cells(grid)]
    for row, column in empty_cells(grid)[:10]:
        before = [marked(grid, *cell) for cell in empty_cells(grid)]
        reply = environment.environment.place(row + 1, column + 1, solved[row][column])
        grid[row][column] = solved[row][column]
        new = [marked(grid, *cell) for cell in empty_cells(grid) if marked(grid, *cell) not in before]
        assert reply.partition(" left.")[2] == (f" Now {'; '.join(new)}." if new else "")
    environment.close()


def marked(grid: Any, row: int, column: int) -> str:
    return f"row {row + 1}, column {column + 1}: {' '.join(map(str, sorted(possible(grid, row, column))))}"


def test_what_was_tried_in_a_cell_is_said_when_it_is_tried_again(game):
    row, column, digit = next(wrong_moves(game))
    first, second = game.environment.place(row, column, digit), game.environment.place(row, column, digit)
    assert "Tried" not in first
    assert f"Tried there: {digit}." in second


def test_a_cell_that_the_player_filled_cannot_be_filled_again(game):
    row, column, digit = right_move(game)
    game.environment.place(row, column, digit)
    assert f"row {row}, column {column} is filled" in game.environment.place(row, column, digit)


def test_the_game_ends_with_one_mistake_too_many_and_keeps_what_was_earned(game):
    game.environment.place(*right_move(game))
    row, column, digit = next(move for move in wrong_moves(game) if move[:2] != right_move(game)[:2])
    replies = [game.environment.place(row, column, digit) for _ in range(3)]
    assert game.done
    assert replies[2] == "OK."
    assert game.reward == pytest.approx(1 / 26)
    with pytest.raises(ValueError, match="over"):
        game.environment.place(*right_move(game, 1))


def test_the_longest_game_fits_the_turns(server: EnvironmentServer):
    spec = EnvironmentSpec(name="sudoku", settings={"clues": 77, "mistakes": 2})
    episode = Episode(spec.make(Session(server)), 1)
    given = env.read(episode.question)
    solved = solutions(given, 1)[0]
    *rest, last = empty_cells(given)
    wrong = {"row": last[0] + 1, "column": last[1] + 1, "digit": solved[last[0]][last[1]] % 9 + 1}
    moves = [{"row": r + 1, "column": c + 1, "digit": solved[r][c]} for r, c in rest] + [wrong] * 3
    for move in moves:
        assert not episode.done
        episode.step(said("place", move))
    episode.player.close()
    assert episode.done
    assert episode.player.done
    assert episode.turns == episode.player.max_turns
    assert episode.reward == 0.75


@pytest.mark.parametrize("bad", ["seven", "", None, 0, 10, -1, True, 7.5, [7], "九九", "9" * 5000, "\ud800"])
def test_what_is_no_digit_is_told_so_and_the_game_goes_on(game, bad: Any):
    for move in ([bad, 1, 1], [1, bad, 1], [1, 1, bad]):
        with pytest.raises(ValueError, match="whole number, 1 to 9"):
            game.environment.place(*move)
    assert game.environment.place(*right_move(game)).startswith("Placed")


def test_a_digit_as_text_or_in_another_script_is_that_digit(game):
    row, column, digit = right_move(game)
    assert game.environment.place(str(row), f" {column} ", chr(ord("٠") + digit)).startswith(f"Placed {digit} ")


@pytest.mark.parametrize(
    "message", ["", "5 3 7", "[5,3,7]", "[0 1 1]", "[1 1 10]", "[1 1]", f"[1 1 {'9' * 9000}]", "[五 三 七]", "\x00🧩"]
)
def test_a_stock_players_malformed_move_is_a_mistake_and_no_dead_session(server: EnvironmentServer, message: str):
    session = Session(server)
    session.reset(seed=3, clues=55, mistakes=2)
    reply = session.step({"message": message})
    assert reply.observation["messages"][0]["content"].startswith("Refused: ")
    assert reply.observation["info"] == {"left": 26, "empty": 26, "mistakes_left": 1}
    assert not reply.done
    session.close()


def test_a_move_is_found_in_the_words_around_it_as_textarena_does(server: EnvironmentServer):
    session = Session(server)
    grid = env.read(session.reset(seed=3, clues=55, mistakes=2).observation["prompt"])
    row, column = empty_cells(grid)[0]
    digit = solutions(grid, 1)[0][row][column]
    reply = session.step({"message": f"Only one fits: [{row + 1} {column + 1} {digit}]."})
    session.close()
    assert reply.observation["messages"][0]["content"].startswith("Placed ")


def test_many_sessions_at_once_do_not_disturb_one_another(server: EnvironmentServer):
    with ThreadPoolExecutor(12) as threads:
        episodes = list(threads.map(lambda seed: played(NORMAL, server, seed % 6), range(24)))
    assert all(episode.reward == 1.0 for episode in episodes)
    assert len({episode.question for episode in episodes}) == 6
    assert all(one.messages == other.messages for one, other in zip(episodes[:6], episodes[18:], strict=True))


def test_a_difficulty_means_textarenas_clues_and_as_many_turns(server: EnvironmentServer):
    for name, clues in (("very-easy", 75), ("easy", 70), ("normal", 60), ("medium", 40)):
        environment = EnvironmentSpec(name="sudoku", settings={"difficulty": name, "mistakes": 4}).make(Session(server))
        question = environment.ask(2)
        environment.close()
        assert question.count(".") == 81 - clues == environment.slices(2, question)["empty cells"]
        assert environment.max_turns == 81 - clues + 4


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"difficulty": "brutal"}, "very-easy"),
        ({"clues": 16}, "greater than or equal to 17"),
        ({"clues": 81}, "less than or equal to 80"),
        ({"clues": 60, "most_clues": 50}, "less than the clues"),
        ({"mistakes": -1}, "greater than or equal to 0"),
        ({"size": 4}, "Extra inputs"),
        ({"rules": "textarena", "clues": 70, "mistakes": 2}, "clues, mistakes: not by TextArena's rules"),
    ],
)
def test_settings_that_no_puzzle_can_have_are_refused(settings: dict[str, Any], words: str):
    with pytest.raises(ValidationError, match=words):
        EnvironmentSpec(name="sudoku", settings=settings)


@pytest.mark.parametrize(
    ("reset", "words"),
    [
        ({"clues": 60}, "names its puzzle"),
        ({"seed": 1, "clues": 3}, "clues must be 17 to 80"),
        ({"seed": 1, "clues": 60, "most_clues": 90}, "most_clues must be 60 .* to 80"),
        ({"seed": 1, "mistakes": 1000}, "mistakes must be 0 to 100"),
        ({"seed": 1, "clues": 3, "rules": "textarena"}, "clues must be 17 to 80"),
        ({"seed": 1, "marks": True, "rules": "textarena"}, "are of the rules apprentice"),
        ({"seed": 1, "rules": "mine"}, "known: textarena, apprentice"),
    ],
)
def test_a_reset_that_names_no_puzzle_comes_back_as_words(server: EnvironmentServer, reset: dict, words: str):
    session = Session(server)
    with pytest.raises(Refused, match=words):
        session.reset(**reset)
    session.close()


def test_a_step_after_the_end_scores_nobody_and_says_why(server: EnvironmentServer):
    session = Session(server)
    session.reset(seed=1, clues=60, mistakes=0)
    assert session.step({"message": "no move"}).done
    with pytest.raises(BadReply, match="reset first"):
        session.step({"message": "[1 1 1]"})
    session.close()
