"""The scripted teacher of a mixture: each environment's own script; the seed says whose a question is.

In: the messages as the student would see them, the question's seed. Out: one call of a tool of the environment that
asks.
"""

from typing import Any

from apprentice.envs.catalog import EnvironmentSpec, next_call, policy_of
from apprentice.envs.multi.env import Settings

TAKES_SEED = True
"""`call` is told the question's seed."""


def check(settings: dict[str, Any]) -> None:
    """Raises ValueError where a part has no script."""
    for part in Settings.model_validate(settings).parts.values():
        policy_of(part.name).check(part.settings)


def call(
    settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float, seed: int | None = None
) -> tuple[str, dict[str, Any]]:
    """The tool and the arguments of the policy's next turn."""
    if seed is None:
        raise ValueError("a question's seed says which environment of the mixture asks: send it as `seed`")
    mixture = EnvironmentSpec(name="multi", settings=settings)
    part = mixture.mixed[mixture.make()._part(seed).label]
    return next_call(part.name, part.settings, messages, error_rate, seed)
