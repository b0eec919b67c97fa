"""A mixture: every question belongs to one of several environments, drawn by their weights.

In: the environments by a label each. Out: whoever plays a seed, with tools, instructions and rewards of its own. There
is no server of a mixture: each of its environments is played on its own.
"""

import hashlib
from typing import Any

from pydantic import Field, ValidationError, field_validator

from apprentice.envs.base import EnvironmentSettings, ToolEnvironment
from apprentice.envs.catalog import EnvironmentSpec, NextTurn, environment_class, next_call, policy_of

TAKES_SEED = True
"""`call` is told the question's seed."""


class Part(EnvironmentSettings):
    """One environment of the mixture."""

    name: str
    """An environment of the catalogue, but `multi`."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """The environment's own settings."""
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """How often it is asked from, beside the others' weights."""

    def spec(self) -> EnvironmentSpec:
        return EnvironmentSpec(name=self.name, settings=self.settings)


class Settings(EnvironmentSettings):
    """What is mixed."""

    parts: dict[str, Part] = Field(min_length=1)
    """Each environment under a label, by which metrics and tables call it."""

    @field_validator("parts")
    @classmethod
    def _can_be_played(cls, parts: dict[str, Part]) -> dict[str, Part]:
        for label, part in parts.items():
            if not label.replace("-", "").isalnum():
                raise ValueError(f"{label!r} is no label: letters, digits and dashes")
            if part.name == "multi":
                raise ValueError(f"{label}: a mixture holds no mixture; name its environments here")
            try:
                part.spec()
            except ValidationError as error:
                raise ValueError(f"{label}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
        return dict(sorted(parts.items()))  # the order decides whose a seed is, and a file may be written in any


class Environment(ToolEnvironment):
    """What is known of a mixture. A `Mixture` plays it: the players of its environments, each over its own session."""

    Settings = Settings
    version = "1"

    @property
    def instructions(self) -> str:
        return ""

    def reset(self, *, seed: int, **row: Any) -> str:
        raise TypeError("a mixture is played by the players of its parts")

    @classmethod
    def version_under(cls, settings: dict[str, Any]) -> str:
        """With those of its parts: a new version of one of them is a new version of the mixture."""
        parts = _parts_under(settings).items()
        return ", ".join([cls.version, *(f"{label} {part.name} {part.spec().version}" for label, part in parts)])

    @classmethod
    def code_under(cls, settings: dict[str, Any]) -> str:
        """With that of its parts."""
        names = sorted({part.name for part in _parts_under(settings).values()})
        parts = [f"{name} {environment_class(name).code_under({})}" for name in names]
        return hashlib.sha256("\n".join([super().code_under({}), *parts]).encode()).hexdigest()[:20]


def _parts_under(settings: dict[str, Any]) -> dict[str, Part]:
    """None where the settings do not fit, which is told elsewhere."""
    try:
        return Settings.model_validate(settings).parts
    except ValidationError:
        return {}


def check(settings: dict[str, Any]) -> None:
    """Raises ValueError where a part has no script."""
    for part in Settings.model_validate(settings).parts.values():
        policy_of(part.name).check(part.settings)


def call(
    settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float, seed: int | None = None
) -> NextTurn:
    """The tool and the arguments of the script's next turn, or its last text."""
    if seed is None:
        raise ValueError("a question's seed says which environment of the mixture asks: send it as `seed`")
    mixture = EnvironmentSpec(name="multi", settings=settings)
    part = mixture.mixed[mixture.make().part(seed).label]
    return next_call(part.name, part.settings, messages, error_rate, seed)
