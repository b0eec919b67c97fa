"""Classifies an endpoint's refusal: the account, one question, this moment, or a part of the request.

In: an error status, or an error inside of an answer. Out: a `Refused` with its kind, and when a limit ends.
The decision uses the status, the error's code and its text, never the provider's name.
"""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from time import time
from typing import Any, Literal

import tenacity

from apprentice.envs.wire.metrics import count
from apprentice.envs.wire.retry import seconds_in, seconds_left, stop_after_failing_for
from apprentice.tasks.reporting.safe_text import one_line

Kind = Literal["account", "question", "moment", "request"]
"""`request`: an unknown refusal, perhaps of one parameter; the same one over many questions is no property of them."""

LEAST_ATTEMPTS = 3
"""Minimum attempts per request, even if waiting for a rate limit used up the patience."""
LONGEST_LIMIT = 31 * 86400.0
"""Seconds. The end of a limit that is further away is not believed."""
MOST_TEXT = 4000
"""Characters of an error that are read."""

MONEY = re.compile(
    r"(?<!thinking )(?<!reasoning )(?<!token )\b(?:credits?|balance|billing|quota|budget|payment|funds|prepaid"
    r"|usage limits?|arrear\w*|overdue|spend(?:ing)?|recharge)\b"
)
PER_MINUTE = re.compile(r"per[ _-]?(?:minute|second|min\b|sec\b)|\b[rt]p[ms]\b")
FILTERED = re.compile(
    r"content[ _-]?(?:filter|policy|management|moderation|exists risk)|moderation|flagged|responsible ?ai|inappropriate"
    r"|prohibited[ _]content|usage polic|\bsafety\b|data.?inspection|harmful|invalid.prompt\b|sensitive"
)
TOO_LONG = re.compile(
    r"context[ _-]?(?:length|window|size)|maximum context|request too large|too many (?:input )?tokens"
    r"|reduce the length|(?:prompt|input|messages?)\b[^.]{0,40}\b(?:too (?:long|large)|exceed)"
    r"|token count[^.]{0,20}exceed|string.above.max.length"
)
BAD_GENERATION = re.compile(
    r"tool.use.failed|failed.generation|malformed.function.call|failed to parse tool|output.pars"
)
NAMES_NO_MODEL = re.compile(r"\b(?:un|not )support")
LINK = re.compile(r"https?://\S+")
AGAIN_IN = re.compile(
    r"(?:again|retry|wait|reset\w*|available)[^.]{0,30}?\b(?:in|after|for|delay\W+)\s*~?((?:\d[\d.]*\s*[a-z]+\s*,?\s*)+)"
)
AGAIN_AT = re.compile(
    r"(?:again|retry|wait|reset\w*|until|available)\D{0,30}?(20\d\d-\d\d-\d\d[t ]\d\d:\d\d(?::\d\d)?\S*)"
)
LENGTH = re.compile(
    r"(\d+(?:\.\d+)?)\s*(milliseconds?|ms|hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|s|days?|d)(?![a-z])"
)
SECONDS = {"ms": 0.001, "mi": 60.0, "h": 3600.0, "m": 60.0, "s": 1.0, "d": 86400.0}

_backoff = tenacity.wait_random_exponential(multiplier=0.5, max=20.0)


class Unanswered(Exception):
    """A request without a complete answer; it is retried.

    Attributes:
        was_sent: Whether the endpoint may have received the request, and charged for it.
        timed_out: Whether the time for one request (`teacher.timeout`) was over.
    """

    def __init__(self, message: str, was_sent: bool = True, timed_out: bool = False):
        super().__init__(message)
        self.message = message
        self.was_sent = was_sent
        self.timed_out = timed_out


class Redirected(Exception):
    """The endpoint redirects to another address. The request, which contains the key, is not sent there."""


class RefusedRequest(Exception):
    """An endpoint's refusal.

    Args:
        status: The HTTP status, or the status that an error inside of a whole answer names.
        body: The error as JSON, unchecked.
        headers: The answer's headers, in lower case.

    Attributes:
        message: The server's own sentence, on one line; it may quote the key.
        param: The parameter that the error names in a field of its own, or an empty text.
        kind: What is refused.
        ends_in: Seconds until a limit ends; None if nothing says so.
    """

    def __init__(self, status: int, body: Any, headers: Mapping[str, str], patience: float):
        error = _error_in(body)
        self.status = status
        self.message = one_line(_sentence(error))[:400] or f"status {status}"
        self.param = str(error.get("param") or "") if isinstance(error, dict) else ""
        self.text = LINK.sub("", " ".join(_texts(error)))[:MOST_TEXT].lower()
        self.code = _words(error, "code", "type", "status")
        self.ends_in = _end(headers, self.text, error)
        self.kind: Kind = self._kind(patience)
        super().__init__(self.message)

    @property
    def signature(self) -> str:
        """What two refusals share that are the same one: everything but numbers and identifiers."""
        return f"{self.status} {re.sub(r'[^ ]*[0-9][^ ]*', '#', self.text)[:200]}"

    def _kind(self, patience: float) -> Kind:
        status, known = self.status, f"{self.code} {self.text}"
        if status == 402 or (status in (400, 403, 429, 498) and MONEY.search(self.code)):
            return "account"
        if status in (400, 403, 413, 422, 429, 451, 500) and (status in (413, 451) or TOO_LONG.search(known)):
            return "question"
        if status == 429:
            if self.ends_in is not None:
                return "account" if self.ends_in > patience else "moment"
            return "account" if MONEY.search(self.text) and not PER_MINUTE.search(self.text) else "moment"
        if status in (400, 403, 422) and FILTERED.search(known):
            return "question"
        if status in (401, 403, 407) or (status in (400, 498) and MONEY.search(self.text)):
            return "account"
        if BAD_GENERATION.search(known) or status in (408, 409, 425, 498):
            return "moment"
        if status >= 500:
            return "request" if status == 501 or NAMES_NO_MODEL.search(self.text) else "moment"
        return "request"


def retrying(patience: float) -> tenacity.AsyncRetrying:
    """Retries what may pass for `patience` seconds after the first failure."""

    def wait(state: tenacity.RetryCallState) -> float:
        return min(_wait(state), seconds_left(state, patience))

    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(_may_pass),
        wait=wait,
        stop=stop_after_failing_for(patience, attempts=LEAST_ATTEMPTS),
        before_sleep=lambda _: count("retries"),
        reraise=True,
    )


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, Unanswered) or (isinstance(error, RefusedRequest) and error.kind == "moment")


def _wait(state: tenacity.RetryCallState) -> float:
    """Seconds until the next attempt: until the limit ends plus up to 10%, else exponential backoff with jitter."""
    assert state.outcome is not None
    seconds = getattr(state.outcome.exception(), "ends_in", None)
    if seconds is None:
        return _backoff(state)
    return seconds + tenacity.wait_random(0.0, max(0.1 * seconds, 0.05))(state)


def _error_in(body: Any) -> Any:
    """The error object in a body: under `error`, alone in a list, or the body itself."""
    for _ in range(3):
        if isinstance(body, list) and len(body) == 1:
            body = body[0]
        elif isinstance(body, dict) and isinstance(body.get("error"), dict | str) and body["error"]:
            body = body["error"]
    return body


def _sentence(error: Any) -> str:
    if isinstance(error, dict):
        named = (error.get(name) for name in ("message", "detail", "msg", "error_description", "error", "title"))
        found = next((each for each in named if each), None)
        metadata = error.get("metadata")
        raw = metadata.get("raw") if isinstance(metadata, dict) else None  # what a router's upstream answered
        if isinstance(found, str):
            return f"{found}: {raw}" if isinstance(raw, str) and raw not in found else found
        return json.dumps(found if found else error, default=str) if error else ""
    return error if isinstance(error, str) else json.dumps(error, default=str)


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(value, dict | list) and depth < 6:
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each, depth + 1)
    elif isinstance(value, str):
        yield value[:MOST_TEXT]


def _words(error: Any, *names: str) -> str:
    """The error's codes as lower-case words: insufficientQuota and insufficient_quota are `insufficient quota`."""
    given = [str(error.get(name) or "") for name in names] if isinstance(error, dict) else []
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", " ".join(given))
    return re.sub(r"[_\-.]+", " ", apart).lower()


def _end(headers: Mapping[str, str], text: str, error: Any) -> float | None:
    """Seconds until a limit ends: the longest that headers and text name, if it can be."""
    named = [seconds_in(headers.get("retry-after-ms"), 0.001), seconds_in(headers.get("retry-after"))]
    if match := AGAIN_IN.search(text):
        named.append(sum(float(number) * SECONDS[_unit(unit)] for number, unit in LENGTH.findall(match[1])) or None)
    if match := AGAIN_AT.search(text):
        named.append(_until(match[1]))
    named.append(_until_reset(headers))
    metadata = error.get("metadata") if isinstance(error, dict) else None
    inner = metadata.get("headers") if isinstance(metadata, dict) else None
    if isinstance(inner, dict):
        named.append(_until_reset({str(name).lower(): str(value) for name, value in inner.items()}))
    return max((each for each in named if each is not None and each <= LONGEST_LIMIT), default=None)


def _unit(name: str) -> str:
    return "ms" if name.startswith(("ms", "milli")) else name[0]


def _until_reset(headers: Mapping[str, str]) -> float | None:
    """Seconds until X-RateLimit-Reset, an epoch in seconds or milliseconds, where nothing remains."""
    if headers.get("x-ratelimit-remaining", "").strip() != "0":
        return None
    epoch = seconds_in(headers.get("x-ratelimit-reset"))
    if epoch is None or epoch < 1e9:
        return epoch
    return max((epoch / 1000 if epoch > 1e11 else epoch) - time(), 0.0)


def _until(moment: str) -> float | None:
    try:
        return max(datetime.fromisoformat(moment.strip(" .,)").upper()).astimezone().timestamp() - time(), 0.0)
    except ValueError:
        return None
