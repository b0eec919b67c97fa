"""A script that says the text backward."""

from typing import Any

from apprentice.envs.policy import question_in


def check(settings: dict[str, Any]) -> None:
    """Nothing: the script plays under all settings."""


def call(settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float) -> tuple[str, dict[str, Any]]:
    """The right answer, always."""
    return "say", {"text": question_in(messages).split("backward: ")[1].split()[0][::-1]}
