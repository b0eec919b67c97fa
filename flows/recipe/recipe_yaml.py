"""Reads and writes recipes as YAML 1.2: `010` is ten, `off` is a word, `1e-2` is a number."""

from collections.abc import Iterator
from io import StringIO
from typing import Any, NamedTuple

from ruamel.yaml import YAML, MappingNode, ScalarNode, SequenceNode
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import Node

from apprentice.flows.recipe.recipe import TRAINING_SECTIONS

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
