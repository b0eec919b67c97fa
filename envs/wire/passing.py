"""What changes on every reset of one question and is no part of it: ids and times.

In: two replies that should be equal. Out: which parts differ, with and without such values.
"""

import re
from collections.abc import Iterator, Sequence
from time import time
from typing import Any

from apprentice.envs.wire.reply import Reply, one_line

NAMES = re.compile(
    r"(^|[_.])(id|uuid|guid|timestamp|time|(created|updated|started)_at|session|token|nonce|ms|millis|"
    r"((latency|elapsed|duration)\w*))$",
    re.IGNORECASE,
)
"""Names of values that may change on every reset of one question."""
TOKENS = re.compile(
    r"\b[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}\b"  # a UUID
    r"|(?<![^\W_])(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b"  # a hash
    r"|(?<=[a-zA-Z]_)[0-9a-f]{8,}\b"  # the same behind what it is of, as in conv_92791443
    r"|(?<![\w-])(?=[\w-]*\d)(?=[\w-]*[a-z])(?=[\w-]*[A-Z])[\w-]{20,}(?![\w-])"  # a token, as of secrets
    r"|\b0x[0-9a-f]{6,}\b"  # an address in memory
    r"|(?<=\bin )\d+\.\d+ ?(?:s|ms|µs|us|seconds?)\b"  # what a test took
    r"|\b1[6-9]\d{8}(?:\.\d+)?\b"  # the seconds since 1970
    r"|/tmp/[\w./-]+"
    r"|\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?\b"
)
"""Texts that may change on every reset of one question."""
FIELD = re.compile(r'(?m)(?:^|(?<=[{,\s])")(?P<name>[\w.]+)"?: (?:"[^"\n]*"|[^\s,{}\[\]]+)')
"""A name and its value in a reply as a model reads it: a line of its own, or within JSON."""
LARGE = 2_000
"""Numbers from which an array is compared as a whole."""
A_DAY = 86_400
"""Seconds. A number this near to now, in seconds or milliseconds since 1970, is a time."""


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path of every value that is no object and no list, and the value; a large array of numbers is one."""
    if isinstance(value, dict | list) and value and numbers_in(value) < LARGE:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, each in items:
            yield from leaves(each, f"{path}.{name}" if path else str(name))
    else:
        yield path, value


def numbers_in(value: Any) -> int:
    """Return how many numbers an array holds, by its first element: a picture has millions. 0 for what is none."""
    size = 1
    while isinstance(value, list) and value:
        size, value = size * len(value), value[0]
    return size if isinstance(value, int | float) else 0


def masked(value: Any) -> Any:
    """Return a text without ids and times, "…" for a number that is the time of today, and any other value as it is."""
    if isinstance(value, str):
        return TOKENS.sub("…", value)
    is_now = isinstance(value, int | float) and any(abs(value / unit - time()) < A_DAY for unit in (1, 1000))
    return "…" if is_now else value


def masked_fields(text: str) -> str:
    """Return a reply as a model reads it, without ids and times, and without the values of fields that are such."""

    def shown(field: re.Match[str]) -> str:
        return f"{field['name']}: …" if NAMES.search(field["name"]) else field[0]

    return masked(FIELD.sub(shown, text))


def passing(first: Any, second: Any) -> list[str]:
    """Return the paths of what differs between two replies though it says the same: ids and times."""
    one, other = dict(leaves(first)), dict(leaves(second))
    differ = [path for path, value in other.items() if path in one and one[path] != value]
    return [path for path in differ if NAMES.search(path) or masked(one[path]) == masked(other[path])]


def narrowed(reply: Reply, shown: Sequence[str]) -> Reply:
    """Return a reply with what is at or below these paths alone, by path; as it is without any."""
    if not shown:
        return reply
    kept = {
        path: value
        for path, value in leaves(reply.observation)
        if any(path == each or path.startswith(f"{each}.") for each in shown)
    }
    return reply._replace(observation=kept)


def difference(then: Reply | None, now: Reply) -> str:
    """Return how two replies differ in more than ids and times; empty if they do not, or one was not kept."""
    if then is None or then == now:
        return ""
    if (then.reward, then.done) != (now.reward, now.done):
        return f"reward {now.reward}, done {now.done} in place of {then.reward}, {then.done}"
    alike = passing(then.observation, now.observation)
    one, other = ({p: v for p, v in leaves(each.observation) if p not in alike} for each in (then, now))
    path = next((path for path in {**one, **other} if one.get(path) != other.get(path)), None)
    if path is None:
        return ""
    return f"{path} is {one_line(repr(other.get(path)), 80)} in place of {one_line(repr(one.get(path)), 80)}"
