"""How the scripted teachers err: as models do, on a fixed share of the questions.

In: a question's messages, the share, and how often this turn was already asked for. Out: the script's next turn.
Whether and how a script errs follows from the question's text, so a question is always answered in the same way. An
environment's `policy.py` gives the right call (error rate 0) and the near miss of its game (error rate 1).
"""

import json
import math
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from apprentice.envs.catalog import EnvironmentSpec, NextTurn, next_call, next_work
from apprentice.envs.policy import digest, errs, question_in

DIGITS, LETTERS = "0123456789", "abcdefghijklmnopqrstuvwxyz"
BAD_ASKS = (1, 2, math.inf)
"""How often the same mistake is made again when the same turn is asked for again; a question draws one of these."""


class Turn(NamedTuple):
    """What a script says: text, a call, or both."""

    content: str
    tool: str
    arguments: str
    """The call's arguments as JSON text, which may be broken; empty without a call."""
    meant: str
    """The tool of the right call; empty where a text is right."""


def next_turn(
    environment: str,
    settings: dict[str, Any],
    messages: list[dict[str, Any]],
    error_rate: float,
    seed: int | None,
    ask: int = 0,
    working: bool = False,
) -> Turn:
    """The script's next turn. Raises ValueError for an unknown question.

    A near miss is made in every turn, so that the game cannot be won. Any other mistake is made in the first turn only:
    when the environment answers with an error, the next turn is right. Where the first turn is the last text, there is
    no call to err in, so the game's own near miss is made.

    Args:
        ask: How often this turn was asked for before, because the answer was malformed.
        working: Write the working beside the call. A near miss is then made within it, and in place of leaked reasoning
            the call hands in another result than the working has.
    """
    written = [""]

    def call(messages: list[dict[str, Any]], error_rate: float = 0.0) -> NextTurn:
        if not working:
            return next_call(environment, settings, messages, error_rate, seed)
        written[0], said = next_work(environment, settings, messages, error_rate, seed)
        return said

    def has_several_turns() -> bool:
        return EnvironmentSpec(name=environment, settings=settings).make().part(seed or 0).max_turns > 1

    mistakes = MISTAKES | WORKED if working else MISTAKES
    turn = _turn(call, messages, error_rate, ask, has_several_turns, mistakes)
    return turn._replace(content=turn.content or written[0]) if turn.tool else turn


def _turn(
    call: Callable[..., NextTurn],
    messages: list[dict[str, Any]],
    error_rate: float,
    ask: int,
    has_several_turns: Callable[[], bool],
    mistakes: dict[str, Callable[[Random, str, dict[str, Any]], Turn]],
) -> Turn:
    question = question_in(messages)
    if not errs(question, error_rate):
        return _plain(call(messages))
    draw = Random(digest(question)[4:])  # `errs` reads the first four bytes
    kind = draw.choice(["near miss", *MISTAKES])
    if kind == "near miss":
        if has_several_turns():
            return _plain(call(messages, 1.0))
        right = call(messages)
        missed = None if isinstance(right, str) or mistakes is not MISTAKES else _near_miss(draw, *right)
        return _plain(missed or call(messages, 1.0))
    first = next((place for place, message in enumerate(messages) if message["role"] == "assistant"), None)
    right = call(messages if first is None else messages[:first])
    if isinstance(right, str):
        return _plain(call(messages, 1.0))
    if first is not None:
        return _plain(call(_as_meant(messages, first, *right)))
    tool, arguments = right
    if ask >= draw.choice(BAD_ASKS):
        return _plain(right)
    return mistakes[kind](draw, tool, arguments) if arguments else _unknown_tool(draw, tool, arguments)


def _plain(said: NextTurn) -> Turn:
    if isinstance(said, str):
        return Turn(said, "", "", "")
    tool, arguments = said
    return Turn("", tool, json.dumps(arguments), tool)


def _near_miss(draw: Random, tool: str, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The call with one of its texts misspelt; None if there is no text to misspell."""
    texts = [name for name, value in arguments.items() if isinstance(value, str) and (value[1:] or value.isalnum())]
    if not texts:
        return None
    name = draw.choice(texts)
    return tool, arguments | {name: misspelt(draw, arguments[name])}


def misspelt(draw: Random, text: str) -> str:
    """The text with one character replaced, dropped, or exchanged with the next one, anywhere in it."""
    place = draw.randrange(len(text))
    here, after = text[place], text[place + 1 : place + 2]
    others = (DIGITS if here.isdigit() else LETTERS).replace(here.lower(), "")
    misses = [draw.choice(others) + after] if here.isalnum() else []
    misses += [after] if len(text) > 1 else []
    misses += [after + here] if after not in ("", here) else []
    return text[:place] + draw.choice(misses) + text[place + 2 :]


def _broken_json(draw: Random, tool: str, arguments: dict[str, Any]) -> Turn:
    text = json.dumps(arguments)
    return Turn("", tool, draw.choice([text[:-1], f"{text[:-1]},}}", repr(arguments)]), tool)


def _unknown_tool(draw: Random, tool: str, arguments: dict[str, Any]) -> Turn:
    named = draw.choice([f"functions.{tool}", f"submit_{tool}", f"{tool}_tool"])
    return Turn("", named, json.dumps(arguments), tool)


def _wrong_argument(draw: Random, tool: str, arguments: dict[str, Any]) -> Turn:
    names = [draw.choice(["input", "value", "arg"]), *list(arguments)[1:]]
    return Turn("", tool, json.dumps(dict(zip(names, arguments.values(), strict=True))), tool)


def _no_call(draw: Random, tool: str, arguments: dict[str, Any]) -> Turn:
    answer = ", ".join(map(str, arguments.values()))
    return Turn(draw.choice([f"The answer is {answer}.", f"I call {tool} with {answer}.", answer]), "", "", tool)


def _leaked_reasoning(draw: Random, tool: str, arguments: dict[str, Any]) -> Turn:
    """Beside the right call, or in its last argument."""
    *_, (name, value) = arguments.items()
    thought = f"Let me think step by step. The result is {value}"
    if draw.random() < 0.5:
        return Turn(f"{thought}, so I call {tool}.", tool, json.dumps(arguments), tool)
    return Turn("", tool, json.dumps(arguments | {name: f"{thought}."}), tool)


def _other_form(draw: Random, tool: str, arguments: dict[str, Any]) -> Turn:
    """The last argument in quotes, with a full stop, a label or in capitals; a number as text."""
    *_, (name, value) = arguments.items()
    forms = [f'"{value}"', f"{value}.", f"Answer: {value}", str(value).upper(), str(value)]
    return Turn("", tool, json.dumps(arguments | {name: draw.choice([each for each in forms if each != value])}), tool)


MISTAKES: dict[str, Callable[[Random, str, dict[str, Any]], Turn]] = {
    "broken JSON": _broken_json,
    "unknown tool": _unknown_tool,
    "wrong argument": _wrong_argument,
    "no call": _no_call,
    "leaked reasoning": _leaked_reasoning,
    "other form": _other_form,
}
"""The mistakes of form; with the near miss, each is as frequent as every other."""


def _other_result(draw: Random, tool: str, arguments: dict[str, Any]) -> Turn:
    """The last argument another one than the working leads to: a number that is off, or a text that is misspelt."""
    *_, (name, value) = arguments.items()
    other = value + draw.choice((-1, 1)) if isinstance(value, int) else misspelt(draw, str(value) or "x")
    return Turn("", tool, json.dumps(arguments | {name: other}), tool)


WORKED = {"leaked reasoning": _other_result}
"""The mistakes of a script that shows its working."""


def _as_meant(messages: list[dict[str, Any]], first: int, tool: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """The conversation without a first call that could not be executed; one that was right but for capitals becomes
    the right one. The scripts read their earlier calls and cannot understand these."""
    later = messages[first + 1 :]
    said = messages[first].get("tool_calls") or []
    try:
        given = said[0]["function"]["arguments"] if said else None
        given = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        given = None
    if not isinstance(given, dict) or given.keys() != arguments.keys() or said[0]["function"]["name"] != tool:
        after = next((place for place, message in enumerate(later) if message["role"] != "tool"), len(later))
        return messages[:first] + later[after:]
    if json.dumps(given).lower() == json.dumps(arguments).lower():
        function = {"name": tool, "arguments": json.dumps(arguments)}
        return [*messages[:first], messages[first] | {"tool_calls": [said[0] | {"function": function}]}, *later]
    return messages
