"""Generates docs/recipes.md: every field of a recipe, from the settings' docstrings.

In: the `Recipe` model. Out: Markdown with one table per section. `make docs` writes it; a test checks it.

The JSON schema of recipes, for editors: mistakes are underlined while they are typed.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from apprentice.flows.recipe.loading import MAY_BE_OFF
from apprentice.flows.recipe.recipe import Recipe

OPENING = """# Recipes

After this page you can write a recipe: one YAML file that describes one whole run. `--set path=value` overrides any
field.

Fields marked *operational* set speed, timeouts and prices; changing them does not invalidate the cache. Every other
field is part of the key of the stages that read it. A number outside of its range is an error. An unknown field is an
error that names the nearest known one.
Start from one of the package's recipes: `apprentice init --recipe NAME` writes a copy.

This page is generated from the settings' docstrings: `make docs`.
"""


SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
"""How the bounds of a number are written."""


def reference() -> str:
    return "\n".join([OPENING, *_section("", Recipe), ""])


def _section(path: str, model: type[BaseModel]) -> Iterator[str]:
    sections = [(name, found) for name, field in model.model_fields.items() if (found := model_of(field.annotation))]
    yield f"## {f'`{path}`' if path else 'A recipe'}\n"
    yield f"{(model.__doc__ or '').strip()}\n"
    yield "| field | default | range | meaning |\n| --- | --- | --- | --- |"
    for name, field in model.model_fields.items():
        yield f"| `{name}` | {_default(field)} | {_range(field)} | {_meaning(field)} |"
    yield ""
    for name, section in sections:
        if section is not model:
            yield from _section(f"{path}.{name}" if path else name, section)


def model_of(annotation: Any) -> type[BaseModel] | None:
    """Return the settings model in an annotation, also inside `X | None` and `list[X]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := model_of(each))), None)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if model_of(field.annotation) and field.default is not None:
        return "see below"
    value = field.get_default(call_default_factory=True)
    return "–" if value is None else f"`{value}`"


def _range(field: FieldInfo) -> str:
    """Return the bounds of the field's numbers, such as "> 0, ≤ 1"; empty if it has none."""
    return "; ".join(dict.fromkeys(_bounds(field.annotation, field.metadata)))


def _bounds(annotation: Any, given: Sequence[Any]) -> Iterator[str]:
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        yield from _bounds(inner, [*given, *(part for each in more for part in getattr(each, "metadata", [each]))])
    elif annotation in (int, float):
        found = [(sign, getattr(each, name, None)) for name, sign in SIGNS.items() for each in given]
        bounds = [f"{sign} {bound}" for sign, bound in found if bound is not None]
        if bounds:
            yield ", ".join(bounds)
    elif get_origin(annotation) is not Literal:
        union = get_origin(annotation) in (Union, UnionType)
        for part in get_args(annotation):
            yield from _bounds(part, given if union else [])


def _meaning(field: FieldInfo) -> str:
    words = " ".join((field.description or "").split()).replace("|", "\\|")
    operational = isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("operational")
    return f"{words} *Operational.*" if operational else words


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference())


FILE = "recipe.schema.json"
LINE = f"# yaml-language-server: $schema=./{FILE}"
"""What an editor's YAML support reads, such as that of VS Code, Neovim or PyCharm."""


def editor_schema() -> str:
    """Return the schema as JSON text."""
    schema = Recipe.model_json_schema()
    schema["$schema"] = "http://json-schema.org/draft-07/schema#"
    for name, field in Recipe.model_fields.items():
        if model_of(field.annotation):
            others: list[Any] = [{"type": "null"}]  # an empty section has the defaults
            others += [{"enum": ["off", False]}] if name in MAY_BE_OFF else []
            schema["properties"][name] = _or(schema["properties"][name], *others)
    environment = schema["$defs"]["EnvironmentSpec"]
    environment["required"].remove("name")
    environment["anyOf"] = [{"required": ["name"]}, {"required": ["path"]}]
    grpo = schema["$defs"]["GrpoSpec"]["properties"]
    grpo["curriculum"] = _or(grpo["curriculum"], {"enum": ["on", "reasoning_gym", True]})
    return json.dumps(schema, indent=1) + "\n"


def _or(field: dict[str, Any], *others: dict[str, Any]) -> dict[str, Any]:
    kept = {name: field.pop(name) for name in ("description", "default", "title") if name in field}
    return kept | {"anyOf": [*(field.get("anyOf") or [field]), *others]}
