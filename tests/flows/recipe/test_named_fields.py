"""Every field that a message, a page or a docstring names is one that a recipe has."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from apprentice.envs.catalog import ANY, EnvironmentSpec, environment_class
from apprentice.flows.recipe.loading import RENAMED
from apprentice.flows.recipe.recipe import Recipe

ROOT = Path(__file__).parents[3]
FILES = [file for room in ("envs", "tasks", "flows", "deployments") for file in sorted((ROOT / room).rglob("*.py"))]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FREE = ("args", "settings", "request", "headers", "reward_weights", "parts", "accelerate_config")
"""Fields whose own keys are not the recipe's."""


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from models_in(each)


SECTIONS = [name for name, field in Recipe.model_fields.items() if any(models_in(field.annotation))]
NAMED = re.compile(rf"(?<![\w./-])({'|'.join(SECTIONS)})\.([a-z_]+(?:\.[a-z_]+)*)\b(?![(/-])")
NOT_A_FIELD = re.compile(r"\.(py|md|json|jsonl|yaml|png|svg|html|txt|safetensors|app|model_fields|model_dump)\b")


def has(path: list[str], model: type[BaseModel] = Recipe) -> bool:
    """Whether a recipe has this field."""
    name, *rest = path
    if name not in model.model_fields:
        return model is EnvironmentSpec and name in environment_class(ANY).Settings.model_fields
    inner = list(models_in(model.model_fields[name].annotation))
    return not rest or name in FREE or any(has(rest, each) for each in inner)


def texts_of(file: Path) -> Iterator[str]:
    """Yield the texts in a file's code: f-strings with … for what is filled in."""
    if file.suffix != ".py":
        yield file.read_text()
        return
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(each.value) if isinstance(each, ast.Constant) else "…" for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"\{[^{}]*\}", "…", node.value)  # of str.format, such as a title


@pytest.mark.parametrize("file", [*FILES, *PAGES], ids=lambda file: str(file.relative_to(ROOT)))
def test_a_field_that_is_named_is_one_of_the_recipe(file: Path):
    named = {match[0] for text in texts_of(file) for match in NAMED.finditer(text) if not NOT_A_FIELD.search(match[0])}
    assert [each for each in sorted(named) if not has(each.split("."))] == []


def test_the_search_finds_a_field_that_is_none():
    text = "Raise teacher.time_out, or collect.asks; see teacher.request.reasoning and store.hub.patience."
    named = [match[0] for match in NAMED.finditer(text)]
    assert [each for each in named if not has(each.split("."))] == ["teacher.time_out"]
    assert len(named) == 4
    assert all(old not in Recipe.model_fields for old in RENAMED)
