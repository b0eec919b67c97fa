"""A scripted teacher for Echo: says the text again, and errs by design.

In: the messages as the student would see them. Out: one call of `echo`.
"""

import hashlib
from typing import Any


def check(settings: dict[str, Any]) -> None:
    """Nothing: the script plays under all settings."""


def call(settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float) -> tuple[str, dict[str, Any]]:
    """The tool and the arguments of the policy's next turn; wrong on a fixed share of the texts."""
    text = next(message["content"] for message in messages if message["role"] == "user")
    draw = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32
    return "echo", {"message": text[:-1] if draw < error_rate else text}
