"""The tokenizer that a built student has."""

from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.models.tokenizer import tokenizer_of


def build_tokenizer(environment: EnvironmentSpec, texts: list[str]) -> Any:
    """Like `tokenizer_of`, for one environment and its questions."""
    return tokenizer_of([(environment.make(), texts)])
