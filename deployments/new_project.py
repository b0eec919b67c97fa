"""`apprentice init`: a folder with a recipe and, for production, the index of deployments and the pools.

In: the name of one of the package's recipes. Out: files that need no checkout: a copy of the recipe in which the fields
are explained, the schema with which an editor checks it; prefect.yaml with that recipe in place of the package's, the
pools' templates.
"""

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from apprentice.envs.catalog import environment_class, known
from apprentice.flows.recipe.loading import class_in, load_recipe
from apprentice.flows.recipe.location import packaged, recipe_file
from apprentice.flows.recipe.recipe import TRAINING_SECTIONS, Recipe
from apprentice.tasks.reporting.errors import Stop

FILES = Path(__file__).parent
RECIPE = "recipe.yaml"
WIDTH = 110
"""Characters of a line of comment."""
SCHEMA = "recipe.schema.json"
SCHEMA_LINE = f"# yaml-language-server: $schema=./{SCHEMA}"
"""What an editor's YAML support reads, such as that of VS Code, Neovim or PyCharm."""
IN_THE_INDEX = "laptop"
"""The deployment in prefect.yaml whose place the new recipe takes; those of other recipes are left out."""


def init(folder: Path, recipe: str | None, production: bool) -> list[Path]:
    """Write the files and return them. Raises Stop, and writes nothing, if one exists or there is no such recipe.

    Args:
        recipe: The package's recipe to copy. If None, laptop; for production the recipe that the folder has, if any.
    """
    if production and recipe is None and (folder / RECIPE).exists():
        name, texts = load_recipe(folder / RECIPE, []).name, {}
    else:
        recipe = recipe or IN_THE_INDEX
        if recipe not in packaged():
            recipe_file(Path(recipe))
            raise Stop(f"{recipe} is not one of the package's recipes.", f"Choose one of {', '.join(packaged())}.")
        name = re.sub(r"[^a-z0-9.-]+", "-", folder.resolve().name.lower()).strip("-.") or recipe
        texts = {RECIPE: _recipe(recipe, name), SCHEMA: editor_schema()}
    if production:
        texts |= {"prefect.yaml": _index(name)}
        texts |= {f"pools/{path.name}": path.read_text() for path in sorted((FILES / "pools").glob("*.json"))}
    if there := [file for file in texts if (folder / file).exists()]:
        raise Stop(f"{folder} has {', '.join(there)} already.", "Move them away, or name another folder.")
    try:
        for file, text in texts.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)
    except OSError as error:
        raise Stop(f"{folder} cannot be written: {error.strerror}.", "Name another folder.") from None
    return [folder / file for file in texts]


def _recipe(packaged: str, name: str) -> str:
    """Return one of the package's recipes under another name, with the meaning of each field above it."""
    text = recipe_file(Path(packaged)).read_text()
    text = text.replace(f"apprentice run {packaged}", f"apprentice run {RECIPE}")
    lines = re.sub(r"(?m)^name: .*$", f"name: {name}", text, count=1).splitlines()
    for line, indent, meaning in sorted(_meanings(yaml.compose(text), Recipe), reverse=True):
        comment = f"{' ' * indent}# "
        lines[line:line] = textwrap.wrap(meaning, WIDTH, initial_indent=comment, subsequent_indent=comment)
    return "\n".join(
        [
            SCHEMA_LINE,
            f"# A copy of the recipe {packaged}. A field that is left out has its default.",
            *lines,
            "",
        ]
    )


def _meanings(section: yaml.Node | None, model: type[BaseModel]) -> Iterator[tuple[int, int, str]]:
    """Yield line number, indent and first docstring sentence of each field that has its own line."""
    assert isinstance(section, yaml.MappingNode)
    for key, value in section.value:
        field = model.model_fields[key.value]
        inner = class_in(field.annotation, BaseModel)
        opens = inner is not None and isinstance(value, yaml.MappingNode) and not value.flow_style
        if meaning := field.description or (inner.__doc__ if inner and opens else None):
            sentence = re.split(r"(?<=\.)\s", " ".join(meaning.split()), maxsplit=1)[0]
            yield key.start_mark.line, key.start_mark.column, sentence
        if inner and opens:
            yield from _meanings(value, inner)


def _index(name: str) -> str:
    """Return prefect.yaml with this recipe's deployment in place of those of the package's recipes."""
    head, *deployments = re.split(r"\n(?=  - name: )", (FILES / "prefect.yaml").read_text())
    head = head.replace(" --prefect-file deployments/prefect.yaml", "").replace(
        "apprentice setup", "apprentice setup --files ."
    )
    ours = f"recipe: {IN_THE_INDEX}"
    kept = [each for each in deployments if ours in each or "recipe: " not in each]
    named = [each.replace(ours, f"recipe: {RECIPE}").replace(IN_THE_INDEX, name) for each in kept]
    return "\n".join([head, *named])


def editor_schema() -> str:
    """Return the JSON schema of recipes, with which an editor underlines mistakes while they are typed."""
    schema = Recipe.model_json_schema()
    schema["$schema"] = "http://json-schema.org/draft-07/schema#"
    for name, field in Recipe.model_fields.items():
        if class_in(field.annotation, BaseModel):
            others: list[Any] = [{"type": "null"}]  # an empty section has the defaults
            others += [{"enum": ["off", False]}] if name in TRAINING_SECTIONS else []
            schema["properties"][name] = _or(schema["properties"][name], *others)
    environment = schema["$defs"]["EnvironmentSpec"]
    own = {field for name in known() for field in environment_class(name).Settings.model_fields}
    environment["properties"] = dict.fromkeys(sorted(own), True) | environment["properties"]  # beside the name
    for section in schema["$defs"].values():
        if curriculum := section.get("properties", {}).get("curriculum"):
            section["properties"]["curriculum"] = _or(curriculum, {"enum": ["on", "reasoning_gym", True]})
    return json.dumps(schema, indent=1) + "\n"


def _or(field: dict[str, Any], *others: dict[str, Any]) -> dict[str, Any]:
    kept = {name: field.pop(name) for name in ("description", "default", "title") if name in field}
    return kept | {"anyOf": [*(field.get("anyOf") or [field]), *others]}
