"""Scripts err as models do: in every way, on the share that they are told, and rightly once the environment objects."""

import json
from collections import Counter
from random import Random
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.echo.text import text_of
from apprentice.envs.mistakes import Turn, misspelt, next_turn
from apprentice.envs.wordle import words

ALWAYS = 0.999999
TEXTS = [text_of(seed, 2) for seed in range(420)]
PUZZLES = [words.puzzle("wordle", 4, seed) for seed in range(140)]
FOUR: dict[str, Any] = {"candidates": 4}


def chat(text: str) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "Play."}, {"role": "user", "content": text}]


def echoed(text: str, error_rate: float = ALWAYS, ask: int = 0) -> Turn:
    return next_turn("echo", {}, chat(text), error_rate, 1, ask)


def right(text: str) -> Turn:
    return Turn("", "echo", json.dumps({"message": text}), "echo")


def kind_of(turn: Turn, text: str) -> str:
    """What is wrong with a turn, by what it says."""
    if not turn.tool:
        return "no call"
    if turn.tool != "echo":
        return "unknown tool"
    try:
        arguments = json.loads(turn.arguments)
    except ValueError:
        return "broken JSON"
    if arguments.keys() != {"message"}:
        return "wrong argument"
    if turn.content:
        return "leaked beside the call" if arguments["message"] == text else "two mistakes"
    if text in arguments["message"] and "step by step" in arguments["message"]:
        return "leaked into the answer"
    bare = arguments["message"].removeprefix("Answer: ").strip('".')
    if bare.lower() == text:
        return "other form" if arguments["message"] != text else "right"
    return "near miss"


def test_every_mistake_is_made_about_as_often_as_every_other():
    found = Counter(kind_of(echoed(text), text) for text in TEXTS)
    found["leaked"] = found.pop("leaked beside the call") + found.pop("leaked into the answer")
    assert set(found) == {
        *("near miss", "broken JSON", "unknown tool", "wrong argument", "no call", "leaked", "other form")
    }
    assert all(35 <= number <= 85 for number in found.values()), found


def test_it_errs_on_the_share_that_it_is_told_and_always_in_the_same_way():
    first = [echoed(text, 0.2) for text in TEXTS]
    wrong = [turn != right(text) for turn, text in zip(first, TEXTS, strict=True)]
    assert 60 <= sum(wrong) <= 108
    assert first == [echoed(text, 0.2) for text in TEXTS]
    assert all(turn == echoed(text) for turn, text, errs in zip(first, TEXTS, wrong, strict=True) if errs), (
        "at another share"
    )
    assert all(echoed(text, 0.0) == right(text) for text in TEXTS)


def test_asked_again_it_corrects_itself_at_once_or_later_or_never_and_insists_on_a_near_miss():
    asks = Counter()
    for text in TEXTS:
        turns = [echoed(text, ask=ask) for ask in (0, 1, 2, 50)]
        if kind_of(turns[0], text) == "near miss":
            assert set(turns) == {turns[0]}
        else:
            asks[tuple(turn == right(text) for turn in turns)] += 1
    assert set(asks) == {(False, False, False, False), (False, False, True, True), (False, True, True, True)}
    assert min(asks.values()) > 80


def test_a_near_miss_lies_anywhere_in_the_text():
    text = "-31 bd"
    misses = {misspelt(Random(seed), text) for seed in range(600)}
    assert text not in misses
    swapped = {"3-1 bd", "-13 bd", "-3 1bd", "-31b d", "-31 db"}
    dropped = {"31 bd", "-1 bd", "-3 bd", "-31bd", "-31 d", "-31 b"}
    assert swapped | dropped <= misses
    replaced = misses - swapped - dropped
    places = {next(place for place, letter in enumerate(text) if letter != miss[place]) for miss in replaced}
    assert places == {1, 2, 4, 5}
    assert all(miss[1:3].isdigit() and miss[4:].isalpha() and len(miss) == len(text) for miss in replaced)
    assert all(misspelt(Random(seed), "7") in set("012345689") for seed in range(50))


def puzzle_turn(puzzle: Any, *said: tuple[Turn, str], error_rate: float = ALWAYS) -> Turn:
    """The script's guess after these turns, each with its reply."""
    messages = chat(puzzle.question)
    for turn, reply in said:
        function = {"name": turn.tool, "arguments": turn.arguments}
        messages += [
            {"role": "assistant", "content": turn.content, "tool_calls": [{"function": function}] if turn.tool else []},
            *([{"role": "tool", "content": reply}] if turn.tool else []),
        ]
    return next_turn("wordle", FOUR, messages, error_rate, 1)


def guess(word: str) -> Turn:
    return Turn("", "guess", json.dumps({"word": word}), "guess")


def test_after_a_turn_that_could_not_be_executed_the_next_one_is_right():
    seen: Counter[bool] = Counter()
    for puzzle in PUZZLES:
        turn = puzzle_turn(puzzle)
        try:
            runs = turn.tool == "guess" and json.loads(turn.arguments).keys() == {"word"}
        except ValueError:
            runs = False
        seen[runs] += 1
        if not runs:
            again = puzzle_turn(puzzle, (turn, str({"error": "…"})))
            assert again == puzzle_turn(puzzle, error_rate=0.0) == guess(puzzle.candidates[0])
    assert min(seen.values()) > 30


def test_a_guess_in_capitals_counts_and_one_that_was_refused_is_made_again_in_good_form():
    capitals = quoted = 0
    for puzzle in PUZZLES:
        turn, first = puzzle_turn(puzzle), puzzle.candidates[0]
        if turn == guess(first.upper()):
            capitals += 1
            again = puzzle_turn(puzzle, (turn, "X X X X X\nGuesses left: 5."))
            assert again == guess(puzzle.candidates[1])
        elif turn in (guess(f'"{first}"'), guess(f"{first}."), guess(f"Answer: {first}")):
            quoted += 1
            assert puzzle_turn(puzzle, (turn, "Your word must be exactly 5 letters.\nGuesses left: 5.")) == guess(first)
    assert capitals
    assert quoted


def test_a_first_turn_that_was_right_in_the_end_counts_like_any_other():
    for puzzle in PUZZLES:
        first, second = puzzle.candidates[:2]
        if near_miss(puzzle_turn(puzzle), first):
            continue
        assert puzzle_turn(puzzle, (guess(first), "X X X X X\nGuesses left: 5.")) == guess(second)


def near_miss(turn: Turn, word: str) -> bool:
    """Whether this is Wordle's own near miss: another last letter."""
    return turn.tool == "guess" and f'"{word[:-1]}' in turn.arguments and word not in turn.arguments


def test_a_game_of_several_turns_is_lost_by_its_own_near_miss_in_every_turn():
    missed = [puzzle for puzzle in PUZZLES if near_miss(puzzle_turn(puzzle), puzzle.candidates[0])]
    assert len(missed) > 8
    for puzzle in missed:
        messages = (puzzle_turn(puzzle), "This word is not an English word.\nGuesses left: 5.")
        assert any(near_miss(puzzle_turn(puzzle, messages), word) for word in puzzle.candidates)


def test_in_a_mixture_each_part_errs_in_its_own_way():
    parts = {"say": {"name": "echo"}, "ball": {"name": "catch"}}
    settings = {"parts": parts}
    mixture = EnvironmentSpec(name="multi", settings=settings).make()
    seed = next(seed for seed in range(50) if mixture.part(seed).label == "say")
    system = {"role": "system", "content": mixture.part(seed).instructions}
    for text in TEXTS[:60]:
        turn = next_turn("multi", settings, [system, chat(text)[1]], ALWAYS, seed)
        assert turn == echoed(text)


def test_a_tool_without_arguments_can_be_misnamed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("apprentice.envs.mistakes.next_call", lambda *_: ("look", {}))
    found = {next_turn("catch", {}, chat(text), ALWAYS, 1).tool for text in TEXTS[:40]}
    assert found == {"look", "functions.look", "submit_look", "look_tool"}
