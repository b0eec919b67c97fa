"""What is written the same way in every call of a tool is drafted, whatever the chat template."""

from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.episodes.episode import turn_of
from apprentice.tasks.episodes.example import drafts_of
from apprentice.tasks.episodes.rendering import prompt_ids, row_ids, written_row
from tests.tokenizers import build_tokenizer


@pytest.fixture
def echo() -> tuple[Any, list[dict[str, Any]]]:
    spec = EnvironmentSpec(name="echo")
    return build_tokenizer(spec, ["say abc", "say xyz"]), spec.make().schemas


def test_a_call_is_drafted_but_for_its_value(echo: tuple[Any, list[dict[str, Any]]]):
    tokenizer, tools = echo
    drafts = drafts_of(tokenizer, tools)
    opening = [{"role": "system", "content": "s"}, {"role": "user", "content": "say abc"}]
    prompt = prompt_ids(tokenizer, opening, tools)
    whole = row_ids(tokenizer, written_row([*opening, turn_of("echo", {"message": "abc"})], tools))
    turn = whole[len(prompt) :]
    written, passes = 0, 0
    while written < len(turn):
        drafted = drafts.after(prompt + turn[:written], len(turn) - written)
        assert drafted == turn[written : written + len(drafted)], "a draft of a right call is never wrong"
        written, passes = written + len(drafted) + 1, passes + 1
    assert len("abc") < passes < len(turn)
