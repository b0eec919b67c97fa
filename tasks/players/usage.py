"""What an answer is booked as: the endpoint's word where it can be true, else the most that can be.

In: an answer's `usage`, the bytes that were sent and read. Out: tokens, and what was wrong with the endpoint's word.
Why: a cap on money that believes a stranger's negative number caps nothing, and one absurd number uses it up for good.
"""

from typing import Any, NamedTuple

TEXT_OF_A_TOKEN = 64
"""Bytes of a text that a token spells at most, on the average; seldom more than 5, and never less than 1."""


class Usage(NamedTuple):
    """What one answer took."""

    prompt: int
    completion: int
    cached: int = 0
    reasoning: int = 0
    wrong: str = ""
    """What of the endpoint's word was missing or impossible, in a few words."""


def usage_of(told: Any, sent: int, written: int, read: int, max_tokens: int) -> Usage:
    """What is booked.

    Args:
        told: The answer's `usage`, whatever it is.
        sent: Bytes of the request, which are at least its tokens.
        written: Bytes of the messages' texts alone.
        read: Bytes of the message that came.
    """
    told = told if isinstance(told, dict) else {}
    wrong: list[str] = []

    def known(name: str, given: Any, least: int, most: int, otherwise: int) -> int:
        if type(given) is int and least <= given <= most:
            return given
        wrong.append(f"{name} {'missing' if given is None else _short(given)}")
        return otherwise

    def detail(of: str, name: str, most: int) -> int:
        """A part of the tokens; most endpoints name none."""
        details = told.get(f"{of}_details")
        given = details.get(name) if isinstance(details, dict) else None
        return 0 if given is None else known(name, given, 0, most, 0)

    most = max(sent, 1), max(max_tokens, read)
    least = max(written // TEXT_OF_A_TOKEN, 1), -(-read // TEXT_OF_A_TOKEN)
    prompt = known("prompt_tokens", told.get("prompt_tokens"), least[0], most[0], most[0])
    completion = known("completion_tokens", told.get("completion_tokens"), least[1], most[1], most[1])
    cached = detail("prompt_tokens", "cached_tokens", prompt)
    reasoning = detail("completion_tokens", "reasoning_tokens", completion)
    return Usage(prompt, completion, cached, reasoning, ", ".join(wrong))


def _short(given: Any) -> str:
    if type(given) is int:  # one of a thousand digits cannot be printed everywhere
        return str(given) if abs(given) < 10**18 else f"{'-' * (given < 0)}10^{len(bin(abs(given))) * 3 // 10} or so"
    return repr(given)[:20] if isinstance(given, float | str | bool) else f"is {type(given).__name__}"
