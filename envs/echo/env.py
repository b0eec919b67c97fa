"""Echo as an environment: read a text, say it again. The smallest one there is, to copy from.

In: how many words. Out: the text of a seed, and how much of it came back.
Plays on servers of the published Echo environment as well, which ask nothing and reward nothing.
"""

from typing import Any

from pydantic import Field

from apprentice.envs.base import EnvironmentSettings, ToolEnvironment
from apprentice.envs.echo.server.text import share_of, text_of


class Settings(EnvironmentSettings):
    """How long the texts are."""

    words: int = Field(default=3, ge=1, le=20)
    """Made-up words a text."""


class Environment(ToolEnvironment):
    """One text an episode, one call of `echo`."""

    Settings = Settings
    version = "1"
    settings: Settings
    _text: str | None = None

    @property
    def instructions(self) -> str:
        return "You are given a text. Say exactly that text again, by calling the tool `echo` once."

    def reset(self, *, seed: int, **row: Any) -> str:
        """The text that `seed` names."""
        reply = self._start(seed, words=self.settings.words)
        published = reply.observation.keys() <= {"metadata"}  # it says nothing, so the text is drawn here
        self._text = text_of(seed, self.settings.words) if published else None
        return self._text or reply.read(str, "text")

    def echo(self, message: str) -> str:
        """Say the text again.

        Args:
            message: The text, as it was given.

        Returns:
            A confirmation that the message was received.
        """
        if self._text is not None:
            return self._echo_published(self._text, str(message))
        reply = self._act({"message": str(message)})
        self.reward, self.done = reply.score, True
        self.correct = reply.read(str, "text")
        return "OK."

    def _echo_published(self, text: str, message: str) -> str:
        reply = self._act({"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": message}})
        self.reward, self.done, self.correct = share_of(text, reply.read(str, "result", "data")), True, text
        return "OK."

    def _traits(self, seed: int, question: str) -> dict[str, int | str]:
        return {"letters": len(question.replace(" ", ""))}
