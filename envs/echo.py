"""Echo: read a text, say it again. The smallest environment with a server of its own, to copy from.

In: how many words. Out: the text of a seed, and the share of it that came back right, from its start.
It plays on servers of the published Echo environment as well, which ask nothing and reward nothing.
"""

import os
import random
from functools import cache
from typing import Any
from uuid import uuid4

from pydantic import Field, model_validator

from apprentice.envs.base import EnvironmentSettings, ToolEnvironment
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
        reply = self._start(seed, words=self.settings.words)
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
        reply = self._act({"message": str(message)})
        self.reward, self.done = reply.score, True
        self.correct = reply.read(str, "text")
        return "OK."

    def _check_published(self) -> None:
        """Raises BadReply where a server that asks nothing is none of the published environment either."""
        try:
            tools = self._act({"type": "list_tools"}).read(list, "tools")
        except Refused as refused:
            raise BadReply(f"the reply has no text, and there are no tools: {refused}") from refused
        if not any(isinstance(tool, dict) and tool.get("name") == TOOL for tool in tools):
            raise BadReply(f"the reply has no text, and there is no tool {TOOL}")

    def _echo_published(self, text: str, message: str) -> str:
        reply = self._act({"type": "call_tool", "tool_name": TOOL, "arguments": {"message": message}})
        self.reward, self.done, self.correct = share_of(text, reply.read(str, "result", "data")), True, text
        return "OK."

    def _traits(self, seed: int, question: str) -> dict[str, int | str]:
        return {"letters": len(question.replace(" ", ""))}


def check(settings: dict[str, Any]) -> None:
    """Nothing: the script plays under all settings."""


def call(settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float) -> tuple[str, dict[str, Any]]:
    """The tool and the arguments of the script's next turn; wrong on a fixed share of the texts."""
    text = question_in(messages)
    return "echo", {"message": text[:-1] if errs(text, error_rate) else text}


def text_of(seed: int, words: int) -> str:
    """The text that `seed` names: made-up words of three to five letters."""
    draw = random.Random(seed)
    return " ".join(
        "".join(draw.choice("aeiou" if place % 2 else "bdfgklmnprst") for place in range(draw.randint(3, 5)))
        for _ in range(words)
    )


def share_of(text: str, said: str) -> float:
    """The share of the text that was said right, from its start."""
    right = len(os.path.commonprefix([text, said]))  # noqa: RUF071 (letters, not paths)
    return right / max(len(text), len(said))


@cache
def server_classes() -> tuple[type[Any], type[Any], type[Any]]:
    """Return the OpenEnv environment, its action and its observation; a Space has them in a file without this project.

    A step is {"message": …}, or a call of `echo_message` as clients of the published environment send it.
    """
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class EchoAction(Action):
        """What is said."""

        message: str
        tool_name: str = TOOL

        @model_validator(mode="before")
        @classmethod
        def _from_tool_call(cls, given: Any) -> Any:
            if not isinstance(given, dict) or given.get("type") != "call_tool":
                return given
            arguments = given.get("arguments")
            said = arguments.get("message") if isinstance(arguments, dict) else None
            return {"message": said, "tool_name": given.get("tool_name")}

    class EchoObservation(Observation):
        """The text that is to be said, and what was said."""

        text: str
        echoed_message: str | None = None
        tool_name: str = TOOL
        result: dict[str, str] | None = None
        """What was said, as the published environment's clients read it."""

    class EchoEnvironment(Environment[EchoAction, EchoObservation, State]):
        """One text an episode. Sessions share nothing."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self):
            super().__init__()
            self._text = ""
            self._state = State(episode_id=None, step_count=0)

        def reset(
            self, seed: int | None = None, episode_id: str | None = None, words: int = 3, **_: Any
        ) -> EchoObservation:
            if not isinstance(seed, int):
                raise ValueError("a reset names its text: send a seed, such as reset(seed=7), and words if you like")
            if not isinstance(words, int) or not 1 <= words <= 20:
                raise ValueError("words must be a whole number, 1 to 20")
            self._text = text_of(seed, words)
            self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
            return EchoObservation(text=self._text, done=False, reward=0.0)

        def step(self, action: EchoAction, timeout_s: float | None = None, **_: Any) -> EchoObservation:
            if not self._text:
                raise ValueError("no episode runs: reset first, with a seed")
            if action.tool_name != TOOL:
                raise ValueError(f"there is no tool {action.tool_name}; there is {TOOL}(message)")
            text, self._text = self._text, ""
            self._state.step_count += 1
            said = action.message
            return EchoObservation(
                text=text, echoed_message=said, result={"data": said}, done=True, reward=share_of(text, said)
            )

        @property
        def state(self) -> State:
            return self._state

    return EchoEnvironment, EchoAction, EchoObservation
