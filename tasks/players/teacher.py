"""The teacher's client: requests one tool call at a time from an OpenAI-compatible endpoint.

In: a conversation and its tools. Out: an assistant message with one valid call, and its costs.
The API key comes from an environment variable or a Prefect Secret block and is removed from error messages.
"""

import asyncio
import json
import os
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from apprentice.envs.wire.metrics import count
from apprentice.envs.wire.waiting import wait_for
from apprentice.tasks.engine.limits import Rate, limit_name
from apprentice.tasks.episodes.episode import Message, problems
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.players.budget import Budget
from apprentice.tasks.players.completion import Completion
from apprentice.tasks.players.retries import Redirected, Unanswered, may_pass, no_quota, retrying
from apprentice.tasks.players.usage import usage_of
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop, TeacherFailed, TeacherUnavailable
from apprentice.tasks.reporting.visible import one_line
from apprentice.tasks.settings.stages import TeacherSpec


@dataclass
class Spent:
    """The teacher's usage in one episode, including repeated requests."""

    attempts: int = 0
    asked_again: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float = 0.0


# Model families and their request parameters; the first matching prefix counts.
# https://platform.openai.com/docs/guides/reasoning: reasoning models take max_completion_tokens and no temperature.
FAMILIES: list[tuple[str, str, bool]] = [
    ("gpt-5", "max_completion_tokens", False),
    ("o1", "max_completion_tokens", False),
    ("o3", "max_completion_tokens", False),
    ("o4", "max_completion_tokens", False),
    ("", "max_tokens", True),
]


class Teacher:
    """A client of the endpoint. Many episodes use it concurrently, on the event loop of `waiting`.

    Args:
        base_url: The endpoint; None for OpenAI.
        asks: Attempts at one turn before it counts as failed.
        share: This client's share of the rate limits when several clients run without a Prefect server.
    """

    def __init__(self, spec: TeacherSpec, base_url: str | None, asks: int, budget: Budget, share: float = 1.0):
        from apprentice.tasks.players.endpoint_client import endpoint_client  # the SDK takes a second to import

        self._key = "none-needed" if spec.scripted_error_rate is not None else read_key(spec)
        self._client = endpoint_client(self._key, base_url, spec.timeout, spec.max_tokens)
        self._spec = spec
        self._asks = asks
        self._budget = budget
        self._answered = monotonic()
        self._answered_once = False
        _, limit, takes_temperature = next(family for family in FAMILIES if spec.model.startswith(family[0]))
        self._settings: dict[str, Any] = {"model": spec.model or "script", limit: spec.max_tokens}
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
        self._again = retrying(spec.patience)
        self._wrong_usage = ""
        self._warned = False

    def close(self) -> None:
        wait_for(self._client.close())

    def say(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]],
        spent: Spent,
        choice: str,
        seed: int | None = None,
        ask: int = 0,
    ) -> Message:
        """The endpoint's next message, unchecked; adds its costs to `spent`.

        Raises TeacherFailed, TeacherUnavailable, Stop.

        Args:
            choice: The request's tool_choice: "required" for a call, "auto" to allow plain text.
            seed: The question's seed, for a scripted teacher.
            ask: How often this turn was asked for before, for a scripted teacher.
        """
        message = wait_for(self._ask(messages, tools, spent, choice, {"seed": seed, "ask": ask}))
        if self._wrong_usage and not self._warned:
            self._warned = True
            announce.warn(
                f"The teacher's endpoint reports an impossible token usage ({self._wrong_usage}): missing or "
                "impossible values are charged as the maximum that they can have been."
            )
        return message

    def reply(
        self, messages: list[Message], tools: list[dict[str, Any]], spent: Spent, seed: int | None = None
    ) -> Message:
        """The teacher's next message, one valid call; adds its costs to `spent`.

        Raises TeacherFailed, TeacherUnavailable, BudgetReached, Stop.
        """
        for ask in range(self._asks):
            message = self.say(messages, tools, spent, "required", seed, ask)
            found = problems(message, tools)
            if len(message.get("tool_calls") or []) > 1:
                found.append("several calls")
            if not found:
                return message
            spent.asked_again += found
        raise TeacherFailed(f"no valid tool call in {self._asks} answers; the last one had: {spent.asked_again[-1]}")

    async def _ask(
        self, messages: list[Message], tools: list[dict[str, Any]], spent: Spent, choice: str, script: dict[str, Any]
    ) -> Message:
        import openai

        body: dict[str, Any] = {**self._settings, "messages": messages}
        if self._spec.scripted_error_rate is not None:
            body |= script  # a script may look up the answer by the seed; a model would use it for sampling
        if tools and self._spec.serves_student:  # the same prompt as in training
            body |= {"tools": tools, "tool_choice": choice, "chat_template_kwargs": TEMPLATE_ARGUMENTS}
        elif tools:
            wire = [_on_the_wire(tool) for tool in tools]
            body |= {"tools": wire, "tool_choice": choice, "parallel_tool_calls": False}
        try:
            answer = await self._again(self._send, body, spent)
        except Redirected as redirect:
            raise Stop(
                f"The teacher's endpoint {self._url} redirects to {redirect}; the request was not sent there.",
                "If you trust that address, set teacher.base_url to it and run again.",
            ) from None
        except (openai.APIError, Unanswered) as error:
            raise self._explained(error) from None  # the original error may quote the key
        return answer.message()

    async def _send(self, body: dict[str, Any], spent: Spent) -> Completion:
        """Sends one request within budget and rate limits.

        Uses `post` instead of `chat.completions.create`, whose typed parameters and answers take longer than the
        request itself; the answer is validated anyway.
        """
        import openai

        sent = len(json.dumps(body))  # a token has at least one byte
        if self._requests:
            await self._requests.take()
        if self._tokens:
            await self._tokens.take(sent / 4 + self._spec.max_tokens)
        async with self._budget.reserved(self._budget.cost(sent, self._spec.max_tokens)) as charge:
            spent.attempts += 1
            try:
                raw = await self._post(body)
            except (openai.APIStatusError, Redirected):
                charge(0.0)
                raise
            except Unanswered as error:
                if not error.was_sent:
                    charge(0.0)
                raise
            answer = Completion.read(raw)
            charge(self._book(answer, body, sent, spent))
            if not answer.choices and body.get("tool_choice") != "required":  # must not count as an evaluated answer
                raise Unanswered("an answer without a choice")
        self._answered, self._answered_once = monotonic(), True
        return answer

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._spec.timeout):  # the client's timeout is per chunk
                raw = await self._client.post("/chat/completions", body=body, cast_to=object)
        except TimeoutError:
            raise Unanswered(f"no whole answer in {self._spec.timeout:g} s") from None
        except (ValueError, RecursionError):
            raise Unanswered("an answer that is no JSON") from None
        if not isinstance(raw, dict):
            begins = one_line(str(raw))[:60] if isinstance(raw, str) else type(raw).__name__
            raise Unanswered(f"an answer that is no chat completion: {begins}")
        return raw

    def _book(self, answer: Completion, body: dict[str, Any], sent: int, spent: Spent) -> float:
        message = answer.message()
        calls = [call["function"] for call in message.get("tool_calls", [])]
        read = len(message["content"].encode()) + sum(len(each["name"] + each["arguments"]) for each in calls)
        written = sum(len(str(each.get("content") or "")) for each in body["messages"])
        usage = usage_of(answer.usage, sent, written, read, self._spec.max_tokens)
        if usage.wrong:
            self._wrong_usage = self._wrong_usage or usage.wrong
            count("usage_corrected")
        cost = self._budget.cost(usage.prompt, usage.completion, usage.cached)
        spent.prompt_tokens += usage.prompt
        spent.completion_tokens += usage.completion
        spent.cached_tokens += usage.cached
        spent.reasoning_tokens += usage.reasoning
        spent.cost_usd += cost
        count("prompt_tokens", usage.prompt)
        count("completion_tokens", usage.completion)
        count("cost_usd", cost)
        return cost

    def _explained(self, error: Any) -> Exception:
        """The exception for an error that persists: for this episode only, or a Stop for the whole collection."""
        import openai

        endpoint = f"The teacher's endpoint {self._url}"
        detail = self._detail(error)
        if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError | openai.NotFoundError):
            return Stop(
                f"{endpoint} refused the request with status {error.status_code}: {detail}",
                "Check OPENAI_API_KEY (or teacher.key_block), teacher.model and teacher.base_url, and run again.",
            )
        if no_quota(error):
            return Stop(f"{endpoint} reports that the account has no quota left.", "Add credit and run again.")
        if not may_pass(error):
            if self._answered_once:
                return TeacherFailed(f"{type(error).__name__}: {detail}")
            return Stop(f"{endpoint} refused the first request: {detail}", "Correct the teacher section of the recipe.")
        cause = f"status {error.status_code}" if isinstance(error, openai.APIStatusError) else detail
        if monotonic() - self._answered < self._spec.patience:
            return TeacherUnavailable(f"{cause} for {self._spec.patience:g} s")
        if isinstance(error, Unanswered) and error.was_sent and not self._answered_once:
            return Stop(
                f"{endpoint} has given no answer for {self._spec.patience:g} s ({cause}).",
                "Check that teacher.base_url is an OpenAI-compatible API, such as https://host/v1, then run again: "
                "finished episodes are kept.",
            )
        return Stop(
            f"{endpoint} has not answered for {self._spec.patience:g} s ({cause}).",
            "Run again when it is back: finished episodes are kept.",
        )

    def _detail(self, error: Any) -> str:
        body = getattr(error, "body", None)
        detail = body.get("message") if isinstance(body, dict) and isinstance(body.get("message"), str) else body
        whole = f"{error.message}: {detail}" if detail and str(detail) not in str(error.message) else str(error.message)
        return one_line(whole.replace(self._key, "***"))[:300]


def read_key(spec: TeacherSpec) -> str:
    """The endpoint's API key. Raises Stop when there is none."""
    if spec.key_block is not None:
        from prefect.blocks.system import Secret

        try:
            return str(Secret.load(spec.key_block, _sync=True).get())  # type: ignore[call-arg, union-attr]
        except ValueError:
            raise Stop(
                f"There is no Prefect Secret block named {spec.key_block}.",
                "Create it in Prefect's interface, or remove teacher.key_block and set OPENAI_API_KEY.",
            ) from None
    key = os.environ.get(spec.key_variable)
    if not key:
        raise Stop(
            f"The endpoint needs a key and {spec.key_variable} is not set.",
            "Set it in the environment (any text for an endpoint without keys) and run again.",
        )
    return key


def _on_the_wire(tool: dict[str, Any]) -> dict[str, Any]:
    """The tool without `return`, which the student's prompt has and OpenAI's function schema does not."""
    return {**tool, "function": {name: part for name, part in tool["function"].items() if name != "return"}}
