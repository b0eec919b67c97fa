"""The reward streams of an environment: each is a reward function of an online training, with its weight.

In: an environment, the recipe's weights. Out: `Stream`s.
"""

from typing import NamedTuple

from apprentice.envs.player import Player


class Stream(NamedTuple):
    """One reward function: an environment's reward, or one of its reward streams."""

    label: str = ""
    """The label of the part in a mixture."""
    name: str = "environment_reward"
    weight: float = 1.0

    @property
    def called(self) -> str:
        only = Stream().name
        return ".".join(part for part in (self.label, self.name) if part and (part != only or not self.label))

    def of(self, environment: Player) -> float | None:
        """The value in a finished episode; None without a reward, or in an environment without this stream."""
        if environment.label != self.label or environment.reward is None:
            return None
        return environment.scores()[self.name]


def streams_of(instance: Player, weights: dict[str, float]) -> list[Stream]:
    """All reward components of an environment, or of all parts of a mixture, with the recipe's weights.

    In a mixture of difficulty levels, weights are those of the recipe's environment, without a label.
    """
    return [
        stream._replace(weight=weights.get(stream.called, weights.get(stream.name, stream.weight)))
        for stream in streams_of_parts(instance.parts())
    ]


def streams_of_parts(parts: list[Player]) -> list[Stream]:
    """All streams of the parts, with the environments' own weights."""
    return [Stream(part.label, name, weight) for part in parts for name, weight in part.streams.items()]
