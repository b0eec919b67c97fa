"""The teacher: an OpenAI-compatible endpoint that is asked for one tool call at a time.

In: a conversation and its tools. Out: an assistant message with one valid call, and what was spent.
The key comes from the environment variable OPENAI_API_KEY or a Prefect Secret block and goes nowhere but into the
client: what an endpoint says about an error is shown without it.
"""

import asyncio
import json
import os
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from time import monotonic, time
from typing import Any

import tenacity

from apprentice.envs.metrics import count
from apprentice.envs.patience import failing_for
from apprentice.envs.waiting import wait_for
from apprentice.tasks.budget import Budget
from apprentice.tasks.completion import Completion, Usage
from apprentice.tasks.episode import Message, problems
from apprentice.tasks.errors import Stop
from apprentice.tasks.limits import Rate, limit_name
from apprentice.tasks.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.specs import TeacherSpec

LEAST_ATTEMPTS = 4
"""Times that a request is sent before it is given up: one that waits long for its turn is not given up at once."""
LONGEST_WAIT = 60.0
"""Seconds: a Retry-After beyond it is cut to it."""


class TeacherFailed(Exception):
    """The teacher gave no usable turn; the episode is recorded as failed at this boundary."""


class TeacherAway(Exception):
    """The endpoint did not answer one request for longer than one is patient, while it answered others."""


class Unanswered(Exception):
    """A request that got no whole answer; it is sent again."""

    @property
    def message(self) -> str:
        return str(self)


@dataclass
class Spent:
    """What an episode took from the teacher; answers that were asked for again are in it."""

    attempts: int = 0
    asked_again: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float = 0.0


# Model families and how they want to be asked; the first prefix that fits counts.
# https://platform.openai.com/docs/guides/reasoning: reasoning models take max_completion_tokens and no temperature.
FAMILIES: list[tuple[str, str, bool]] = [
    ("gpt-5", "max_completion_tokens", False),
    ("o1", "max_completion_tokens", False),
    ("o3", "max_completion_tokens", False),
    ("o4", "max_completion_tokens", False),
    ("", "max_tokens", True),
]


class Teacher:
    """A client of the endpoint. Many episodes use it at once, on the loop of `waiting`.

    Args:
        base_url: The endpoint; None for OpenAI's own.
        asks: Times one turn is asked for before a malformed answer counts.
        share: This client's part of the limits where several share them without a Prefect server.
    """

    def __init__(self, spec: TeacherSpec, base_url: str | None, asks: int, budget: Budget, share: float = 1.0):
        from openai import AsyncOpenAI, DefaultAioHttpClient

        self._key = "none-needed" if spec.scripted_error_rate is not None else read_key(spec)
        self._client = AsyncOpenAI(
            api_key=self._key,
            base_url=base_url,
            timeout=spec.timeout,
            max_retries=0,
            http_client=DefaultAioHttpClient(),  # half the time of the default one for a request
        )
        self._spec = spec
        self._asks = asks
        self._budget = budget
        self._counts = bool(spec.budget_usd or spec.tokens_per_minute)
        self._answered = monotonic()
        self._answered_once = False
        _, limit, takes_temperature = next(family for family in FAMILIES if spec.model.startswith(family[0]))
        self._settings: dict[str, Any] = {"model": spec.model, limit: spec.max_tokens}
        if takes_temperature:
            self._settings["temperature"] = spec.temperature
        self._url = str(self._client.base_url)
        self._requests, self._tokens = (
            Rate(limit_name(f"teacher-{unit}", self._url, spec.model), per_minute * share, largest)
            if per_minute
            else None
            for unit, per_minute, largest in (
                ("requests", spec.requests_per_minute, 1.0),
                ("tokens", spec.tokens_per_minute, 2.0 * spec.max_tokens),
            )
        )
        self._again = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_passes),
            wait=_as_told,
            stop=failing_for(spec.patience, attempts=LEAST_ATTEMPTS),
            before_sleep=lambda _: count("retries"),
            reraise=True,
        )

    def close(self) -> None:
        wait_for(self._client.close())

    def say(self, messages: list[Message], tools: list[dict[str, Any]], spent: Spent, choice: str) -> Message:
        """The endpoint's next message as it is, adding to `spent`. Raises TeacherFailed, TeacherAway, Stop.

        `choice`: "required" for a call, "auto" where it may also speak.
        """
        return wait_for(self._ask(messages, tools, spent, choice))

    def reply(self, messages: list[Message], tools: list[dict[str, Any]], spent: Spent) -> Message:
        """The teacher's next message, adding to `spent`. Raises TeacherFailed, TeacherAway, BudgetReached, Stop."""
        for _ in range(self._asks):
            message = self.say(messages, tools, spent, "required")
            found = problems(message, tools)
            if len(message.get("tool_calls") or []) > 1:
                found.append("several calls")
            if not found:
                return message
            spent.asked_again += found
        raise TeacherFailed(f"no valid tool call in {self._asks} answers; the last one had: {spent.asked_again[-1]}")

    async def _ask(self, messages: list[Message], tools: list[dict[str, Any]], spent: Spent, choice: str) -> Message:
        import openai

        body: dict[str, Any] = {
            **self._settings,
            "messages": messages,
        }
        if tools and self._spec.serves_student:  # the very prompt of training
            body |= {"tools": tools, "tool_choice": choice, "chat_template_kwargs": TEMPLATE_ARGUMENTS}
        elif tools:
            wire = [_on_the_wire(tool) for tool in tools]
            body |= {"tools": wire, "tool_choice": choice, "parallel_tool_calls": False}
        try:
            answer = await self._again(self._send, body, spent)
        except (openai.APIError, Unanswered) as error:
            raise self._explained(error) from None  # what the endpoint said may quote the key
        return answer.message()

    async def _send(self, body: dict[str, Any], spent: Spent) -> Completion:
        """One request, within budget and limits. By `post`, not `chat.completions.create`: its typed parameters and
        answers cost more than the whole request does without them, and the answer is data that is checked anyway."""
        import httpx2
        import openai

        longest_prompt = len(json.dumps(body)) if self._counts else 0  # a token is a byte at least
        if self._requests:
            await self._requests.take()
        if self._tokens:
            await self._tokens.take(longest_prompt / 4 + self._spec.max_tokens)
        most = self._budget.cost(longest_prompt, self._spec.max_tokens)
        async with self._budget.reserved(most) as settle:
            spent.attempts += 1
            try:
                async with asyncio.timeout(self._spec.timeout):  # the client's own is for each piece of an answer
                    raw = await self._client.post("/chat/completions", body=body, cast_to=object)
            except openai.APIStatusError:
                settle(0.0)
                raise
            except openai.APIConnectionError as error:
                if isinstance(error.__cause__, httpx2.ConnectError | httpx2.ConnectTimeout):
                    settle(0.0)  # it was never sent
                raise
            except TimeoutError:
                raise Unanswered(f"no whole answer in {self._spec.timeout:.0f} s") from None
            except ValueError:
                raise Unanswered("an answer that is no JSON") from None
            answer = Completion.read(raw)
            settle(self._add(answer.usage, spent, most))
            if not answer.choices and body.get("tool_choice") != "required":  # an examination must not take it for one
                raise Unanswered("an answer without a choice")
        self._answered, self._answered_once = monotonic(), True
        return answer

    def _add(self, usage: Usage | None, spent: Spent, most: float) -> float:
        """Adds the answer's usage to `spent`; returns its cost in USD: `most` where the endpoint reports no usage."""
        cost = most
        if usage is not None:
            cost = self._budget.cost(usage.prompt_tokens, usage.completion_tokens, usage.cached)
            spent.prompt_tokens += usage.prompt_tokens
            spent.completion_tokens += usage.completion_tokens
            spent.cached_tokens += usage.cached
            spent.reasoning_tokens += usage.reasoning
            count("prompt_tokens", usage.prompt_tokens)
            count("completion_tokens", usage.completion_tokens)
        spent.cost_usd += cost
        count("cost_usd", cost)
        return cost

    def _explained(self, error: Any) -> Exception:
        """What an error that did not pass means: for this episode, or for the whole collection."""
        import openai

        endpoint = f"The teacher's endpoint {self._url}"
        said = str(error.message).replace(self._key, "***")[:300]
        if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError | openai.NotFoundError):
            return Stop(
                f"{endpoint} refused the request with status {error.status_code}: {said}",
                "Check OPENAI_API_KEY (or teacher.key_block), teacher.model and teacher.base_url, and run again.",
            )
        if _no_quota(error):
            return Stop(f"{endpoint} says that the account has no quota left.", "Top it up and run again.")
        if not _passes(error):
            if self._answered_once:
                return TeacherFailed(f"{type(error).__name__}: {said}")
            return Stop(f"{endpoint} refused the first request: {said}", "Correct the teacher section of the recipe.")
        cause = f"status {error.status_code}" if isinstance(error, openai.APIStatusError) else said
        if monotonic() - self._answered < self._spec.patience:
            return TeacherAway(f"{cause} for {self._spec.patience:.0f} s")
        return Stop(
            f"{endpoint} has not answered for {self._spec.patience:.0f} s ({cause}).",
            "Run again when it is back: finished episodes are kept.",
        )


def read_key(spec: TeacherSpec) -> str:
    """The endpoint's key. Raises Stop when there is none."""
    if spec.key_block is not None:
        from prefect.blocks.system import Secret

        try:
            return str(Secret.load(spec.key_block, _sync=True).get())  # type: ignore[call-arg, union-attr]
        except ValueError:
            raise Stop(
                f"There is no Prefect Secret block named {spec.key_block}.",
                "Create it in Prefect's interface, or leave teacher.key_block out and set OPENAI_API_KEY.",
            ) from None
    key = os.environ.get(spec.key_variable)
    if not key:
        raise Stop(
            f"The endpoint needs a key and {spec.key_variable} is not set.",
            "Set it in the environment (any text for an endpoint that asks for none) and run again.",
        )
    return key


def _passes(error: BaseException) -> bool:
    """Whether trying again may help: no connection, no answer in time, 408, 409, 429 or 5xx."""
    import openai

    if isinstance(error, openai.APIStatusError):
        return (error.status_code in (408, 409, 429) or error.status_code >= 500) and not _no_quota(error)
    return isinstance(error, openai.APIConnectionError | Unanswered)


def _no_quota(error: Any) -> bool:
    return getattr(error, "code", None) == "insufficient_quota"


_backoff = tenacity.wait_random_exponential(multiplier=0.5, max=20.0)


def _as_told(state: tenacity.RetryCallState) -> float:
    """Seconds until the next attempt: what Retry-After says and up to a tenth more, else exponential with jitter."""
    assert state.outcome is not None
    headers = getattr(getattr(state.outcome.exception(), "response", None), "headers", {})
    told = headers.get("retry-after")
    if not told:
        return _backoff(state)
    try:
        seconds = float(told)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(told).timestamp() - time()
        except ValueError:
            return _backoff(state)
    return min(max(seconds, 0.0), LONGEST_WAIT) + tenacity.wait_random(0.0, max(0.1 * seconds, 0.05))(state)


def _on_the_wire(tool: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's function schema has no `return`; the student's prompt has."""
    return {**tool, "function": {name: part for name, part in tool["function"].items() if name != "return"}}
