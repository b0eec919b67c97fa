"""Echo as an environment: read a text, say it again. The smallest one there is, to copy from.

In: how many words. Out: the text of a seed, and how much of it came back.
"""

from typing import Any

from pydantic import Field

from apprentice.envs.base import EnvironmentSettings, ToolEnvironment


class Settings(EnvironmentSettings):
    """How long the texts are."""

    words: int = Field(default=3, ge=1, le=20)
    """Made-up words a text."""


class Environment(ToolEnvironment):
    """One text an episode, one call of `echo`."""

    Settings = Settings
    version = "1"
    settings: Settings

    @property
    def instructions(self) -> str:
        return "You are given a text. Say exactly that text again, by calling the tool `echo` once."

    def reset(self, *, seed: int, **row: Any) -> str:
        """The text that `seed` names."""
        return self._start(seed, words=self.settings.words).read(str, "text")

    def echo(self, message: str) -> str:
        """Say the text again.

        Args:
            message: The text, as it was given.

        Returns:
            A confirmation that the message was received.
        """
        reply = self._act({"message": str(message)})
        self.reward, self.done = reply.score, True
        self.correct = reply.read(str, "text")
        return "OK."

    def _traits(self, seed: int, question: str) -> dict[str, int | str]:
        return {"letters": len(question.replace(" ", ""))}
