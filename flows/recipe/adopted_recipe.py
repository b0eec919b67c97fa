"""Writes the recipe of an environment that somebody else serves, each line with what it follows from.

In: what `env adopt` found at the server. Out: lines of YAML.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.tools import Tool

MOST_TOOLS = 8
"""Tools that the first prompt names."""
SHORT = 32
"""Tokens of a call with numbers, names or choices."""
ROOM = {
    256: re.compile(r"code|script|program|patch|diff|html|essay|document|report|summary", re.IGNORECASE),
    96: re.compile(r"sql|query|command|cmd|message|text|reason|thought|explanation|content|body|plan", re.IGNORECASE),
}
"""Tokens of a call with a text, by the argument's name."""
LONGEST = 1_024
"""Most tokens of an episode, of those that its calls may need: a student of 4,096 positions has prompt and replies."""
LISTED = re.compile(r"\s+(?:Attributes|Args|Arguments|Parameters|Fields|Examples?|Note):\s")
"""Begins the part of a class's docstring that lists its fields, which the tool's schema has anyway."""


class DerivedSetting(NamedTuple):
    """A setting's value, and what it follows from."""

    value: Any
    why: str


def recipe_lines(
    about: str,
    called: str,
    spec: EnvironmentSpec,
    found: Mapping[str, DerivedSetting],
    server: DerivedSetting,
    teacher: str,
    base_url: str,
) -> list[str]:
    """Return a whole recipe.

    Args:
        about: How it was written, and what random calls earned.
        called: The server's name.
        found: The environment's settings.
        server: The recipe's section, as YAML.
    """
    tools = spec.make().tools
    arguments = {tool.name: tool.schema["function"]["parameters"].get("properties", {}) for tool in tools}
    shown = ", ".join(f"{tool}({', '.join(names)})" for tool, names in arguments.items())
    kind = "typed actions" if spec.settings.get("actions") == "typed" else "MCP tools"
    return [
        f"# {about}",
        f"name: {_as_name(called)}",
        f"environment:  # {kind}: {shown[:90]}",
        f"  instructions: {quoted(_prompt(called, tools, 'say' in found))}",
        *(f"  {field}: {quoted(each.value)}  # {each.why}" for field, each in found.items()),
        f"server: {server.value}  # {server.why}",
        *training_lines(spec, spec.settings["max_turns"], teacher, base_url),
    ]


def training_lines(spec: EnvironmentSpec, turns: int, teacher: str, base_url: str) -> list[str]:
    """Return the sections of a recipe that train, the teacher's first."""
    endpoint = f", base_url: {quoted(base_url)}" if base_url else ""
    rows = spec.questions
    tries = "tries of one task" if rows == 1 else f"rows of {rows} tasks, or tries of them" if rows else "seeds"
    call = _tokens_of_a_call(spec.make().tools)
    tokens = call if turns <= 2 else min(call * min(turns, 16), max(call, LONGEST))
    return [
        f"teacher: {{model: {quoted(teacher)}{endpoint}}}  # any model that calls tools; no script plays this",
        "student: {build: {max_positions: 4096}}  # for ids and numbers {model: HuggingFaceTB/SmolLM2-135M-Instruct}",
        f"windows: {{collect: {{size: 200}}, grpo: {{size: 200}}, evaluate: {{size: 200}}}}  # {tries}",
        "sft: {epochs: 10, batch_size: 8, gradient_accumulation: 1, learning_rate: 3.0e-3}",
        "grpo: {max_steps: 50, batch_size: 32, gradient_accumulation: 1, num_generations: 8, learning_rate: 3.0e-4,",
        f"  max_completion_length: {tokens}}}",
        f"evaluate: {{questions: 100, max_new_tokens: {call * 3 // 2}}}",
    ]


def _tokens_of_a_call(tools: Sequence[Tool]) -> int:
    """Room for a call: as much as its longest argument may need, by its name."""
    properties = (tool.schema["function"]["parameters"].get("properties", {}) for tool in tools)
    texts = [
        name for each in properties for name, about in each.items() if "string" in str(about) and "enum" not in about
    ]
    return next((room for room, names in ROOM.items() if any(map(names.search, texts))), SHORT)


def quoted(value: Any) -> str:
    """Return a value as YAML within a line, also one of braces."""
    return yaml.safe_dump([value], default_flow_style=True, width=10_000, allow_unicode=True).strip()[1:-1]


def _as_name(called: str) -> str:
    plain = called.removesuffix("Environment").removesuffix("_env")
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9.]+", "-", plain)
    return words.strip("-.").lower() or "environment"


def _prompt(called: str, tools: Sequence[Tool], says: bool) -> str:
    """A first system prompt: what is played, and by which calls."""
    about = []
    for tool in tools[:MOST_TOOLS]:
        does = LISTED.split(tool.schema["function"]["description"].split("\n")[0])[0].strip().rstrip(".")
        about.append(f"`{tool.name}` ({does})" if does else f"`{tool.name}`")
    plays = f"You play {called}. " if called else ""
    ends = " Then answer without a call." if says else ""
    return f"{plays}Act by calling {', '.join(about)}, once in each turn, until the task is solved.{ends}"
