"""Reads a recipe from a file, applies `path=value` overrides, and explains mistakes.

In: a path, a name or a mapping, and overrides. Out: a `Recipe`, or Stop with one line per mistake. The message for an
unknown field has the nearest known name, for a renamed field its new name.

Finds a recipe's file: by its path, or by name, such as `laptop`, among the recipes of this package.

Reads and writes recipes as YAML 1.2: `010` is ten, `off` is a word, `1e-2` is a number.
"""

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML, MappingNode, ScalarNode, SequenceNode
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import Node

from apprentice.envs.paths import path_from
from apprentice.flows.recipe.recipe import TRAINING_SECTIONS, Recipe
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import A_NUMBER

T = TypeVar("T")
RECIPES = Path(__file__).resolve().parents[2] / "deployments" / "recipes"
"""The recipes that are installed with this package."""


def given_path(given: str | Path) -> Path:
    """Return a path that a person gave, with the home folder in place of `~`. Raises Stop."""
    try:
        return path_from(given)
    except ValueError as error:
        raise Stop(f"{error}.", "Write the whole path.") from None


def packaged() -> list[str]:
    """Return the names of the recipes that are installed with this package."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def find_recipe(given: Path) -> Path | None:
    """Return the file at a path, else `NAME.yaml` here, else the package's recipe of that name; None without any."""
    if os.path.exists(given) and not os.path.isdir(given):  # those of Path raise for what cannot be looked at
        return given
    if _is_name(given):
        return next((path for path in (Path(f"{given}.yaml"), RECIPES / f"{given}.yaml") if path.is_file()), None)
    return None


def recipe_file(given: Path) -> Path:
    """Return the file of a recipe. Raises Stop with the nearest names, and all that there are."""
    found = find_recipe(given)
    if found is not None:
        return found
    if os.path.isdir(given):
        raise Stop(f"{given} is a folder, not a recipe.", "Name a YAML file.")
    here = [str(path) for path in sorted(given.parent.glob("*.yaml")) if path.parent.resolve() != RECIPES]
    near = difflib.get_close_matches(str(given), here, n=1) or difflib.get_close_matches(given.stem, packaged(), n=1)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    files = f"Files in {given.parent.absolute()}: {', '.join(here)}. " if here else ""
    raise Stop(
        f"There is no recipe at {given}." if not _is_name(given) else f"There is no recipe {given}.",
        f"{hint}{files}By name: {', '.join(packaged())}.",
    )


def _is_name(given: Path) -> bool:
    return given.name == str(given) and given.suffix not in (".yaml", ".yml")


MAX_BYTES = 65_536
MAX_VALUES = 50_000
"""Values of a recipe, each alias counted as what it stands for."""
MAX_DEPTH = 64
NULL = "tag:yaml.org,2002:null"
MERGE = "<<"


class Written(NamedTuple):
    """How a value was written."""

    line: int
    """From 1."""
    text: str
    """Of a scalar; empty for a section or a list."""
    is_empty: bool
    """Whether there is a key and no value."""


Places = dict[tuple[int | str, ...], Written]
"""How each value was written, by its path."""


class NotARecipe(ValueError):
    """The text cannot be read; the message has the line and the cause."""


def read_recipe(given: bytes) -> tuple[Any, Places]:
    """Return the data of a file, and where its values stand. Raises NotARecipe."""
    if len(given) > MAX_BYTES:
        raise NotARecipe(f"it has {len(given):,} bytes; a recipe has at most {MAX_BYTES:,}")
    try:
        node = _composed(given.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise NotARecipe(f"byte {error.start} is not UTF-8 text; save the file as UTF-8") from None
    if node is None:
        return None, {}
    places: Places = {}
    _measure(node, (), 1, {}, places)
    return _data(node), places


def read_value(given: str) -> Any:
    """Return the value of `--set path=value`. Raises NotARecipe for brackets or quotes that are not closed.

    The shell has removed its own comments and quotes, so that ` #` and a leading `@`, `*` or `&` belong to the value.
    """
    text = given.strip()
    try:
        node = _composed(text)
        if node is None:
            return text or None
        if len(text) != node.end_mark.index and isinstance(node, ScalarNode):
            return text
        _measure(node, (), 1, {}, {})
        return _data(node)
    except NotARecipe:
        if text.startswith(("[", "{", '"', "'")):
            raise
        return text


def recipe_text(recipe: dict[str, Any]) -> str:
    """Return a recipe's data as `read_recipe` reads it: a training that is None is `off`."""
    yaml, text = _yaml(), StringIO()
    yaml.default_flow_style = False
    yaml.dump(
        {name: "off" if value is None and name in TRAINING_SECTIONS else value for name, value in recipe.items()}, text
    )
    return text.getvalue()


class _Constructor(SafeConstructor):
    """Reads dates as text."""


_Constructor.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = _Constructor
    yaml.sort_base_mapping_type_on_output = False  # pyright: ignore[reportAttributeAccessIssue]
    return yaml


def _composed(text: str) -> Node | None:
    try:
        return _yaml().compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise NotARecipe(where + " ".join(filter(None, (error.context, error.problem)))) from None
    except RecursionError:
        raise NotARecipe(f"it is nested deeper than {MAX_DEPTH} levels") from None
    except YAMLError as error:
        raise NotARecipe(" ".join(str(error).split())) from None


def _measure(node: Node, path: tuple[int | str, ...], line: int, sizes: dict[int, int | None], places: Places) -> int:
    """Return the number of values of a node and note their places. Raises NotARecipe beyond a limit."""
    if len(path) > MAX_DEPTH:
        raise NotARecipe(f"line {line}: it is nested deeper than {MAX_DEPTH} levels")
    text = node.value if isinstance(node, ScalarNode) else ""
    places.setdefault(path, Written(line, text, node.tag == NULL and not text))
    if id(node) in sizes:  # an alias; what it stands for is measured once
        size = sizes[id(node)]
        if size is None:
            raise NotARecipe(f"line {line}: an alias contains itself")
        return size
    sizes[id(node)] = None
    size, seen = 1, {}
    for name, key, value in _children(node):
        first = seen.setdefault(name, key)
        if first is not key and name != MERGE:
            raise NotARecipe(
                f"{'.'.join(map(str, (*path, name)))} is given twice, in line {first.start_mark.line + 1} and in line "
                f"{key.start_mark.line + 1}"
            )
        size += _measure(value, (*path, name), key.start_mark.line + 1, sizes, places)
        if size > MAX_VALUES:
            raise NotARecipe(f"line {line}: with its aliases it has more than {MAX_VALUES:,} values")
    sizes[id(node)] = size
    return size


def _children(node: Node) -> Iterator[tuple[int | str, Node, Node]]:
    """Yield the name, the key and the value of each part of a mapping or a list."""
    if isinstance(node, SequenceNode):
        for place, each in enumerate(node.value):
            yield place, each, each
    if isinstance(node, MappingNode):
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                raise NotARecipe(f"line {key.start_mark.line + 1}: a key is a word")
            name, colon, rest = key.value.partition(":")
            if node.flow_style and colon and key.style is None and value.tag == NULL and not value.value:
                raise NotARecipe(
                    f"line {key.start_mark.line + 1}: {key.value} has no space behind its colon: {name}: {rest}"
                )
            yield key.value, key, value


def _data(node: Node) -> Any:
    """Return what a node means."""
    try:
        return _yaml().constructor.construct_document(node)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise NotARecipe((f"line {mark.line + 1}: " if mark else "") + str(error.problem)) from None
    except (ValueError, OverflowError):  # a number of more than 4,300 digits
        raise NotARecipe("a number is too long") from None


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
