"""The scripted teacher of a mixture: each environment's own script, told apart by the instructions.

In: the messages as the student would see them. Out: one call of a tool of the environment that asks.
"""

from typing import Any

from apprentice.envs.catalog import next_call, policy_of
from apprentice.envs.multi.env import Settings

TAKES_SEED = True
"""`call` is told the question's seed."""


def check(settings: dict[str, Any]) -> None:
    """Raises ValueError where a part has no script, or two of them cannot be told apart."""
    label_differences: dict[str, str] = {}
    for label, part in Settings.model_validate(settings).parts.items():
        policy_of(part.name).check(part.settings)
        other = label_differences.setdefault(part.spec().make().instructions, label)
        if other != label:
            raise ValueError(
                f"the scripted teacher cannot tell {label} from {other}, whose instructions are the same; "
                "take teacher.scripted_error_rate out and name a model: teacher.model (and teacher.base_url)"
            )


def call(
    settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float, seed: int | None = None
) -> tuple[str, dict[str, Any]]:
    """The tool and the arguments of the policy's next turn."""
    for part in Settings.model_validate(settings).parts.values():
        if part.spec().make().instructions == messages[0]["content"]:
            return next_call(part.name, part.settings, messages, error_rate, seed)
    raise ValueError("these instructions are of no environment of the mixture")
