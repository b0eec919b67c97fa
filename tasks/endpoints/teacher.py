"""The teacher's client: requests one tool call at a time from an OpenAI-compatible endpoint.

In: a conversation and its tools. Out: an assistant message with one valid call, and its costs.
The API key comes from an environment variable or a Prefect Secret block and is removed from error messages.
"""

import asyncio
import json
import math
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NoReturn

from apprentice.envs.wire.metrics import count
from apprentice.envs.wire.waiting import wait_for
from apprentice.tasks.endpoints.budget import Budget
from apprentice.tasks.endpoints.dialect import Completion, as_given, dialect_of, once_each, place_of_key, read_key
from apprentice.tasks.endpoints.refusals import LEAST_ATTEMPTS, Redirected, RefusedRequest, Unanswered, retrying
from apprentice.tasks.endpoints.teacher_thoughts import TOO_LONG, asked_to_think, is_too_long, with_its_thought
from apprentice.tasks.endpoints.usage import usage_of
from apprentice.tasks.engine.limits import Rate, limit_name
from apprentice.tasks.episodes.episode import last_text, problems
from apprentice.tasks.episodes.notations import REASONING
from apprentice.tasks.episodes.record import Message
from apprentice.tasks.episodes.rendering import switch_sent
from apprentice.tasks.episodes.texts import read_json
from apprentice.tasks.episodes.thinking import ended
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import EndpointStop, TeacherFailed, TeacherRefused, TeacherUnavailable
from apprentice.tasks.reporting.safe_text import one_line
from apprentice.tasks.settings.endpoint import TeacherSpec

SAME_REFUSALS = 10
"""Different questions in a row, as they were asked, after which the same refusal is no property of a question."""
PAUSE = 0.5
"""Seconds before a refusal that is not understood is tried again; twice as long the next time."""


@dataclass
class Spent:
    """The teacher's usage in one episode, including repeated requests, and what the endpoint itself said in it.

    Attributes:
        raw: The endpoint's own messages by their place in the conversation: they go back as they came.
        noted: What an answer held besides the one call that counts.
        number: The number of the last request among all of this client.
    """

    attempts: int = 0
    asked_again: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float = 0.0
    raw: dict[int, dict[str, Any]] = field(default_factory=dict)
    noted: list[str] = field(default_factory=list)
    number: int = 0


class Teacher:
    """A client of the endpoint. Many episodes use it concurrently, on the event loop of `waiting`.

    Args:
        base_url: The endpoint; None for OpenAI.
        asks: Attempts at one turn before it counts as failed.
        share: This client's share of the rate limits when several clients run without a Prefect server.
    """

    def __init__(self, spec: TeacherSpec, base_url: str | None, asks: int, budget: Budget, share: float = 1.0):
        from apprentice.tasks.endpoints.endpoint_client import endpoint_client  # the SDK takes a second to import

        self._key = read_key(spec) if spec.needs_key else "none-needed"
        headers = dict(spec.headers)
        if spec.key_header:
            headers[spec.key_header] = self._key
        self._client = endpoint_client(self._key, base_url, spec.timeout, spec.max_tokens, headers)
        self._spec = spec
        self._asks = asks
        self.budget = budget
        self._answered = monotonic()
        self._answered_once = False
        self._known: dict[str, Any] | None = None
        self._is_recalled = False
        self._looked = -math.inf
        self._looking = asyncio.Lock()
        self._waiting = self._most_waiting = 0
        self._settings: dict[str, Any] = {"model": spec.model or "script", "max_tokens": spec.max_tokens}
        if spec.temperature is not None:
            self._settings["temperature"] = spec.temperature
        if spec.stream:
            self._settings |= {"stream": True, "stream_options": {"include_usage": True}}
        self._url = str(self._client.base_url)
        self._dialect = dialect_of(self._url, spec.model)
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
        self._number = 0
        self._refusals: dict[int, tuple[str, str]] = {}
        self.total = Spent()

    def close(self) -> None:
        """Closes the budget as well."""
        try:
            wait_for(self._client.close())
        finally:
            self.budget.close()

    def say_what_it_cost(self) -> None:
        """Says the requests of a model, its tokens and their cost; nothing of a script."""
        if self._spec.scripted_error_rate is not None or not self.total.attempts:
            return
        total, cap = self.total, self._spec.budget_usd
        of = f" of {cap:g} USD" if cap else " USD"
        booked = f"{self.budget.spent:.4f}{of} booked, " if self._spec.prices else ""
        announce.say(
            f"{self._spec.called}: {booked}{total.attempts:,} requests, {total.prompt_tokens:,} prompt tokens "
            f"({total.cached_tokens:,} cached), {total.completion_tokens:,} completion tokens "
            f"({total.reasoning_tokens:,} reasoning)."
        )

    @property
    def changes(self) -> list[str]:
        """The differences between this endpoint's requests and the recipe."""
        return sorted(self._dialect.changes.values())

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
        script = {"seed": seed, "ask": ask} | ({"working": True} if self._spec.thoughts else {})
        answer = wait_for(self._counted(self._ask(messages, tools, spent, choice, script)))
        if self._wrong_usage and not self._warned:
            self._warned = True
            announce.warn(
                f"The usage that the teacher's endpoint reports does not add up ({self._wrong_usage}): the dearest "
                "reading is charged, and what is missing as the maximum that it can have been."
            )
        assert answer.message is not None
        message, place = answer.message, len(messages)
        for number, call in enumerate(message.get("tool_calls", [])):
            call["id"] = call["id"] or f"call{place + number:05d}"  # nine letters and digits, which all endpoints take
        spent.raw[place] = answer.raw
        if not self._spec.thoughts:
            return message
        message = with_its_thought(message, answer.raw)
        return ended(message) if self._spec.serves_student and answer.finish_reason == "length" else message

    def reply(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]],
        spent: Spent,
        seed: int | None = None,
        takes_text: bool = False,
    ) -> Message:
        """The teacher's next message, one valid call or, where the environment takes one, a last text; adds its costs
        to `spent`.

        Raises TeacherFailed, TeacherUnavailable, BudgetReached, Stop.
        """
        choice = "auto" if takes_text else "required"
        thoughts, shorter = None if self._spec.serves_student else self._spec.thoughts, False  # its template asks
        for ask in range(self._asks):
            sent = asked_to_think(messages, thoughts, shorter) if thoughts else messages
            message, noted = once_each(self.say(sent, tools, spent, choice, seed, ask))
            if thoughts and ask < self._asks - 1 and is_too_long(message, thoughts):
                spent.asked_again.append(TOO_LONG)
                shorter = True
                continue  # what stays too long for the student's own tokenizer is dropped by the filter
            if takes_text and (text := last_text(message, tools)):
                return message if self._spec.keep_text else message | {"content": text}
            found = problems(message, tools)
            if not found:
                spent.noted += [noted] if noted else []
                return message if self._spec.keep_text else message | {"content": ""}
            spent.asked_again += found
        raise TeacherFailed(f"no valid tool call in {self._asks} answers; the last one had: {spent.asked_again[-1]}")

    async def _ask(
        self, messages: list[Message], tools: list[dict[str, Any]], spent: Spent, choice: str, script: dict[str, Any]
    ) -> Completion:
        self._number += 1
        spent.number = number = self._number
        question, attempts = str(messages[1:2]), 0
        while True:
            body = self._dialect.applied(self._body(messages, tools, spent, choice, script))
            try:
                answer = await self._again(self._send, body, spent)
            except Redirected as redirect:
                raise EndpointStop(
                    f"The teacher's endpoint {self._url} redirects to {redirect}; the request was not sent there.",
                    "If you trust that address, set teacher.base_url to it and run again.",
                ) from None
            except (RefusedRequest, Unanswered) as error:
                failed = error  # explained below, outside of its context: it may quote the key
            else:
                self._known, self._is_recalled = body, False
                return answer
            if isinstance(failed, Unanswered) or failed.kind == "moment":
                await self._look_again(body, spent)
            if isinstance(failed, Unanswered):
                self._unanswered(failed)
            learned = failed.kind == "request" and (
                body != self._dialect.applied(self._body(messages, tools, spent, choice, script))
                or self._dialect.learns(failed, body, set(self._spec.request))
            )
            if not learned and failed.kind == "request" and attempts < LEAST_ATTEMPTS - 1:
                attempts += 1  # what is not understood may pass
                await asyncio.sleep(PAUSE * attempts)
            elif not learned:
                self._explain(failed, number, question)

    async def _counted(self, asking: Awaitable[Completion]) -> Completion:
        self._waiting += 1
        self._most_waiting = max(self._most_waiting, self._waiting)
        try:
            return await asking
        finally:
            self._waiting -= 1

    def recall(self, messages: list[Message], tools: list[dict[str, Any]], seed: int, choice: str = "required") -> None:
        """Takes over a request that an earlier run had an answer to, for a probe if nothing is answered now."""
        self._known = self._body(messages, tools, Spent(), choice, {"seed": seed, "ask": 0})
        self._is_recalled = True

    async def _look_again(self, body: dict[str, Any], spent: Spent) -> None:
        """Asks once more what was answered before, where nothing has been answered within the retry window: it tells an
        endpoint that is away from a question that it never answers. One session does so for all; none while as many
        wait as ever did, which no single question explains, unless an earlier run has answered the others."""
        async with self._looking:
            if monotonic() - max(self._answered, self._looked) < self._spec.patience:
                return
            all_wait = 1 < self._most_waiting <= self._waiting
            if self._known not in (None, body) and (self._is_recalled or not all_wait):
                with suppress(RefusedRequest, Unanswered, Redirected):
                    await retrying(PAUSE)(self._send, self._known, spent)  # a kept connection may be closed by now
            self._looked = monotonic()

    def _body(
        self, messages: list[Message], tools: list[dict[str, Any]], spent: Spent, choice: str, script: dict[str, Any]
    ) -> dict[str, Any]:
        body: dict[str, Any] = {**self._settings, "messages": as_given(messages, spent.raw)}
        if self._spec.scripted_error_rate is not None:
            body |= script  # a script may look up the answer by the seed; a model would use it for sampling
        if tools and self._spec.serves_student:  # the same prompt as in training
            body |= {"tools": tools, "tool_choice": choice} | switch_sent(thinks=bool(self._spec.thoughts))
        elif tools:
            body |= {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
        body |= self._spec.request
        return {name: value for name, value in body.items() if value is not None}

    async def _send(self, body: dict[str, Any], spent: Spent) -> Completion:
        """Sends one request within budget and rate limits.

        Uses `post` instead of `chat.completions.create`, whose typed parameters and answers take longer than the
        request itself; the answer is validated anyway.
        """
        sent = len(json.dumps(body))  # a token has at least one byte
        if self._requests:
            await self._requests.take()
        if self._tokens:
            await self._tokens.take(sent / 4 + self._spec.max_tokens)
        async with self.budget.reserved(self.budget.cost(sent, self._spec.max_tokens)) as charge:
            spent.attempts += 1
            self.total.attempts += 1
            try:
                raw = await self._post(body)
            except (RefusedRequest, Redirected):
                charge(0.0)
                raise
            except Unanswered as error:
                if not error.was_sent:
                    charge(0.0)
                raise
            answer = Completion.read(raw)
            if answer.error and answer.usage is None:  # refused within a 200
                charge(0.0)
            else:
                charge(self._book(answer, body, sent, spent))
            if answer.error:
                status = answer.error.get("code") if isinstance(answer.error, dict) else None
                status = int(str(status)) if str(status) in STATUSES else 500
                raise RefusedRequest(status, answer.error, {}, self._spec.patience)
            if answer.was_filtered:
                filtered = {"message": f"the answer was filtered ({answer.finish_reason})", "code": "content_filter"}
                raise RefusedRequest(400, filtered, {}, self._spec.patience)
            if answer.message is None or answer.broke_off:
                raise Unanswered(
                    f"an answer that broke off: {one_line(answer.finish_reason)[:40]}"
                    if answer.broke_off
                    else "an answer without a message"
                )
        self._answered, self._answered_once = monotonic(), True
        return answer

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        import openai

        from apprentice.tasks.endpoints.endpoint_client import whole_answer

        try:
            async with asyncio.timeout(self._spec.timeout):  # the client's timeout is per chunk
                raw = await whole_answer(self._client, body)
        except openai.APIStatusError as error:
            headers = {name.lower(): value for name, value in error.response.headers.items()}
            raw = read_json(text := error.response.text)
            refused = text if raw is None else raw
            raise RefusedRequest(error.status_code, refused, headers, self._spec.patience) from None
        except openai.APIError as error:  # an error within a stream
            raise RefusedRequest(500, error.body or error.message, {}, self._spec.patience) from None
        except TimeoutError:
            raise Unanswered(f"no whole answer in {self._spec.timeout:g} s", timed_out=True) from None
        except (ValueError, RecursionError):
            raise Unanswered("an answer that is no JSON") from None
        if not isinstance(raw, dict):
            begins = one_line(str(raw))[:60] if isinstance(raw, str) else type(raw).__name__
            raise Unanswered(f"an answer that is no chat completion: {begins}")
        return raw

    def _book(self, answer: Completion, body: dict[str, Any], sent: int, spent: Spent) -> float:
        message = answer.message or {"content": ""}
        calls = [call["function"] for call in message.get("tool_calls", [])]
        least = len(message["content"].encode()) + sum(len(each["name"] + each["arguments"]) for each in calls)
        thought = sum(len(str(answer.raw.get(name) or "")) for name in REASONING)
        written = sum(len(str(each.get("content") or "")) for each in body["messages"])
        usage = usage_of(answer.usage, sent, written, least + thought, self._spec.max_tokens)
        if usage.wrong:
            self._wrong_usage = self._wrong_usage or usage.wrong
            count("usage_corrected")
        cost = self.budget.cost(usage.prompt, usage.completion, usage.cached, usage.cache_write)
        for each in (spent, self.total):
            each.prompt_tokens += usage.prompt
            each.completion_tokens += usage.completion
            each.cached_tokens += usage.cached
            each.reasoning_tokens += usage.reasoning
            each.cost_usd += cost
        count("prompt_tokens", usage.prompt)
        count("completion_tokens", usage.completion)
        count("cost_usd", cost)
        return cost

    def _explain(self, refused: RefusedRequest, number: int, question: str) -> NoReturn:
        """Raises what a refusal means: for this question, for this moment, or a Stop for the whole collection."""
        endpoint, detail = f"The teacher's endpoint {self._url}", self._shown(refused.message)
        if refused.kind == "moment":
            self._unanswered(refused)
        if refused.kind == "account" and refused.ends_in is not None:
            raise EndpointStop(
                f"{endpoint} refuses requests for {in_words(refused.ends_in)} (status {refused.status}): {detail}",
                f"Run again in {in_words(refused.ends_in)}, or raise the account's limit.",
            )
        if refused.kind == "account" and refused.status in (401, 403, 407):
            raise EndpointStop(
                f"{endpoint} refused the request with status {refused.status}: {detail}",
                f"Check the key ({place_of_key(self._spec)}), teacher.model and teacher.base_url, and run again.",
            )
        if refused.kind == "account":
            raise EndpointStop(
                f"{endpoint} refuses the account (status {refused.status}): {detail}",
                "Add credit or raise the limit there, then run again: finished episodes are kept.",
            )
        if refused.status == 404 and not self._answered_once:
            raise EndpointStop(
                f"{endpoint} refused the request with status 404: {detail}",
                "Check teacher.model and teacher.base_url, and run again.",
            )
        self._refusals[number] = refused.signature, question
        alike, at = {question}, number - 1
        while at in self._refusals and self._refusals[at][0] == refused.signature:
            alike.add(self._refusals[at][1])
            at -= 1
        if len(alike) >= SAME_REFUSALS:
            raise EndpointStop(
                f"{endpoint} refused {len(alike)} questions in a row (status {refused.status}): {detail}",
                "Correct the teacher section: teacher.request adds or removes any part of the request."
                if refused.kind == "request"
                else "Choose another teacher.model, or serve this one with a longer context, if it is the length.",
            )
        alone = TeacherRefused(f"refused with status {refused.status}: {detail}")
        alone.is_understood = refused.kind == "question"
        raise alone

    def _unanswered(self, error: "RefusedRequest | Unanswered") -> NoReturn:
        """Raises the error for no answer within the retry window."""
        endpoint, patience = f"The teacher's endpoint {self._url}", f"{self._spec.patience:g} s"
        cause = self._shown(error.message)
        if isinstance(error, RefusedRequest):
            cause = f"status {error.status}: {cause}"
        if monotonic() - self._answered < self._spec.patience:
            raise TeacherUnavailable(f"{cause} for {patience}")
        how, remedy = "not answered", "Run again when it is back"
        if isinstance(error, Unanswered) and error.timed_out:
            remedy = "Raise teacher.timeout if its answers take longer, then run again"
        elif isinstance(error, Unanswered) and error.was_sent and not self._answered_once:
            how = "given no answer"
            remedy = "Check that teacher.base_url is an OpenAI-compatible API, such as https://host/v1, then run again"
        raise EndpointStop(f"{endpoint} has {how} for {patience} ({cause}).", f"{remedy}: finished episodes are kept.")

    def _shown(self, text: str) -> str:
        for secret in (self._key, *self._spec.headers.values()):
            text = text.replace(secret, "***") if len(secret) >= SECRET else text
        return one_line(text)[:300]


STATUSES = {str(status) for status in range(400, 600)}
SECRET = 8
"""Characters from which a key or a header's value may be a secret; `any` is none."""


def in_words(seconds: float) -> str:
    """A length of time, such as 7 h 12 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
