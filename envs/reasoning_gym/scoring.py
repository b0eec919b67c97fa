"""Scores an answer, whatever a model wrote.

In: a dataset, its entry, an answer. Out: the score, 0.0 to 1.0, and why the answer could not be scored.
Why: an answer is any text. Some datasets raise on text that they do not expect; nine evaluate it as Python or as a
formula, so that it might run commands here, or reckon for ever while all other sessions wait.
"""

import math
import re
import signal
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ROUNDING = 1e-9
"""By which a sum of tenths may miss 1.0."""

LONGEST = 2.0
"""Seconds that scoring may take; the slowest right answer of a dataset takes 0.1 s."""

EVALUATED = {"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"}
"""Datasets that evaluate an answer as Python. A right one is text, or a list of texts and numbers."""
RECKONED = {
    "countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"
}  # fmt: skip
"""Datasets that hand an answer to SymPy's parse_expr, which evaluates it, too. A right one is a formula."""

UNREADABLE = "("
"""An answer that no dataset can read: what it scores, an answer that is not evaluated scores, too."""

FUNCTIONS = {
    "Abs", "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "cot", "csc", "exp", "ln", "log",
    "oo", "pi", "sec", "sin", "sinh", "sqrt", "tan", "tanh",
}  # fmt: skip
"""Words that a formula may hold, besides those of the right answer."""


class _TooLong(BaseException):
    """Not an Exception: a dataset that catches those would score on."""


def score(dataset: Any, entry: dict[str, Any], answer: str) -> tuple[float, str | None]:
    """The dataset's own score, and what was wrong where it could not be taken as it is: 0.0 where the dataset raises,
    that of an unreadable answer where the answer is not evaluated, the nearer bound where it is not within 0 to 1."""
    if _acts(entry, answer):
        return _unread(dataset, entry), "the answer holds more than a bare result; it was not evaluated"
    try:
        with _at_most(LONGEST):
            given = float(dataset.score_answer(answer=answer, entry=entry))
    except _TooLong:
        return _unread(dataset, entry), f"the answer could not be scored within {LONGEST:.0f} s"
    except ImportError:
        raise  # what this machine lacks is no wrong answer
    except Exception as error:  # datasets raise whatever they please on text that they did not expect
        return 0.0, f"the answer could not be read: {type(error).__name__}"
    if math.isnan(given):
        return 0.0, "the dataset's own score is no number"
    taken = min(max(given, 0.0), 1.0)
    return taken, None if abs(taken - given) <= ROUNDING else f"the dataset's own score is {given}"


def _unread(dataset: Any, entry: dict[str, Any]) -> float:
    return float(dataset.score_answer(answer=UNREADABLE, entry=entry))


def _acts(entry: dict[str, Any], answer: str) -> bool:
    """Whether to evaluate the answer might do more than give a value."""
    dataset, text = (
        entry["metadata"].get("source_dataset"),
        unicodedata.normalize("NFKC", answer),
    )  # as Python reads names
    if dataset in EVALUATED:
        return bool(re.search(r"[(*@%{]|<<|\bfor\b", text))  # no call, and nothing that grows
    if dataset in RECKONED:
        if _grows(text):
            return True
        known = FUNCTIONS | set(re.findall(r"\w+", str(entry["answer"])))
        return bool(set(re.findall(r"[^\W\d]\w+", text)) - known or re.search(r"""["'`@\[{:;]|\.\s*[^\W\d]""", text))
    return False


def _grows(formula: str) -> bool:
    """Whether a formula may come to a number that takes for ever: a tower of powers, a large exponent, a factorial."""
    powers = re.sub(r"\s", "", formula).replace("^", "**").split("**")
    small = re.compile(r"[-+]?\d{1,2}(?!\d)|\([-+]?\d{1,2}(/\d{1,2})?\)|[A-Za-z]\b")
    tower = any(re.fullmatch(r"[-+]?\w+|\([^()]*\)", between) for between in powers[1:-1])
    nested = sum(before.endswith(")") for before in powers[:-1])
    return "!" in formula or tower or nested > 2 or any(not small.match(exponent) for exponent in powers[1:])


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raises _TooLong after `seconds`. Only a process's first thread can be woken: there the server's loop runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)  # again, where a first one was swallowed
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
