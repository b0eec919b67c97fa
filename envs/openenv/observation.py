"""Writes an observation, which is a JSON object, as the text that a model reads.

In: a server's reply, and the paths of what is shown, such as [board, legal_moves]. Out: text.
What changes on every reset, such as an episode's id, is no part of a question: the same question would be another one.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from apprentice.envs.wire.passing import LARGE, NAMES, TOKENS, leaves, masked, numbers_in
from apprentice.envs.wire.reply import BadReply, Reply, checked_text

STATE = "state."
"""Begins a path into the session's state, where a question is that openenv-core leaves out of the observation."""
NOT_SHOWN = ("metadata", "reward", "done")
"""Fields of every OpenEnv observation that are not the environment's own."""


def steps(path: str) -> list[str | int]:
    """Return a path such as prompt.0.content as the keys that lead there."""
    return [int(step) if step.isdigit() else step for step in path.split(".")]


def texts_in(value: Any) -> list[str]:
    """Return the paths of all texts that are not empty."""
    return [path for path, each in leaves(value) if isinstance(each, str) and each.strip()]


def at(paths: Sequence[str], reply: Reply, state: Callable[[], dict[str, Any]], passing: Sequence[str] = ()) -> str:
    """Return the values at the paths of a reply or of the session's state. Raises BadReply where one is missing.

    Args:
        state: Returns the session's state; called only if a path begins with `state.`.
        passing: Paths of what changes on every reset, whose ids and times are left out.
    """
    there = state() if any(path.startswith(STATE) for path in paths) else {}
    parts = []
    for path in paths:
        source = Reply(there, None, False) if path.startswith(STATE) else reply
        value = source.read(object, *steps(path.removeprefix(STATE)))
        value = masked(value) if path in passing else value
        parts.append(value if isinstance(value, str) else f"{path.rpartition('.')[2]}: {written(value)}")
    return checked_text("\n\n".join(parts), "what is shown")


def whole(observation: dict[str, Any], passing: Sequence[str] = ()) -> str:
    """Return all of an observation that says something: the text, if it is one text alone, else a line for each field.

    Without fields that are empty, and what is no text for a model: a field longer than LONGEST, a long array of
    numbers, a picture.
    """
    parts = {name: _readable(each) for name, each in _without(observation, passing).items() if name not in NOT_SHOWN}
    left = {
        name: each for name, each in parts.items() if each not in (None, "", [], {}) and len(written(each)) <= LONGEST
    }
    texts = list(left.values())
    if len(texts) == 1 and isinstance(texts[0], str):
        return texts[0]
    return "\n".join(f"{name}: {written(value)}" for name, value in left.items())


LONGEST = 20_000
"""Characters of a field's JSON from which it is no text for a model, such as the pixels of a picture."""
LONGEST_NUMBERS = 4_000
"""The same of an array of numbers, a few of which fill a small model's context."""
ENCODED = re.compile(r"(?:data:[\w/;+.-]+,)?(?=\S*[a-z])(?=\S*[A-Z])(?=\S*\d)[\w+/-]{400,}={0,2}", re.ASCII)
"""A picture or a file as text."""


def hidden(observation: dict[str, Any]) -> list[str]:
    """Return the paths of what `whole` leaves out because it is no text for a model."""
    return [path for name, value in observation.items() if name not in NOT_SHOWN for path in _hidden(value, name)]


def _hidden(value: Any, path: str) -> Iterator[str]:
    if _is_raw(value) or len(written(_readable(value))) > LONGEST:
        yield path
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _hidden(each, f"{path}.{name}")


def _readable(value: Any) -> Any:
    """Return a value without what no model reads; None if it is that itself."""
    if isinstance(value, dict):
        return {name: _readable(each) for name, each in value.items() if not _is_raw(each)}
    return None if _is_raw(value) else value


def _is_raw(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) >= 400 and ENCODED.fullmatch(value) is not None
    if numbers_in(value) >= LARGE:
        return True
    return isinstance(value, list) and _are_numbers(value) and len(written(value)) > LONGEST_NUMBERS


def _are_numbers(value: Any) -> bool:
    return all(map(_are_numbers, value)) if isinstance(value, list) else isinstance(value, int | float)


def written(value: Any) -> str:
    """Return a text as it is, and anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _without(value: Any, passing: Sequence[str], path: str = "") -> Any:
    """Return a value without the ids and times at the paths of what changes on every reset."""
    if not passing:
        return value
    if isinstance(value, dict):
        kept = {name: f"{path}.{name}" if path else str(name) for name in value}
        return {
            name: _without(each, passing, kept[name])
            for name, each in value.items()
            if kept[name] not in passing or _says_more(kept[name], each)
        }
    if isinstance(value, list) and numbers_in(value) < LARGE:
        return [_without(each, passing, f"{path}.{place}" if path else str(place)) for place, each in enumerate(value)]
    return masked(value) if path in passing else value


def _says_more(path: str, value: Any) -> bool:
    """Whether there is more in what changes on every reset than an id or a time, as in a question that has one."""
    return isinstance(value, str) and not NAMES.search(path) and bool(TOKENS.sub("", value).strip())


def unclear(reply: Reply, state: dict[str, Any]) -> BadReply:
    """Return what to raise where nothing says which text of a reset is the question."""
    observed = [path for path in texts_in(reply.observation) if not path.startswith("metadata.")]
    known = [f"{STATE}{path}" for path in texts_in(state) if not NAMES.search(path)]
    if observed:
        said = f"the reply to a reset holds texts at {', '.join(observed)}"
    elif known:
        said = (
            f"the observation of a reset holds no text (openenv-core leaves its metadata out), and the session's state "
            f"holds texts at {', '.join(known)}"
        )
    else:
        said = "neither the observation of a reset nor the session's state holds a text"
    example = next(iter([*observed, *known]), "prompt")
    return BadReply(f"{said}; environment.settings.question says which one is the question, such as [{example}]")
