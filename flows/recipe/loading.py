"""Reads a recipe from a file, applies `path=value` overrides, and explains mistakes.

In: a path, a name or a mapping, and overrides. Out: a `Recipe`, or Stop with one line per mistake. The message for an
unknown field has the nearest known name, for a renamed field its new name.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from apprentice.envs.paths import path_from
from apprentice.flows.recipe.location import given_path, recipe_file
from apprentice.flows.recipe.recipe import TRAINING_SECTIONS, Recipe
from apprentice.flows.recipe.recipe_yaml import NotARecipe, Places, read_recipe, read_value
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import A_NUMBER

T = TypeVar("T")
RENAMED = {"env": "server"}
"""Sections by their old names."""
MAY_BE_SHOWN = ("int_", "float_", "bool_", "literal_error", "greater_than", "less_than", "finite_number")
"""Types of pydantic's errors about numbers and choices: what was given for one is no key."""


RecipeLike = Recipe | Mapping[str, Any] | Path | str
"""A recipe, or what `load_recipe` makes one of."""


def load_recipe(given: RecipeLike, overrides: Sequence[str] = ()) -> Recipe:
    """Read and validate a recipe.

    Args:
        given: The path of a YAML file; the name of one here or of the package, such as "laptop"; a dictionary with the
            fields of docs/recipes.md; or a `Recipe`.
        overrides: Fields to change, each as path=value, such as "grpo.max_steps=50"; the value is YAML.

    Returns:
        The recipe, frozen.

    Raises:
        Stop: It is missing, malformed or invalid; one line for each mistake.
    """
    return load_for(None, given, overrides)


def load_for(context: str | None, given: RecipeLike, overrides: Sequence[str]) -> Recipe:
    """`load_recipe`, where `context` can be LOOKING: nothing will be played, and the environment's settings are not
    checked."""
    if isinstance(given, Recipe):
        return with_overrides(given, overrides)
    if isinstance(given, Mapping):
        return _validated(deepcopy(dict(given)), "This", Path(), overrides, context=context)
    path = recipe_file(given_path(given))
    data, places = read_file(path)
    _drop_empty(data, places)
    for name in TRAINING_SECTIONS:
        if name in data and data[name] is None and Recipe.model_fields[name].default is not None:
            line = places[(name,)].line
            raise Stop(
                f"{path}, line {line}: {name} is null.", f"Write {name}: off, or take the line out for the defaults."
            )
    return _validated(data, str(path), path.parent, overrides, places, context)


def read_file(path: Path) -> tuple[dict[str, Any], Places]:
    """Return the data of a recipe's file, and where its values stand. Raises Stop."""
    try:
        data, places = read_recipe(path.read_bytes())
    except OSError as error:
        raise Stop(f"{path} cannot be read as a recipe: {error}", "Name a YAML file.") from None
    except NotARecipe as error:
        raise Stop(f"{path} is not a valid recipe: {error}.", "Correct it and run again.") from None
    if not isinstance(data, dict):
        raise Stop(f"{path} is not a recipe.", "Start from one of the package: apprentice init.")
    return data, places


def _drop_empty(data: dict[str, Any], places: Places) -> None:
    """Drop the fields that are named without a value, so that they have their defaults."""
    for path, written in places.items():
        if written.is_empty and path[-1] in _fields_at(path[:-1], Recipe):
            *parents, last = path
            section: Any = data
            for name in parents:
                section = section[name]
            section.pop(last, None)


def _validated(
    given: dict[str, Any],
    called: str,
    folder: Path,
    overrides: Sequence[str],
    places: Places | None = None,
    context: str | None = None,
) -> Recipe:
    """Return the recipe with these fields and overrides; `folder` is where paths of environments begin. Raises Stop."""
    _find_environments(given, folder)
    for override in overrides:
        override_field(given, override)
    _let_the_named_teacher_play(given, {override.partition("=")[0] for override in overrides})
    with explained(f"{called} is not a valid recipe", "Correct it and run again.", places=places, overrides=overrides):
        return Recipe.model_validate(given, context=context)


def with_overrides(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """Return the recipe with some fields changed, each as `path=value`. Raises Stop."""
    if not overrides:
        return recipe
    given = recipe.as_parameters()
    for override in overrides:
        override_field(given, override)
    cause = f"The overrides are not valid for the recipe {recipe.name}"
    with explained(cause, "Correct them and run again.", overrides=overrides):
        return Recipe.model_validate(given)


def override_field(recipe: dict[str, Any], override: str) -> None:
    """Set one field, `path=value`, in a recipe's raw data; without a value it has its default.

    Raises Stop if it has another form or is not YAML.
    """
    path, equals, value = override.partition("=")
    if not equals or not path:
        raise Stop(f"--set {override} is not of the form path=value.", "For example --set grpo.max_steps=50.")
    *parents, last = path.split(".")
    for name in parents:
        if recipe.get(name) is None:
            recipe[name] = {}
        recipe = recipe[name]
        if not isinstance(recipe, dict):
            raise Stop(f"--set {path}=…: {name} has no fields.", "Check the path against the recipe.")
    try:
        recipe[last] = read_value(value)
    except NotARecipe as error:
        raise Stop(
            f"--set {path}=…: {error}.", "Close its brackets and quotes, and leave a space behind each colon."
        ) from None
    if recipe[last] is None and path in TRAINING_SECTIONS and value.strip():
        raise Stop(f"--set {override} neither sets {path} nor turns it off.", f"Use --set {path}=off.")
    if not value.strip():
        del recipe[last]


def _find_environments(recipe: dict[str, Any], folder: Path) -> None:
    """Make the paths of environments those from here, and not from the recipe's folder."""
    regressions = recipe.get("guards")
    for section in (recipe, *(regressions if isinstance(regressions, list) else [])):
        environment = section.get("environment") if isinstance(section, dict) else None
        if isinstance(environment, dict) and isinstance(path := environment.get("path"), str):
            with suppress(ValueError):  # the field itself says what is wrong
                environment["path"] = folder / path_from(path)


def _let_the_named_teacher_play(recipe: dict[str, Any], named: set[str]) -> None:
    """Drop the file's scripted teacher if an override sets a model, and the other way round."""
    teacher, script = recipe.get("teacher"), {"teacher.scripted_error_rate"}
    model = {"teacher.model", "teacher.base_url"}
    if not isinstance(teacher, dict):
        return
    for override, replaced in ((model, script), (script, model)):
        if any(teacher.get(path.partition(".")[2]) is not None for path in override & named):
            for path in replaced - named:
                teacher.pop(path.partition(".")[2], None)


@contextmanager
def explained(cause: str, remedy: str, whole: type[BaseModel] = Recipe, **beside: Any) -> Iterator[None]:
    """Raise Stop for data that is not valid: the cause, then what `explain` says of it, which takes `beside`."""
    try:
        yield
    except ValidationError as error:
        raise Stop(f"{cause}:\n{explain(error, whole, **beside)}", remedy) from None


def explain(
    error: ValidationError,
    whole: type[BaseModel] = Recipe,
    places: Places | None = None,
    overrides: Sequence[str] = (),
) -> str:
    """Return one line per mistake: its path in `whole`, the cause, and the given value with its place.

    For an unknown field the nearest known one is named.
    """
    set_to = dict(override.split("=", 1) for override in overrides if "=" in override)
    lines = []
    for mistake in error.errors():
        path = ".".join(str(part) for part in mistake["loc"]) or "recipe"
        message = mistake["msg"].removeprefix("Value error, ")
        written = (places or {}).get(mistake["loc"])
        if mistake["type"] == "extra_forbidden":
            known = _fields_at(mistake["loc"][:-1], whole)
            name = RENAMED.get(str(mistake["loc"][-1]), str(mistake["loc"][-1]))
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            message = f"unknown field; did you mean {near[0]}?" if near else f"unknown field; known: {', '.join(known)}"
        elif mistake["type"].startswith(MAY_BE_SHOWN) or message == A_NUMBER:
            given = set_to.get(path) or (written.text if written else "")
            message += f", not {given[:80]!r}" if given else ""
        is_set = any(f"{each}.".startswith(f"{path}.") for each in set_to)
        lines.append(f"  {path}: {message}" + (f" (line {written.line})" if written and not is_set else ""))
    return "\n".join(lines)


def _fields_at(path: tuple[int | str, ...], model: type[BaseModel]) -> list[str]:
    for name in path:
        if isinstance(name, int):  # a list item: `model` is already the item's type
            continue
        annotation = model.model_fields[name].annotation if name in model.model_fields else None
        model = class_in(annotation, BaseModel) or model
    return list(model.model_fields)


def class_in(annotation: Any, kind: type[T]) -> type[T] | None:
    """Return the class of that kind in an annotation, also inside `X | None` and `list[X]`."""
    if isinstance(annotation, type) and issubclass(annotation, kind):
        return annotation
    return next((found for each in get_args(annotation) if (found := class_in(each, kind))), None)
