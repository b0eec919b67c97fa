"""One rollout of a `verifiers` environment, whose model is the player.

In: an environment and a row of its dataset. Out: the requests that it sends to its model, one at a time, and at the end
the rubric's reward. The environment's own loop runs, with its own tools and stop conditions.
"""

import asyncio
import json
import logging
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion

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
    except ImportError:
        return player
    return OpenAIChatCompletionsClient(player)
