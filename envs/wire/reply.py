"""Parses and validates a server's replies.

In: a message of the server, as text. Out: the data of a reply, then `Reply`, whose values are read with their types.
Why: without checks a reward of NaN, a question that is not text or a page of HTML would become a score, or a traceback
far from its origin.
"""

import json
import math
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

MOST_ERRORS = 3
"""Errors of a validation that are told."""
LONGEST_TEXT = 200_000
"""Maximum characters of one text in a reply, such as a question."""


class BadReply(Exception):
    """The server crashed on a message or answered with an invalid reply. The episode gets no reward."""


class ServerError(Exception):
    """The server answered with an error message."""

    def __init__(self, code: str, message: str):
        super().__init__(f"{message} (code: {code})")
        self.code = code


class Reply(NamedTuple):
    """A server's reply: the observation's fields, the reward, and whether the episode is over."""

    observation: dict[str, Any]
    reward: float | None
    done: bool

    @property
    def score(self) -> float:
        """The reward of a finished episode. Raises BadReply if there is none."""
        if self.reward is None:
            raise BadReply("the reply that ends the episode has no reward")
        return self.reward

    def read(self, kind: type[T], *path: str | int) -> T:
        """Return the value at a path into the observation. Raises BadReply if it is missing or of another type.

        A text has at most LONGEST_TEXT characters and no lone surrogates; a float is finite.
        """
        value = self.find(kind, *path)
        if value is None:
            raise BadReply(f"the reply has no {_named(path)}")
        return value

    def find(self, kind: type[T], *path: str | int) -> T | None:
        """Like `read`, but return None if there is no value."""
        value: Any = self.observation
        for part in path:
            if isinstance(value, dict):
                value = value.get(part)
            elif isinstance(value, list) and isinstance(part, int):
                value = value[part] if -len(value) <= part < len(value) else None
            elif value is not None:
                raise BadReply(f"{_named(path)} of the reply is inside {_shown(value)}")
        return None if value is None else _checked(value, kind, _named(path))


def data_of(raw: str | bytes, expected: str) -> dict[str, Any]:
    """Return the data of a message of type `expected`. Raises BadReply; ServerError for a message of type error."""
    try:
        message = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadReply(f"the reply is not JSON ({type(error).__name__}): {_shown(raw)}") from None
    if not isinstance(message, dict):
        raise BadReply(f"the reply is not a message but {_shown(message)}")
    data = message.get("data")
    if message.get("type") == "error" and isinstance(data, dict):
        said = one_line(data.get("message", "an error without a message"))
        raise ServerError(one_line(data.get("code", "UNKNOWN")), f"{said}{_details(data.get('errors'))}")
    if message.get("type") != expected:
        raise BadReply(f"the reply is of type {_shown(message.get('type'))}, not {expected}")
    if not isinstance(data, dict):
        raise BadReply(f"the reply's data is {_shown(data)}")
    return data


def _details(errors: Any) -> str:
    """Return what a validation found, as pydantic lists it: the first few fields and what is wrong with each."""
    found = [each for each in errors if isinstance(each, dict)] if isinstance(errors, list) else []
    shown = [": ".join(filter(None, [_named(tuple(each.get("loc") or ())), each.get("msg")])) for each in found]
    return one_line(f": {'; '.join(shown[:MOST_ERRORS])}") if shown else ""


def reply_of(data: dict[str, Any]) -> Reply:
    """Return the data of an observation as a `Reply`. Raises BadReply."""
    observation, reward, done = data.get("observation"), data.get("reward"), data.get("done", False)
    if not isinstance(observation, dict):
        raise BadReply(f"the reply's observation is {_shown(observation)}")
    if not isinstance(done, bool):
        raise BadReply(f"the reply's done is {_shown(done)}")
    if isinstance(reward, bool):  # OpenEnv allows it
        reward = float(reward)
    return Reply(observation, None if reward is None else _checked(reward, float, "reward"), done)


def checked_text(value: Any, name: str) -> str:
    """Return `value` if it is valid text. Raises BadReply."""
    return _checked(value, str, name)


def one_line(text: Any, most: int = 400) -> str:
    """Return a server's text on one line, without its middle if it is long."""
    words = " ".join(str(text).encode(errors="replace").decode().split())
    return words if len(words) <= most else f"{words[: most // 2]} … {words[-most // 2 :]}"


def _checked(value: Any, kind: type[T], name: str) -> T:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 2**1000 else math.inf
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise BadReply(f"{name} of the reply is {_shown(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise BadReply(f"{name} of the reply is {value}, which is not a finite number")
    if isinstance(value, str):
        if len(value) > LONGEST_TEXT:
            raise BadReply(f"{name} of the reply has {len(value)} characters, more than {LONGEST_TEXT}")
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise BadReply(f"{name} of the reply holds a lone surrogate")
    return value


def _named(path: tuple[str | int, ...]) -> str:
    return ".".join(map(str, path))


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"a {'list' if isinstance(value, list) else 'object'} of {len(value)}"
    return repr(one_line(value[:200] if isinstance(value, str | bytes) else value, 60))
