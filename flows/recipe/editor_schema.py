"""The JSON schema of recipes, for editors: mistakes are underlined while they are typed.

In: the `Recipe` model. Out: the schema that `apprentice init` writes beside a recipe, whose first line names it. It is
the settings' own, with what a file may write besides: an empty section, `off`, a folder in place of a name.
"""

import json
from typing import Any

from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.recipe.recipe_yaml import MAY_BE_OFF
from apprentice.flows.recipe.reference import model_of

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
