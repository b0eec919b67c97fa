"""A scripted teacher for Catch: goes under the ball and waits there, and errs by design.

In: the messages as the student would see them. Out: one call of `move`.
"""

import re
from typing import Any

from apprentice.envs.policy import errs, question_in

POSITION = re.compile(r"Ball: row \d+, column (\d+)\. Paddle: column (\d+)\.")


def check(settings: dict[str, Any]) -> None:
    """Nothing: the script plays under all settings."""


def call(settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float) -> tuple[str, dict[str, Any]]:
    """The tool and the arguments of the policy's next turn; on a fixed share of the boards it stops a column short."""
    question = question_in(messages)
    shown = [message["content"] for message in messages if message["role"] in ("user", "tool")]
    ball, paddle = [place for text in shown for place in _places(text)][-1]
    target = ball + (_short(question) if errs(question, error_rate) else 0)
    return "move", {"direction": "left" if target < paddle else "right" if target > paddle else "stay"}


def _short(question: str) -> int:
    """From the ball's column to the one beside it on the paddle's side, where the paddle comes in time and stays."""
    ball, paddle = _places(question)[0]
    return 1 if paddle > ball or (paddle == ball == 1) else -1


def _places(text: str) -> list[tuple[int, int]]:
    """The columns of ball and paddle, each time that a text tells them."""
    return [(int(ball), int(paddle)) for ball, paddle in POSITION.findall(text)]
