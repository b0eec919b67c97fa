"""What endpoints report of the tokens of an answer, and what is charged for it."""

from typing import Any

import pytest

from apprentice.tasks.endpoints.usage import usage_of

ANTHROPIC = {
    "prompt_tokens": 100,
    "completion_tokens": 10,
    "total_tokens": 110,
    "cache_creation_input_tokens": 400,
    "cache_read_input_tokens": 1000,
}


@pytest.mark.parametrize(
    ("usage", "prompt", "completion", "cached"),
    [
        ({"prompt_tokens": 279, "completion_tokens": 6, "total_tokens": 285}, 279, 6, 0),
        ({"prompt_tokens": 279, "completion_tokens": 6, "total_tokens": 1174}, 279, 895, 0),
        (
            {"prompt_tokens": 279, "completion_tokens": 6, "completion_tokens_details": {"reasoning_tokens": 889}},
            279,
            895,
            0,
        ),
        (
            {"prompt_tokens": 279, "completion_tokens": 20, "total_tokens": 299, "prompt_cache_hit_tokens": 256},
            279,
            20,
            256,
        ),
        ({"prompt_tokens": 23, "completion_tokens": 20, "total_tokens": 43, "cached_tokens": 256}, 279, 20, 256),
        ({"input_tokens": 279, "output_tokens": 20}, 279, 20, 0),
        (ANTHROPIC, 1500, 10, 1000),
        (ANTHROPIC | {"total_tokens": 1510}, 1500, 10, 1000),
        (None, 900, 64, 0),
    ],
)
def test_usage_is_read_as_the_dearest_that_it_can_mean(usage: Any, prompt: int, completion: int, cached: int):
    found = usage_of(usage, sent=900, written=400, read=30, max_tokens=64)
    assert (found.prompt, found.completion, found.cached) == (prompt, completion, cached)
