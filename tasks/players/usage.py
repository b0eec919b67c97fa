"""Checks the token usage that an endpoint reports: plausible values count, others are replaced by the maximum.

In: an answer's `usage`, the bytes sent and read. Out: tokens, and what was wrong with the report.
Why: a budget that trusts negative numbers caps nothing, and one absurdly large number would use it up.
"""

from typing import Any, NamedTuple

TEXT_OF_A_TOKEN = 64
"""Upper bound on a text's average bytes per token; rarely more than 5, and never less than 1."""


class Usage(NamedTuple):
    """The tokens of one answer."""

    prompt: int
    completion: int
    cached: int = 0
    reasoning: int = 0
    wrong: str = ""
    """The missing or impossible values of the report, as text."""


def usage_of(reported: Any, sent: int, written: int, read: int, max_tokens: int) -> Usage:
    """The usage to charge.

    Args:
        reported: The answer's `usage`, unchecked.
        sent: Bytes of the request: an upper bound on its tokens.
        written: Bytes of the messages' texts.
        read: Bytes of the answer's message.
    """
    reported = reported if isinstance(reported, dict) else {}
    wrong: list[str] = []

    def known(name: str, given: Any, least: int, most: int, otherwise: int) -> int:
        if type(given) is int and least <= given <= most:
            return given
        wrong.append(f"{name} {'missing' if given is None else _short(given)}")
        return otherwise

    def detail(of: str, name: str, most: int) -> int:
        """A detail of the tokens; most endpoints report none."""
        details = reported.get(f"{of}_details")
        given = details.get(name) if isinstance(details, dict) else None
        return 0 if given is None else known(name, given, 0, most, 0)

    most = max(sent, 1), max(max_tokens, read)
    least = max(written // TEXT_OF_A_TOKEN, 1), -(-read // TEXT_OF_A_TOKEN)
    prompt = known("prompt_tokens", reported.get("prompt_tokens"), least[0], most[0], most[0])
    completion = known("completion_tokens", reported.get("completion_tokens"), least[1], most[1], most[1])
    cached = detail("prompt_tokens", "cached_tokens", prompt)
    reasoning = detail("completion_tokens", "reasoning_tokens", completion)
    return Usage(prompt, completion, cached, reasoning, ", ".join(wrong))


def _short(given: Any) -> str:
    if type(given) is int:  # abbreviates numbers of thousands of digits
        return str(given) if abs(given) < 10**18 else f"{'-' * (given < 0)}10^{len(bin(abs(given))) * 3 // 10} or so"
    return repr(given)[:20] if isinstance(given, float | str | bool) else f"is {type(given).__name__}"
