"""Finds an environment by its name: the folder `envs/<name>` with `env.py` in it.

In: a name and settings from a recipe. Out: `EnvironmentSpec`, the frozen identity of a task, and its class.
"""

import difflib
import importlib
import pkgutil
from pathlib import Path
from typing import Any

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.session import Session
from pydantic import BaseModel, ConfigDict, computed_field, field_validator, model_validator


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

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """A folder in `envs/`."""
    settings: dict[str, Any] = {}
    """The environment's own settings, checked by its `Settings` model."""

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        environment_class(name)
        return name

    @model_validator(mode="after")
    def _settings_fit(self) -> "EnvironmentSpec":
        environment_class(self.name).Settings.model_validate(self.settings)
        return self

    @computed_field
    @property
    def version(self) -> str:
        """The environment code's version, part of every key."""
        return environment_class(self.name).version

    def make(self, session: Session | None = None) -> ToolEnvironment:
        """A playable instance over `session`; without one only its prompt and tools can be looked at."""
        cls = environment_class(self.name)
        return cls(cls.Settings.model_validate(self.settings), session)
