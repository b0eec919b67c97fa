"""Environments of the `verifiers` package as one OpenEnv environment.

A reset names its question whole (package, arguments, split, seed), where the seed is the index of a row of the dataset.
A step is a call of one of its tools, or of `answer`, with which the model says something without a tool.

A rollout is that of the environment's own loop, with its own tools and stop conditions; the player stands in for its
model. It gives the requests to the model one at a time, and at the end the rubric's reward.
"""

import asyncio
import hashlib
import inspect
import json
import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.metadata import packages_distributions, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import verifiers  # type: ignore[import-not-found]
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_types import CallToolAction, ListToolsAction, ToolError, ToolErrorType
from openenv.core.env_server.types import Action, Observation, State
from pydantic import ConfigDict

warned: ContextVar[list[str]] = ContextVar("warned")
"""What the rubric of a rollout logged while it scored, as warnings and errors."""


class NotScored(Exception):
    """The rollout has no reward: the environment, one of its tools or its judge failed."""


class Player(AsyncOpenAI):
    """The model that the environment asks: a request waits until `replies` has an answer."""

    def __init__(self) -> None:
        super().__init__(api_key="none", base_url="http://127.0.0.1:9")
        self.requests: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.replies: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def post(  # type: ignore[override]
        self, path: str, *, cast_to: Any, body: Any = None, **_: Any
    ) -> Any:
        await self.requests.put(dict(body))
        message = await self.replies.get()
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        completion = {
            "id": "chatcmpl-player",
            "object": "chat.completion",
            "created": 0,
            "model": "player",
            "choices": [{"index": 0, "finish_reason": reason, "message": message}],
            "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        }
        if cast_to is ChatCompletion:
            return ChatCompletion.model_validate(completion)
        return SimpleNamespace(content=json.dumps(completion).encode())  # verifiers 0.2 and 0.3 parse it themselves


class Rollout:
    """Begin it on an event loop; `next` is the next request, or None once `reward` is there.

    Raises NotScored.
    """

    def __init__(self, environment: Any, row: dict[str, Any]):
        self.reward = 0.0
        self._player = Player()
        self._task = asyncio.create_task(self._play(environment, row))

    async def next(self, message: dict[str, Any] | None = None) -> dict[str, Any] | None:
        if message is not None:
            await self._player.replies.put(message)
        request = asyncio.create_task(self._player.requests.get())
        await asyncio.wait({request, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if request.done():
            return request.result()
        request.cancel()
        self._task.result()
        return None

    async def leave(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _play(self, environment: Any, row: dict[str, Any]) -> None:
        logged: list[str] = []
        warned.set(logged)
        state = await environment.rollout(row, _client(self._player), "player", {})
        if state.get("error") is not None:
            raise NotScored(f"the environment failed: {state['error']!r}")
        logged.clear()
        await environment.rubric.score_rollout(state)
        if logged:  # a rubric turns whatever fails in it into 0.0, and says so in its log only
            raise NotScored(f"the rubric could not score: {'; '.join(logged)[:1000]}")
        self.reward = float(state["reward"])


def record_warnings_of(rubric: Any) -> None:
    """Record what a rubric, and those within it, warn of."""
    rubric.logger.addHandler(Warnings())
    if not rubric.logger.isEnabledFor(logging.WARNING):
        rubric.logger.setLevel(logging.WARNING)
    for each in getattr(rubric, "rubrics", []):
        record_warnings_of(each)


class Warnings(logging.Handler):
    """Keeps warnings and errors for the rollout that they are about."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        logged = warned.get(None)
        if logged is not None and record.getMessage() not in logged:
            logged.append(record.getMessage())


def _client(player: Player) -> Any:
    """As `rollout` takes it: since 0.2 wrapped."""
    try:
        from verifiers.clients import OpenAIChatCompletionsClient  # type: ignore[import-not-found]
    except ImportError as missing:
        if missing.name != "verifiers.clients":  # the module is there, and something in it cannot be imported
            raise
        return player
    return OpenAIChatCompletionsClient(player)


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
    if not hasattr(verifiers, "load_environment"):
        raise ValueError("this release of verifiers loads no environments: pip install 'openenv-apprentice[verifiers]'")
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
