"""What a card writes of a chat template, for vLLM's command."""

import pytest

from apprentice.tasks.models.tokenizer import PARSERS, switches, vllm_parser


@pytest.mark.parametrize(
    ("template", "word"),
    [("{% if enable_thinking %}", "'{\"enable_thinking\": false}'"), ("{% if thinking %}", ""), ("", "")],
)
def test_a_template_with_a_switch_is_served_with_thinking_off(template: str, word: str):
    assert switches(template) == word


def test_the_parser_is_the_first_whose_mark_the_template_has():
    assert {mark: vllm_parser(f"a {mark} b") for mark in PARSERS} == PARSERS
    assert vllm_parser("<tool_call> <function=") == "qwen3_coder"
    assert vllm_parser("no calls") == ""
