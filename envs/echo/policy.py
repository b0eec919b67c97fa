"""A scripted teacher for Echo: says the text again, and errs by design.

In: the messages as the student would see them. Out: one call of `echo`.
"""

from typing import Any

from apprentice.envs.policy import errs, question_in


def check(settings: dict[str, Any]) -> None:
    """Nothing: the script plays under all settings."""


def call(settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float) -> tuple[str, dict[str, Any]]:
    """The tool and the arguments of the policy's next turn; wrong on a fixed share of the texts."""
    text = question_in(messages)
    return "echo", {"message": text[:-1] if errs(text, error_rate) else text}
