"""An environment of the `verifiers` package, such as those of the Prime Intellect hub, once its package is installed.

In: the package and the arguments of its `load_environment`. Out: a row of its dataset as the question, its tools and
`answer` as methods, its rubric's reward. A seed is the index of a row.
"""

from typing import Any, ClassVar, Literal

from pydantic import Field

from apprentice.envs.openenv.discovered import DiscoveredEnvironment, DiscoveredSettings
from apprentice.envs.wire.reply import Reply

ANSWER = "Give your whole answer by calling the tool `answer`."


class Settings(DiscoveredSettings):
    """Which environment is played."""

    package: str = Field(pattern=r"^[\w./-]+$")
    """What `verifiers.load_environment` is called with, such as gsm8k."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Its arguments."""
    split: Literal["train", "eval"] = "train"
    """Which of its datasets; one without a dataset for evaluation has the same for both."""
    instructions: str = Field(default=ANSWER, min_length=1)
    """The system prompt. Left out, the environment's own, and that `answer` is called."""
    number_rows: bool = Field(default=False, exclude_if=lambda number_rows: not number_rows)
    """Whether a question ends with its row's number. For datasets whose rows share one prompt and differ in what is
    hidden, such as a secret word: equal questions would be taken for one."""


class Environment(DiscoveredEnvironment):
    """One rollout of the environment's own loop, in which the player stands in for the model."""

    Settings = Settings
    version = "1"
    extra: ClassVar[tuple[str, str]] = ("verifiers", "verifiers")
    settings: Settings
    _row = 0

    def _asked(self, seed: int) -> dict[str, Any]:
        own, self._row = self.settings, seed
        return {"package": own.package, "arguments": own.arguments, "split": own.split}

    def _question_in(self, reply: Reply) -> str:
        question = reply.read(str, "question")
        return f"{question}\n\n(Row {self._row})" if self.settings.number_rows else question

    def _discovered_in(self, reply: Reply) -> dict[str, Any]:
        own = reply.read(str, "instructions")
        return {
            "instructions": f"{own}\n\n{ANSWER}" if own else ANSWER,
            "served_by": reply.read(str, "served_by"),
        }
