"""Values that fit the JSON schema of a tool's arguments, of which nobody knows whether they are right.

In: a schema. Out: the same value each time, or a random one.
"""

import random
from typing import Any

from apprentice.tasks.episodes.episode import Call, Episode

PLAIN = {"string": "0", "integer": 0, "number": 0.0, "boolean": False, "null": None}
"""What is guessed for a type."""
WIDTH = 8
"""From its minimum, how far a random number reaches that has no maximum."""
DEEPEST = 4
"""Objects within one another that are filled in."""


def any_call(episode: Episode, draw: random.Random | None = None) -> Call:
    """Return a call with arguments that fit.

    Args:
        draw: Draws tool and arguments. By default it is one tool after the other, and the arguments are the same each
            time, and others in each turn.
    """
    one_of_several = draw if len(episode.tools) > 1 else None
    tool = one_of_several.choice(episode.tools) if one_of_several else episode.tools[episode.turns % len(episode.tools)]
    function, draw = tool["function"], draw or (random.Random(episode.turns) if episode.turns else None)
    return function["name"], _filled(function["parameters"], draw, 0)


def _filled(schema: dict[str, Any], draw: random.Random | None, depth: int) -> dict[str, Any]:
    """Return an object with what the schema requires; with all that it may have if it requires nothing."""
    properties = schema.get("properties", {})
    wanted = [name for name in schema.get("required", []) if name in properties] or properties
    return {name: any_value(properties[name], draw, depth + 1) for name in wanted}


def any_value(schema: dict[str, Any], draw: random.Random | None = None, depth: int = 0) -> Any:
    """Return a value that fits a schema; `"0"` where it does not say what fits."""
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return draw.choice(schema["enum"]) if draw else schema["enum"][0]
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return any_value(next((each for each in options if each.get("type") != "null"), {}), draw, depth)
    kind = schema.get("type", "string")
    kind = next((each for each in kind if each != "null"), "string") if isinstance(kind, list) else kind
    if kind == "object":
        return _filled(schema, draw, depth) if depth < DEEPEST else {}
    if kind == "array":
        least = max(schema.get("minItems", 0), 1 if draw else 0)
        return [any_value(schema.get("items") or {}, draw, depth + 1) for _ in range(least)] if depth < DEEPEST else []
    if kind in ("integer", "number"):
        low, high = _bounds(schema, is_whole=kind == "integer")
        if draw is None:
            return low if low > 0 or high < 0 else PLAIN[kind]
        return draw.randint(round(low), round(high)) if kind == "integer" else draw.uniform(low, high)
    if kind == "boolean" and draw:
        return draw.random() < 0.5
    return PLAIN.get(kind, "0") if kind != "string" else "0" * max(schema.get("minLength", 1), 1)


def _bounds(schema: dict[str, Any], is_whole: bool) -> tuple[float, float]:
    """Return the least and the greatest number that are guessed: within open bounds by a step, or by a part of them."""
    low, above = schema.get("minimum", 0), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    room = min((end for end in (high, below) if end is not None), default=None)
    if above is not None:
        low = above + (1 if is_whole or room is None else min(1, (room - above) / 2))
    if below is not None:
        high = below - (1 if is_whole else min(1, (below - low) / 2))
    if high is None:
        high = max(low, 0) + WIDTH
    return (low, high) if low <= high else (high, high)
