"""Echo as an OpenEnv environment.

A reset names its text whole (seed, words). The reward is the share of the text that came back right, from its start.
A step is {"message": …}, or a call of the tool `echo_message` as clients of the published Echo environment send it.
"""

from typing import Any
from uuid import uuid4

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import model_validator

from .text import share_of, text_of

TOOL = "echo_message"
"""Of the published environment (envs/echo_env of github.com/huggingface/OpenEnv, 385de5eb)."""


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
