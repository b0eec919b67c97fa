"""What the scripted teachers share: each sees what a player sees, and is wrong on a fixed share of the questions.

An environment's `policy.py` has `check(settings)`, which raises ValueError where the script cannot play, and
`call(settings, messages, error_rate)`, which returns the tool and the arguments of the next turn.
"""

import hashlib
from typing import Any


def question_in(messages: list[dict[str, Any]]) -> str:
    """The text of the question that is played."""
    return next(message["content"] for message in messages if message["role"] == "user")


def digest(question: str) -> bytes:
    """Bytes that look random and are the same whenever this question is asked."""
    return hashlib.sha256(question.encode()).digest()


def errs(question: str, error_rate: float) -> bool:
    """Whether this is one of the questions that the script answers wrong, so that the reward filter has work to do."""
    return int.from_bytes(digest(question)[:4], "big") / 2**32 < error_rate
