"""A game in one file: a question for each seed, and tools as public methods. `envs/number.py` is the one to copy.

In: a subclass of `Game`. Out: what `one_file.py` makes an environment of, `game_server.py` an OpenEnv server.
Imports nothing of this project, so that a Space can have a copy of it beside the game.
"""

import inspect
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict


class EnvironmentSettings(BaseModel):
    """The settings of an environment, as a recipe gives them."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Game(ABC):
    """One episode, played on the server. Every public method except those of this class is a tool of the model.

    A tool takes what its signature says, returns the text that the model sees, and sets `reward` and `done`. A
    ValueError that it raises is told to the model and costs a turn.

    A game may have a method `say(self, text: str) -> None`. It is no tool: it sets the reward of a message that is a
    text without a call, which ends the episode. Without it such an episode counts as unfinished.

    Attributes:
        instructions: The system prompt; a property where it depends on the settings, as `max_turns` may be.
        version: Raise it when the same seed asks something else; 1 to 1.1 when only rewards changed.
        max_turns: The maximum number of tool calls in an episode.
        phrases: Parts of questions and replies that become single tokens of a student built here.
        reward: The reward so far, within `reward_range`, which ends at 1.0: that is a whole success.
        correct: The right answer, once the episode is over; never shown to a model.
    """

    Settings: ClassVar[type[BaseModel]] = EnvironmentSettings
    version: ClassVar[str] = "1"
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    instructions: Any
    max_turns: Any = 1
    phrases: ClassVar[tuple[str, ...]] = ()

    def __init__(self, settings: Any):
        self.settings = settings
        self.reward, self.done = 0.0, False
        self.correct: str | None = None

    @abstractmethod
    def ask(self, seed: int) -> str:
        """Begin the episode that `seed` names, the same one on every server, and return its question."""

    def traits(self, question: str) -> dict[str, int | str]:
        """Return what tells kinds of questions apart, such as {"letters": 4}, for the slices of an evaluation."""
        return {}


SAY = "say"
"""The method that scores a last text, and the name under which a text is sent to a game's server."""


def takes_text(playable: type) -> bool:
    """Return whether a class has `say(self, text: str) -> None`. A `say` that returns a text is a tool as any other."""
    say = getattr(playable, SAY, None)
    return say is not None and inspect.signature(say).return_annotation in (None, "None")


def tools_in(game: type[Game]) -> list[str]:
    """Return the names of the game's tools, in their alphabetical order."""
    own = (name for name in dir(game) if not name.startswith("_") and not hasattr(Game, name))
    return [name for name in own if callable(getattr(game, name)) and not (name == SAY and takes_text(game))]


def whole_number(value: Any, what: str, least: int, most: int) -> int:
    """Parse a number from a model, which may write 7 as "7". Raises ValueError with a message for the model."""
    try:
        number = int(str(value).strip())
    except ValueError:
        raise ValueError(f"{what} must be a whole number, {least} to {most}.") from None
    if isinstance(value, bool) or not least <= number <= most:
        raise ValueError(f"{what} must be a whole number, {least} to {most}.")
    return number
