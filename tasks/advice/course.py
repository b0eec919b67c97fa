"""What a run knows of its course: the figures that show what holds it back.

In: what its stages published. Out: `Evidence`.
"""

from typing import NamedTuple

from apprentice.tasks.advice.behaviour import Behaviour, Habits
from apprentice.tasks.advice.learning import Learning
from apprentice.tasks.advice.remedies import Recorded


class Evidence(NamedTuple):
    """What a run knows of its course. Rates are shares."""

    recipe: Recorded
    """As a run records it; {} where it is not known."""
    training: str
    """The section of the last training."""
    start: Behaviour | None
    """Of the model that the last training by reward began from: the one that learned from rows. None without it."""
    end: Behaviour
    """Of the last model."""
    habits: Habits | None
    """The teacher's; None without its rows."""
    learning: Learning | None
    """What SFT's log shows; None without it."""
    teacher: float | None = None
    """The teacher's accuracy."""
    rows: int | None = None
    """What SFT learned from."""
    floor: float | None = None
    gain: tuple[float, float] | None = None
    """The interval of what the last training by reward gained on the held-out questions; None without one."""
    diagnosis: str = ""
    """Of the rewards' curves."""
    equal_groups: float | None = None
    entropy: float | None = None
    """At the start of the training by reward, in nats a token."""
    clipped: float = 0.0
    """The share of its first log's rollouts that reached the limit of tokens; later ones may, of a model that it
    spoils."""
    thoughts_cut: float = 0.0
    """The share of the same rollouts that have a thought which is cut off or over its budget."""
    did_not_start: bool = False
    """Whether no group of the probe differed."""
    questions: int | None = None
    """That an evaluation needs to show the difference that was found; None where it asked enough."""

    @property
    def by_reward(self) -> bool:
        return self.gain is not None

    @property
    def paid(self) -> bool:
        return self.gain is not None and self.gain[0] > 0

    @property
    def supervised(self) -> Behaviour:
        return self.start or self.end
