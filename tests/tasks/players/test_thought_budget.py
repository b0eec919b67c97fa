"""What ends a thought for a model, and whose thought it gets: real ids, and no argument that was not asked for."""

from typing import Any

import pytest

from apprentice.tasks.episodes.episode import turn_of
from apprentice.tasks.episodes.rendering import prompt_ids, row_ids, written_row
from apprentice.tasks.episodes.thinking import THOUGHT, think
from apprentice.tasks.models.tokenizer import prepare_tokenizer
from apprentice.tasks.players.thought_budget import Thoughts, forced_call, within_budget
from apprentice.tasks.settings.spec import ThinkingSpec
from tests.students_page import templates, toy_tokenizer, with_merges

ASKED = [{"role": "system", "content": "system"}, {"role": "user", "content": "user"}]


def made(family: str, mode: Any) -> Any:
    return think(prepare_tokenizer(toy_tokenizer(templates()[family])), ThinkingSpec(mode=mode))


def taking(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """A tool with one argument."""
    parameters = {"type": "object", "properties": {"answer": schema}, "required": ["answer"]}
    return [{"type": "function", "function": {"name": "answer", "description": "", "parameters": parameters}}]


@pytest.mark.parametrize(
    ("schema", "begun"),
    [
        ({"type": "string"}, '"'),
        ({"type": "integer"}, ""),
        ({"type": "array"}, "["),
        ({"type": "array", "items": {"type": "integer"}}, "["),
        ({"type": "object"}, "{"),
        ({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]}, "["),
    ],
)
def test_a_call_is_begun_up_to_what_only_the_model_knows(schema: dict[str, Any], begun: str):
    tokenizer, tools = made("qwen2_5", "text"), taking(schema)
    forced = forced_call(tokenizer, tools)
    call = '<tool_call>\n{"name": "answer", "arguments": {"answer": '
    assert tokenizer.decode(forced.at_once) == call + begun
    assert forced.after == "\n" + call + begun


@pytest.mark.parametrize(("family", "mode"), [("qwen2_5", "text"), ("qwen3", "native")])
@pytest.mark.parametrize("swaps", [False, True])
def test_a_thought_that_is_ended_has_the_ids_of_training(family: str, mode: str, swaps: bool):
    thought, tools = "1 + 1 = 2.", taking({"type": "string"})
    tokenizer = with_merges(made(family, mode), ".\n", "\n\n")
    row = written_row([*ASKED, turn_of("answer", {"answer": "2"}) | {THOUGHT: thought}], tools)
    prompt = prompt_ids(tokenizer, ASKED, tools)
    learned = row_ids(tokenizer, row)[len(prompt) :]
    told = tokenizer.decode(learned).partition(thought)

    def generate(ahead: Any, most: int, places: Any, answers: bool) -> list[list[int]]:
        rest = '2"}}\n</tool_call><|im_end|>' if answers else told[0] + thought
        return [tokenizer.encode(rest) for _ in ahead]

    others = (lambda found: found) if swaps else None
    [written] = within_budget(generate, tokenizer, [prompt], [tools], 50, 50, others)
    assert written == learned[: len(written)]
    assert tokenizer.decode(learned[len(written) :]) in ("", "\n")


def test_a_character_of_which_tokens_are_missing_is_left_out_of_a_thought_that_is_ended():
    tokenizer, tools = made("qwen2_5", "text"), taking({"type": "string"})
    prompt, whole = prompt_ids(tokenizer, ASKED, tools), tokenizer.encode("2 \u20ac")

    def generate(ahead: Any, most: int, places: Any, answers: bool) -> list[list[int]]:
        return [tokenizer.encode("<|im_end|>") if answers else whole[:-1]]

    [written] = within_budget(generate, tokenizer, [prompt], [tools], 50, 50)
    assert tokenizer.decode(written).startswith("2 \n<tool_call>")


@pytest.mark.parametrize(
    ("batches", "swapped"),
    [
        ([{1: "a", 2: "b", 3: "c"}], ["b", "c", "a"]),
        ([{1: "a"}, {2: "b"}], ["", "a"]),
        ([{1: "a", 2: "b"}, {2: "c"}, {2: "d"}], ["b", "a", "a", "a"]),  # a game's own thought is no other's
    ],
)
def test_each_answer_gets_another_questions_thought(batches: list[dict[int, str]], swapped: list[str]):
    thoughts = Thoughts()
    assert [each for batch in batches for each in thoughts.of_others([*batch], [*batch.values()])] == swapped


def test_samples_of_one_question_do_not_swap_among_themselves():
    assert Thoughts().of_others([1, 1, 2], ["a", "b", "c"]) == ["c", "c", "a"]
