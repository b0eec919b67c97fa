"""Environments of the `verifiers` package as one OpenEnv environment.

A reset names its question whole (package, arguments, split, seed), where the seed is the index of a row of the dataset.
A step is a call of one of its tools, or of `answer`, with which the model says something without a tool.
"""

import asyncio
import hashlib
import inspect
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any
from uuid import uuid4

import verifiers  # type: ignore[import-not-found]
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_types import CallToolAction, ListToolsAction, ToolError, ToolErrorType
from openenv.core.env_server.types import Action, Observation, State
from pydantic import ConfigDict

from .rollout import Rollout, record_warnings_of

ANSWER = {
    "name": "answer",
    "description": "Say something without a tool, such as the answer.",
    "input_schema": {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "The whole answer."}},
        "required": ["text"],
    },
}
loading = threading.Lock()


class VerifiersObservation(Observation):
    """After a reset the question, after a request for the tools these, after a call what came back."""

    model_config = ConfigDict(extra="forbid")

    question: str | None = None
    instructions: str | None = None
    served_by: str | None = None
    tools: list[dict[str, Any]] | None = None
    result: str | None = None
    error: ToolError | None = None


class VerifiersEnvironment(Environment[CallToolAction, VerifiersObservation, State]):
    """One rollout an episode. Sessions share the loaded environments and one event loop."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._rollout: Rollout | None = None
        self._request: dict[str, Any] = {}
        self._state = State(episode_id=None, step_count=0)

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        package: str = "",
        arguments: dict[str, Any] | None = None,
        split: str = "train",
        **_: Any,
    ) -> VerifiersObservation:
        if not isinstance(seed, int) or not package:
            raise ValueError("a reset names its question: send package, such as gsm8k, and seed, the index of a row")
        self.close()
        row = row_of(package, json.dumps(arguments or {}, sort_keys=True), split, seed)
        environment = loaded(package, json.dumps(arguments or {}, sort_keys=True))

        async def begun() -> tuple[Rollout, dict[str, Any] | None]:
            rollout = Rollout(environment, row)
            return rollout, await rollout.next()

        self._rollout, request = on_loop(begun())
        if request is None:
            raise ValueError(f"row {seed} of {package} is over before a model is asked")
        self._request = request
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        system = [each for each in request["messages"] if each["role"] == "system"]
        prompt = [each for each in request["messages"] if each["role"] != "system"]
        return VerifiersObservation(
            question=as_text(prompt),
            instructions=as_text(system),
            served_by=name_and_version(package),
            done=False,
            reward=None,
        )

    def step(self, action: Action, timeout_s: float | None = None, **_: Any) -> VerifiersObservation:
        if isinstance(action, ListToolsAction):
            return VerifiersObservation(tools=self._tools(), done=False, reward=None)
        if self._rollout is None:
            raise ValueError("no episode runs: reset first")
        assert isinstance(action, CallToolAction)
        try:
            message = message_of(action, f"call_{self._state.step_count}")
        except ValueError as mistake:
            error = ToolError(error_type=ToolErrorType.INVALID_ARGS, message=str(mistake))
            return VerifiersObservation(error=error, done=False, reward=None)
        self._state.step_count += 1
        before, request = len(self._request["messages"]), on_loop(self._rollout.next(message))
        if request is None:
            reward, self._rollout = self._rollout.reward, None
            return VerifiersObservation(result="Done.", done=True, reward=reward)
        self._request = request
        replies = [each for each in request["messages"][before:] if each["role"] != "assistant"]
        return VerifiersObservation(result=as_text(replies), done=False, reward=None)

    def _tools(self) -> list[dict[str, Any]]:
        """Those of the request, in the form of MCP. Raises ValueError if one is called like ours."""
        tools = [each["function"] for each in self._request.get("tools") or []]
        if any(tool["name"] == ANSWER["name"] for tool in tools):
            raise ValueError("an environment with a tool `answer` of its own cannot be played")
        own = [
            {
                "name": tool["name"],
                "description": tool.get("description", ""),
                "input_schema": tool.get("parameters", {}),
            }
            for tool in tools
        ]
        return [*own, ANSWER]

    def close(self) -> None:
        if self._rollout is not None:
            rollout, self._rollout = self._rollout, None
            on_loop(rollout.leave())

    @property
    def state(self) -> State:
        return self._state


def message_of(action: CallToolAction, call_id: str) -> dict[str, Any]:
    """The model's message. Raises ValueError for an empty one, which verifiers takes for a failure of the model."""
    if action.tool_name != ANSWER["name"]:
        function = {"name": action.tool_name, "arguments": json.dumps(action.arguments)}
        call = {"id": call_id, "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if not str(action.arguments.get("text") or "").strip():
        raise ValueError("answer needs a text")
    return {"role": "assistant", "content": str(action.arguments["text"])}


def as_text(messages: list[dict[str, Any]]) -> str:
    """The text of messages; where there are several, such as examples, with their roles."""
    texts = [(each["role"], _content_of(each.get("content"))) for each in messages]
    if len({role for role, _ in texts}) == 1:
        return "\n\n".join(text for _, text in texts)
    return "\n\n".join(f"{role}: {text}" for role, text in texts)


def _content_of(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in content)
    return str(content or "")


def loaded(package: str, arguments: str) -> Any:
    """The environment, loaded once."""
    with loading:
        return _load(package, arguments)


@cache
def _load(package: str, arguments: str) -> Any:
    with without_signal_handlers():
        environment = verifiers.load_environment(package, **json.loads(arguments))  # type: ignore[attr-defined]
    record_warnings_of(environment.rubric)
    return environment


@contextmanager
def without_signal_handlers() -> Iterator[None]:
    """An environment would handle the signals of its process, which is this server, and can on its main thread only."""
    before, signal.signal = signal.signal, lambda *_: None  # type: ignore[assignment]
    try:
        yield
    finally:
        signal.signal = before


def row_of(package: str, arguments: str, split: str, seed: int) -> dict[str, Any]:
    """The row of the dataset. Raises ValueError for an index that it does not have."""
    environment = loaded(package, arguments)
    with loading:
        rows = environment.get_eval_dataset() if split == "eval" else environment.get_dataset()
    if not 0 <= seed < len(rows):
        raise ValueError(
            f"{package} has {len(rows)} rows and none of the index {seed}: set windows.collect.start, "
            "windows.grpo.start and windows.evaluate.start so that every seed is a row"
        )
    return dict(rows[seed])


@cache
def name_and_version(package: str) -> str:
    """Name, version and digest of the environment's package, and the version of verifiers."""
    module = package.replace("-", "_").split("/")[-1]
    distributions = packages_distributions().get(module)
    own = f"{package} {version(distributions[0])}" if distributions else package
    file = Path(inspect.getfile(__import__(module)))
    files = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
    digest = hashlib.sha256(b"\0".join(each.read_bytes() for each in files)).hexdigest()[:12]
    return f"{own} ({digest}), verifiers {version('verifiers')}"


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def on_loop(coroutine: Any) -> Any:
    """Run a coroutine on the loop of all rollouts; environments and judges are made for one loop."""
    with loading:
        loop = _loop()
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result()
