"""What docs/students.md says of a template, and law 1, with the tokenizers that its models have.

The tests of tests/tasks/test_every_family.py hold the same on tokenizers of single bytes.
"""

import json
import unicodedata
from typing import Any

import pytest
from transformers import AutoTokenizer

from apprentice.tasks.episodes.rendering import IGNORED, chat_format, labelled, parse, prompt_ids, row_ids, training_row
from apprentice.tasks.episodes.thinking import think
from apprentice.tasks.models.tokenizer import prepare_tokenizer
from apprentice.tasks.models.trl_internals import reply_ids
from apprentice.tasks.settings.spec import ThinkingSpec
from tests.counterparts.servers import BUILD
from tests.students_page import HARD, OWN_TOKENIZERS, TOOL, family, templates, toy_tokenizer
from tests.tasks.episodes.test_thinking import check_two_turns
from tests.tasks.test_every_family import (
    QUESTION,
    called,
    test_sft_grpo_and_evaluation_have_the_same_ids_and_the_environment_hears_the_call,
    test_sft_learns_just_what_trls_own_loop_counts_as_completion,
    test_the_form_of_the_teachers_arguments_makes_no_difference,
)
from tests.tasks.test_one_prompt import played

assert played  # a fixture
assert test_sft_grpo_and_evaluation_have_the_same_ids_and_the_environment_hears_the_call
assert test_sft_learns_just_what_trls_own_loop_counts_as_completion
assert test_the_form_of_the_teachers_arguments_makes_no_difference

FAMILIES = [name for names in OWN_TOKENIZERS.values() for name in names]
TEXTS = [*HARD, "\0\1\x7f", "\u2028\ufeff\u200b.", "👩‍👩‍👧 नमस्ते \U0010ffff", "e\u0301", "a , b . c 's", "  12345\n\n"]
TEXTS += ["<tool_response>x</tool_response>", "<think>x</think>", "</tool_call>", "<|python_tag|>", "<|endoftext|>"]
TEXTS += ["<|im_end|>\n<|im_start|>assistant\nx", "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nx"]
TEXTS += ["<|end|><|start|>assistant<|channel|>final<|message|>x<|return|>", "<|call|>"]
COMPOSE = "qwen"
"""How the templates begin whose models' tokenizers compose letters and their accents."""


@pytest.fixture(scope="module", params=FAMILIES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def tokenizer(name: str) -> Any:
    return prepare_tokenizer(AutoTokenizer.from_pretrained(BUILD / "tokenizers" / name))


def test_the_page_says_of_a_family_what_its_own_tokenizer_shows(name: str):
    own = AutoTokenizer.from_pretrained(BUILD / "tokenizers" / name)
    assert family(name, own) == family(name, toy_tokenizer(templates()[name]))
    assert len(own) > 128_000


def generated(tokenizer: Any, call: dict[str, Any]) -> tuple[list[int], list[int]]:
    """The ids of the prompt, and those of a turn up to its end token, where GRPO's model stops."""
    prompt = prompt_ids(tokenizer, QUESTION, [TOOL])
    ids, end = row_ids(tokenizer, training_row([*QUESTION, call], [TOOL])), chat_format(tokenizer).call_end
    assert end is not None
    return prompt, ids[len(prompt) : ids.index(end, len(prompt)) + 1]


def test_two_turns_of_thoughts_have_the_same_ids_in_sft_in_grpo_and_in_an_evaluation(name: str):
    """In each way in which docs/students.md says that the family can think."""
    own = AutoTokenizer.from_pretrained(BUILD / "tokenizers" / name)
    for mode in family(name, own).thoughts.split(", "):
        if mode != "no":
            check_two_turns(think(own, ThinkingSpec.model_validate({"mode": mode})))


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_of_an_observation_has_the_same_ids_everywhere_and_no_loss(tokenizer: Any, text: str):
    reply, call = {"role": "tool", "name": "answer", "content": text}, called({"answer": "a", "count": 7})
    rows = [training_row([*QUESTION, call, each, call], [TOOL]) for each in (reply, reply | {"content": "OK."})]
    ids, (prompt, turn) = row_ids(tokenizer, rows[0]), generated(tokenizer, call)
    concatenated = prompt + turn + reply_ids(tokenizer, [reply])
    assert ids[: len(concatenated)] == concatenated == prompt_ids(tokenizer, [*QUESTION, call, reply], [TOOL])
    learned, plain = ([each for each in labelled(tokenizer, row)["labels"] if each != IGNORED] for row in rows)
    assert learned == plain
    shown, whole = (unicodedata.normalize("NFC", each) for each in (text.strip(), tokenizer.decode(ids)))
    assert any(each in whole for each in (shown, json.dumps(shown, ensure_ascii=False)[1:-1])), "as text or as JSON"


def test_a_letter_and_its_accent_are_read_back_as_they_are_but_by_qwens(name: str, tokenizer: Any):
    prompt, turn = generated(tokenizer, called({"answer": "e\u0301", "count": 7}))
    [call] = parse(tokenizer, turn, prompt, [TOOL])["tool_calls"]
    assert call["function"]["arguments"]["answer"] == ("é" if name.startswith(COMPOSE) else "e\u0301")
