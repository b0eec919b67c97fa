"""Reads the token usage that an endpoint reports, as the dearest that it can mean.

In: an answer's `usage`, unchecked, and the sizes of request and answer. Out: `Usage`, which is charged.
"""

from typing import Any, NamedTuple

TEXT_OF_A_TOKEN = 64
"""Upper bound on a text's average bytes per token; rarely more than 5, and never less than 1."""
MOST_TOKENS = 2**20
"""The largest context windows have about a million tokens; a larger number is no count of tokens."""
PROMPT = ("prompt_tokens", "input_tokens")
COMPLETION = ("completion_tokens", "output_tokens")
CACHED = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens", "cache_read_tokens")
CACHE_WRITE = ("cache_creation_input_tokens", "cache_write_tokens", "cache_creation_tokens", "cache_write_input_tokens")


class Usage(NamedTuple):
    """The tokens of one answer."""

    prompt: int
    completion: int
    cached: int = 0
    reasoning: int = 0
    wrong: str = ""
    """What is missing, impossible or does not add up in the report, as text."""
    cache_write: int = 0
    """Prompt tokens that were written into a cache."""


def usage_of(reported: Any, sent: int, written: int, read: int, max_tokens: int) -> Usage:
    """The usage to charge.

    Args:
        reported: The answer's `usage`, unchecked.
        sent: Bytes of the request: an upper bound on its tokens.
        written: Bytes of the messages' texts.
        read: Bytes of the answer's message, reasoning included.
    """
    reported = reported if isinstance(reported, dict) else {}
    wrong: list[str] = []

    def known(names: tuple[str, ...], least: int, otherwise: int) -> int:
        given = [reported.get(name) for name in names]
        counts = [found for each in given if (found := _count(each)) is not None and found >= least]
        if counts:
            return max(counts)
        shown = next((each for each in given if each is not None), None)
        wrong.append(f"{names[0]} {'missing' if shown is None else _short(shown)}")
        return otherwise

    prompt = known(PROMPT, max(written // TEXT_OF_A_TOKEN, 1), max(sent, 1))
    completion = known(COMPLETION, -(-read // TEXT_OF_A_TOKEN), max(max_tokens, read))
    inputs, outputs = (_details(reported, names) for names in (PROMPT, COMPLETION))
    cached, written_to = (
        max(_count(source.get(name)) or 0 for source in (reported, inputs) for name in names)
        for names in (CACHED, CACHE_WRITE)
    )
    reasoning = max(_count(outputs.get("reasoning_tokens")) or 0, _count(reported.get("reasoning_tokens")) or 0)
    total = _count(reported.get("total_tokens"))
    if wrong:
        return _within(prompt, completion, cached, written_to, reasoning, wrong)
    within = prompt + completion
    beside = cached + written_to
    if total is not None and beside > prompt and total == within:  # a total that leaves out what stands beside, too
        total += beside
    if beside > prompt or (total is not None and beside and total == within + beside):
        prompt += beside  # counted beside the prompt
        within += beside
    outside = max((total or 0) - within, 0)
    if reasoning > completion or (total is None and reasoning):
        outside = max(outside, reasoning)
    if total is not None and total != within:
        wrong.append(f"{prompt} prompt and {completion} completion tokens, and {total} in total")
    elif outside:
        wrong.append(f"{reasoning} reasoning tokens beside {completion} completion tokens")
    completion += outside
    return _within(prompt, completion, cached, written_to, max(reasoning, outside), wrong)


def _within(prompt: int, completion: int, cached: int, cache_write: int, reasoning: int, wrong: list[str]) -> Usage:
    """The usage with no part larger than its whole."""
    cached = min(cached, prompt)
    parts = {"cached": cached, "cache_write": min(cache_write, prompt - cached)}
    return Usage(prompt, completion, **parts, reasoning=min(reasoning, completion), wrong=", ".join(wrong))


def _details(reported: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    found = (reported.get(f"{name}_details") for name in names)
    return next((each for each in found if isinstance(each, dict)), {})


def _count(given: Any) -> int | None:
    """A whole number of tokens, also as text or as a float; None for what cannot be one."""
    try:
        number = None if isinstance(given, bool) or given is None else float(given)
    except (ValueError, TypeError, OverflowError):
        return None
    return int(number) if number is not None and number == number // 1 and 0 <= number <= MOST_TOKENS else None


def _short(given: Any) -> str:
    if type(given) is int:  # abbreviates numbers of thousands of digits
        return str(given) if abs(given) < 10**18 else f"{'-' * (given < 0)}10^{len(bin(abs(given))) * 3 // 10} or so"
    return repr(given)[:20] if isinstance(given, float | str | bool) else f"is {type(given).__name__}"
