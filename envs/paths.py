"""Paths that a person writes: in a recipe, after `--set`, in a variable. `~` is the home folder in all of them.

In: a text. Out: the path, or ValueError. `FilePath` and `FileOrName` are the types of a recipe's fields: a field that
has one is expanded where it is read, and absolute in a deployment, whose workers run in other folders.
"""

import os
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, SerializationInfo

from apprentice.envs.defaults import give_home, has_home

HOME = re.compile(r"~[\w.-]*(?=/|$)")
VARIABLE = re.compile(r"\$(?:\{\w+\}|[A-Za-z_]\w*)")


def expanded(given: str) -> str:
    """Return a path with the home folder in place of `~` and `~user`. Raises ValueError where there is none, and for a
    variable such as $HOME, which nobody has replaced."""
    if (variable := VARIABLE.search(given)) and not os.path.exists(given):
        raise ValueError(f"{given}: {variable[0]} is not replaced here; write the path out, or begin it with ~")
    if not (named := HOME.match(given)):
        return given
    give_home()
    home = os.path.expanduser(named[0]) if named[0] != "~" or has_home() else "~"
    if home.startswith("~"):
        whose = f"a user {named[0][1:]}" if named[0] != "~" else "this user, and HOME is not set"
        raise ValueError(
            f"{given}: there is no home folder of {whose}; write the path out (a folder of that name here: ./{given})"
        )
    return home.rstrip("/") + given[named.end() :] or "/"


def path_from(given: str | Path) -> Path:
    """Return the path that a person gave, as `expanded` reads it."""
    return Path(expanded(str(given)))


def _read(given: Any) -> Any:
    return path_from(given) if isinstance(given, Path) else expanded(given) if isinstance(given, str) else given


class Absolute(list[str]):
    """A context of serialization that makes paths absolute, for processes in other folders. Collects them."""


def _path_written(path: Path, info: SerializationInfo) -> str:
    if not isinstance(info.context, Absolute):
        return str(path)
    info.context.append(str(path.absolute()))
    return info.context[-1]


def _name_written(name: str, info: SerializationInfo) -> str:
    return _path_written(Path(name), info) if os.path.exists(name) or os.path.isabs(name) else name


FilePath = Annotated[
    Path, BeforeValidator(_read), PlainSerializer(_path_written, return_type=str, when_used="json-unless-none")
]
"""A file or a folder."""
FileOrName = Annotated[
    str, BeforeValidator(_read), PlainSerializer(_name_written, return_type=str, when_used="json-unless-none")
]
"""A file or a folder where there is one, else a repository of the Hub."""
