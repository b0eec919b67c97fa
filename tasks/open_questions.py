"""Asks the teacher questions that no environment plays: one answer each, and a second one where a row has another.

In: questions with the turns that rows answer, the teacher, a journal. Out: each answer in the journal, as a record of
one turn. Interrupted, it asks nothing twice.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from logging import WARNING
from queue import SimpleQueue
from typing import Any, TypeVar

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.player import Player
from apprentice.envs.wire.metrics import count
from apprentice.envs.wire.waiting import spawn, start
from apprentice.tasks.endpoints.budget import Budget
from apprentice.tasks.endpoints.teacher import Teacher
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.episode import last_text, problems, prompt
from apprentice.tasks.episodes.journal import Journal
from apprentice.tasks.episodes.record import Message, Record
from apprentice.tasks.episodes.texts import same_text
from apprentice.tasks.players.refused_episodes import RefusedEpisodes, TeacherAttempt
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import BudgetReached, EndpointStop, Stop
from apprentice.tasks.reporting.progress import note
from apprentice.tasks.settings.endpoint import TeacherSpec
from apprentice.tasks.settings.spec import CollectSpec

Q = TypeVar("Q")
R = TypeVar("R")

AT_ONCE = 16
"""Questions that the teacher is asked at once."""
PASSES = 2
"""Attempts at a question that the endpoint does not answer; the second one comes after all others."""


@dataclass
class OpenQuestion:
    """A question that no known seed asks.

    Attributes:
        place: Its place among them; its answers have the numbers -1 - 2 × place and -2 - 2 × place.
        turns: What its rows answer, each once.
    """

    place: int
    text: str
    part: Player
    turns: list[Message] = field(default_factory=list)

    @property
    def numbers(self) -> tuple[int, int]:
        return -1 - 2 * self.place, -2 - 2 * self.place


def does_the_same(turn: Message, other: Message, tools: list[dict[str, Any]]) -> bool:
    """Whether two turns make the same call, with arguments that are equal as JSON values, or say the same last text."""
    said = _said(turn, tools)
    return said is not None and said == _said(other, tools)


def _said(turn: Message, tools: list[dict[str, Any]]) -> str | None:
    """What a turn does, in one form; None where it is malformed."""
    if text := last_text(turn, tools):
        return same_text(text)
    if problems(turn, tools):
        return None
    functions = [call["function"] for call in turn["tool_calls"]]
    return json.dumps([[each["name"], _value(each["arguments"])] for each in functions], sort_keys=True)


def _value(arguments: Any) -> Any:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return json.loads(text, parse_float=lambda each: int(float(each)) if float(each).is_integer() else float(each))


@dataclass
class Asker:
    """Asks the questions that a journal has no answer to."""

    context: StageContext
    spec: CollectSpec
    teacher: TeacherSpec
    environment: EnvironmentSpec
    journal: Journal

    def __post_init__(self) -> None:
        self._refused = RefusedEpisodes(self.journal)
        self._unanswered: dict[int, Record] = {}
        self._too_many_failed = False
        self._answers = {each.seed: each for each in map(Record.model_validate_json, self.journal.in_order())}

    def ask(self, questions: list[OpenQuestion]) -> None:
        """Journals one answer to each question, and a second one where a row has another. Raises Stop."""
        if not (ahead := self._open(questions)):
            return
        cap = self.teacher.budget_usd
        budget = Budget(self.teacher.prices, cap, self.context.scratch / "spent_usd", self.journal.check)
        client = Teacher(self.teacher, self.context.run.servers.teacher(), self.spec.asks, budget)
        every, file = len(questions), self.context.scratch / "unanswered.json"
        try:
            with self._refused.asking(client, lambda: self._so_far(budget), self._forget_if_too_many_failed):
                with announce.progress("questions", every, every - len(ahead)) as advance:
                    for _ in range(PASSES):
                        self._unanswered.clear()
                        for is_settled in _as_answered(lambda each: self._answer(client, each, every), ahead):
                            advance(is_settled)
                        ahead = self._open(questions)
                self._refused.check_unanswered(self._unanswered, file, self.spec.max_refused * every)
        except BudgetReached:
            raise Stop(
                f"The budget of {cap} USD is used up. {self._so_far(budget)}",
                "Raise teacher.budget_usd and run again: only what is missing is asked.",
            ) from None

    def _forget_if_too_many_failed(self) -> None:
        """A server without a parser for tool calls gives none, however good the teacher."""
        if self._too_many_failed:
            self.journal.forget({each.seed for each in self._answers.values() if each.failed_at})

    def _open(self, questions: list[OpenQuestion]) -> list[OpenQuestion]:
        return [each for each in questions if self._next_number(each) is not None]

    def _so_far(self, budget: Budget) -> str:
        spent = f" and cost {budget.spent:.4f} USD" if self.teacher.prices else ""
        return f"{len(self.journal)} answers of the teacher are kept{spent}."

    def _check(self, of: int, last: Record) -> None:
        """Raises EndpointStop where the teacher fails on too many questions; `last` is the last such answer."""
        failed = sum(bool(each.failed_at) for each in self._answers.values())
        if failed > max(self.spec.max_refused * of, 1):
            self._too_many_failed = True
            raise EndpointStop(
                f"On {failed} of {of} questions the teacher gave no valid call or its endpoint refused the question, "
                f"the last one: {last.cause}.",
                "Choose a teacher that calls tools, or raise collect.max_refused, and run again.",
            )

    def _next_number(self, question: OpenQuestion) -> int | None:
        """The number of the answer that is missing; None where the question is settled."""
        first, second = (self._answers.get(number) for number in question.numbers)
        if first is None:
            return question.numbers[0]
        if first.failed_at or second is not None:
            return None
        tools = question.part.schemas
        differs = any(not does_the_same(turn, first.messages[2], tools) for turn in question.turns)
        return question.numbers[1] if differs else None

    def _answer(self, client: Teacher, question: OpenQuestion, of: int) -> bool:
        """Asks until the question is settled; returns whether it is. Raises Stop, BudgetReached."""
        while (number := self._next_number(question)) is not None:
            answer, attempt = self._asked_once(client, question, number)
            if answer.failed_at:
                note("no answer", WARNING, episode=number, cause=answer.cause)
            if answer.failed_at == "teacher's endpoint" and attempt.refusal is None:
                self._unanswered[number] = answer
                return False
            self._answers[number] = answer
            count("episodes")
            if attempt.refusal is not None:
                self._refused.hold(attempt.spent.number, answer, attempt.refusal)
            else:
                self.journal.append(answer)
            if answer.failed_at:
                self._check(of, answer)
        return True

    def _asked_once(self, client: Teacher, question: OpenQuestion, number: int) -> tuple[Record, TeacherAttempt]:
        """The teacher's answer as a record, and how it was asked."""
        part, attempt = question.part, TeacherAttempt()
        messages = prompt(part, question.text)
        with attempt.noting_failures():
            turn = client.reply(messages, part.schemas, attempt.spent, None, part.takes_text)
            messages = [*messages, turn, *map(_unknown_reply, turn.get("tool_calls") or [])]
            self._refused.answered(attempt.spent.number)
        return attempt.record(client, self.environment, part, seed=number, messages=messages, reward=None), attempt


def _unknown_reply(call: dict[str, Any]) -> Message:
    """The reply to a call that no environment has heard, as in every row that is not verified."""
    return {"role": "tool", "name": call["function"]["name"], "content": "", "tool_call_id": call["id"]}


def _as_answered(ask: Callable[[Q], R], questions: Iterable[Q]) -> Iterator[R]:
    """Yield what `ask` returns, as it returns it, for AT_ONCE questions at once. Raises what it raises, once those that
    were under way have ended, which keeps what they cost."""
    ahead = iter(questions)
    results: SimpleQueue[list[R]] = SimpleQueue()
    failed: list[BaseException] = []

    async def work() -> None:
        for each in ahead:
            if failed:
                return
            try:
                results.put([await spawn(ask, each)])
            except Exception as error:
                failed.append(error)

    async def all_of_them() -> None:
        try:
            await asyncio.gather(*(work() for _ in range(AT_ONCE)), return_exceptions=True)
        finally:
            results.put([])

    running = start(all_of_them())
    try:
        while found := results.get():
            yield found[0]
    except BaseException as stopped:  # Ctrl-C: the ledger is closed after the last request only
        failed.append(stopped)
        running.cancel()
        while results.get():
            pass
        raise
    if failed:
        raise failed[0]
