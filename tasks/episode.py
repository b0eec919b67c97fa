"""One episode of messages and tool calls, as teacher and evaluation play it and as TRL's GRPO loop plays it.

In: an environment, a seed, assistant messages. Out: the transcript in OpenAI's format, the reward, whether the calls
were valid.
Why: the teacher answers one conversation at a time, a local model a batch of them; both advance the same episode.
What an assistant message does to the environment follows TRL's tool loop (trl.GRPOTrainer, `_tool_call_loop`): every
call is executed, an error becomes the tool's reply as text, a message without a call ends the episode.
"""

import inspect
import json
from functools import lru_cache
from typing import Any

from apprentice.envs.base import ToolEnvironment, tool_schemas, tools_of
from apprentice.envs.session import SessionLost

Message = dict[str, Any]


class Episode:
    """A running episode.

    Attributes:
        messages: The transcript so far: system, user, then assistant and tool messages.
        tools: The tools' JSON schemas, as rendered into the prompt.
        done: Whether it is over: the environment said so, no tool was called, or the turns are used up.
        causes: What was wrong with the calls so far; empty as long as all were valid.
    """

    def __init__(self, environment: ToolEnvironment, seed: int):
        """Resets the environment; of a mixture, the one that the seed belongs to. Raises SessionLost."""
        environment = environment._part(seed)
        self.environment = environment
        self.seed = seed
        self.sample = 0  # which of several tries at this question
        self.tools = tool_schemas(environment)
        self._callable = {tool.__name__: tool for tool in tools_of(environment)}
        self.messages = prompt(environment, environment.reset(seed=seed))
        self.causes: list[str] = []
        self.done = False
        self._turns = 0

    @property
    def turns(self) -> int:
        """Messages of the model so far."""
        return self._turns

    @property
    def question(self) -> str:
        return self.messages[1]["content"]

    @property
    def reward(self) -> float | None:
        """The environment's reward, 0.0 to 1.0; None when the infrastructure failed."""
        return self.environment.reward

    @property
    def valid(self) -> bool:
        """Format compliance: the model called tools, and every call was one that the schema accepts."""
        return self._turns > 0 and not self.causes

    def hear(self, message: Message) -> None:
        """Takes the model's next message and executes its calls. Raises SessionLost."""
        self.messages.append(message)
        self._turns += 1
        self.causes += problems(message, self.tools)
        calls = message.get("tool_calls") or []
        for call in calls:
            content = self._execute(call["function"]["name"], call["function"]["arguments"])
            reply = {"role": "tool", "name": call["function"]["name"], "content": content}
            self.messages.append(reply | ({"tool_call_id": call["id"]} if "id" in call else {}))
        self.done = not calls or self.environment.done or self._turns >= self.environment.max_turns

    def _execute(self, name: str, arguments: str | dict[str, Any]) -> str:
        tools = self._callable
        try:
            if name not in tools:
                raise ValueError(f"Tool {name} not found.")
            given = json.loads(arguments) if isinstance(arguments, str) else arguments
            inspect.signature(tools[name]).bind(**given)
            return str(tools[name](**given))
        except SessionLost:
            raise
        except Exception as error:  # as TRL does: the model reads what was wrong with its call
            return str({"error": str(error)})


def prompt(environment: ToolEnvironment, question: str) -> list[Message]:
    """The messages that open an episode, for every driver."""
    return [{"role": "system", "content": environment.instructions}, {"role": "user", "content": question}]


def problems(message: Message, tools: list[dict[str, Any]]) -> list[str]:
    """Why this assistant message is not one valid tool call after another; empty when it is."""
    calls = message.get("tool_calls") or []
    if not calls:
        return ["no tool call"]
    return [cause for call in calls if (cause := _call_problem(call["function"], tools))]


def _call_problem(function: dict[str, Any], tools: list[dict[str, Any]]) -> str | None:
    validator = next(
        (_validator(json.dumps(tool)) for tool in tools if tool["function"]["name"] == function["name"]), None
    )
    if validator is None:
        return "unknown tool"
    try:
        given = function["arguments"]
        given = json.loads(given) if isinstance(given, str) else given
    except json.JSONDecodeError:
        return "malformed arguments"
    return None if validator.is_valid(given) else "arguments off the schema"


@lru_cache
def _validator(tool: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(tool)["function"]["parameters"] | {"additionalProperties": False})
