"""Echo: read a text, say it again. The smallest environment with a server of its own.

In: how many words. Out: the text of a seed, and the share of it that came back right, from its start.
It plays on servers of the published Echo environment as well, which ask nothing and reward nothing.
"""

from typing import Any

from pydantic import Field

from apprentice.envs.base import EnvironmentSettings, ToolEnvironment
from apprentice.envs.echo.text import share_of, text_of
from apprentice.envs.policy import errs, question_in
from apprentice.envs.wire.reply import BadReply
from apprentice.envs.wire.session import Refused

TOOL = "echo_message"
"""Of the published environment (envs/echo_env of github.com/huggingface/OpenEnv, 385de5eb)."""


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
        self._text = None
        reply = self.session.reset(seed=seed, words=self.settings.words)
        if not reply.observation.keys() <= {"metadata"}:
            return reply.read(str, "text")
        self._check_published()  # such a server asks nothing
        self._text = text_of(seed, self.settings.words)
        return self._text

    def echo(self, message: str) -> str:
        """Say the text again.

        Args:
            message: The text, as it was given.

        Returns:
            A confirmation that the message was received.
        """
        if self._text is not None:
            return self._echo_published(self._text, str(message))
        reply = self.session.step({"message": str(message)})
        self.reward, self.done = reply.score, True
        self.correct = reply.read(str, "text")
        return "OK."

    def _check_published(self) -> None:
        """Raises BadReply where a server that asks nothing is none of the published environment either."""
        try:
            tools = self.session.step({"type": "list_tools"}).read(list, "tools")
        except Refused as refused:
            raise BadReply(f"the reply has no text, and there are no tools: {refused}") from refused
        if not any(isinstance(tool, dict) and tool.get("name") == TOOL for tool in tools):
            raise BadReply(f"the reply has no text, and there is no tool {TOOL}")

    def _echo_published(self, text: str, message: str) -> str:
        reply = self.session.step({"type": "call_tool", "tool_name": TOOL, "arguments": {"message": message}})
        self.reward, self.done, self.correct = share_of(text, reply.read(str, "result", "data")), True, text
        return "OK."

    def slices(self, seed: int, question: str) -> dict[str, int | str]:
        return {"letters": len(question.replace(" ", ""))}


def check(settings: dict[str, Any]) -> None:
    """Nothing: the script plays under all settings."""


def call(settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float) -> tuple[str, dict[str, Any]]:
    """The tool and the arguments of the script's next turn; wrong on a fixed share of the texts."""
    text = question_in(messages)
    return "echo", {"message": text[:-1] if errs(text, error_rate) else text}
