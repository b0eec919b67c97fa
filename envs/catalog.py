"""Finds an environment by its name: the folder `envs/<name>` with `env.py` in it.

In: a name and settings from a recipe. Out: `EnvironmentSpec`, the frozen identity of a task, and its class.
"""

import difflib
import importlib
import pkgutil
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.session import Session


def names() -> list[str]:
    """The environments that exist."""
    return [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if module.ispkg]


def environment_class(name: str) -> type[ToolEnvironment]:
    """The class of an environment. Raises ValueError with the nearest known name."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names())}"
        raise ValueError(f"unknown environment {name!r}; {hint}")
    return importlib.import_module(f"apprentice.envs.{name}.env").Environment


class EnvironmentSpec(BaseModel):
    """Which task is learned. With a seed it names one question, on any server, for ever."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str
    """A folder in `envs/`."""
    settings: dict[str, Any] = {}
    """The environment's own settings, checked by its `Settings` model."""

    version: str = ""
    """The version of the environment's code, part of every key. Filled in; a recipe that names another is refused."""

    revision: str = ""
    """Of what serves it, such as a Space's commit, where a new one shall be learned anew: part of every key."""

    @model_validator(mode="before")
    @classmethod
    def _knows_its_version(cls, given: Any) -> Any:
        if isinstance(given, dict) and isinstance(given.get("name"), str):
            return {"version": environment_class(given["name"]).version} | given
        return given

    @model_validator(mode="after")
    def _settings_fit(self) -> "EnvironmentSpec":
        known = environment_class(self.name)
        known.Settings.model_validate(self.settings)
        if self.version != known.version:
            raise ValueError(f"this names version {self.version!r} of {self.name}; installed is {known.version!r}")
        return self

    def __str__(self) -> str:
        """What a person calls it, such as "reasoning_gym chain_sum"."""
        return " ".join([self.name, *(value for value in self.settings.values() if isinstance(value, str))])

    def make(self, session: Session | None = None) -> ToolEnvironment:
        """A playable instance over `session`; without one only its prompt and tools can be looked at."""
        cls = environment_class(self.name)
        return cls(cls.Settings.model_validate(self.settings), session)
