"""Episodes whose question the teacher's endpoint refused: final once it has answered a question that was asked later.

In: refused episodes and answered requests, by the numbers of the requests. Out: lines of the journal. Why: at an
account without credit every question is refused; a refusal is a question's own only if the endpoint still answers.
"""

import json
from typing import Any, NamedTuple

from apprentice.envs.base import without_return
from apprentice.tasks.episodes.episode import Message
from apprentice.tasks.episodes.jsonl import Journal
from apprentice.tasks.episodes.record import Record
from apprentice.tasks.players.teacher import Spent, Teacher
from apprentice.tasks.reporting.errors import EndpointStop, TeacherFailed, TeacherUnavailable


class Held(NamedTuple):
    record: Record
    is_understood: bool
    """Whether the refusal says that it is the question's, as a content filter's does."""


class RefusedEpisodes:
    """Refused episodes that are not in the journal yet; used by several threads."""

    def __init__(self, journal: Journal):
        self._journal = journal
        self._held: dict[int, Held] = {}

    def hold(self, number: int, record: Record, is_understood: bool) -> None:
        self._held[number] = Held(record, is_understood)

    def answered(self, number: int) -> None:
        """Journals the episodes that were refused before the request of this number."""
        for each in sorted(self._held):
            if each < number and (held := self._held.pop(each, None)):
                self._journal.append(held.record)

    def answered_before(self) -> tuple[list[Message], list[dict[str, Any]], int] | None:
        """Prompt, tools and seed of an episode that the teacher has played; None without one."""
        lines = map(json.loads, self._journal.in_order())
        known = next((line for line in lines if not line["failed_at"]), None)
        return known and (known["messages"][:2], without_return(json.loads(known["tools"])), known["seed"])

    def settle(self, teacher: Teacher) -> None:
        """Journals the others at the end of a window. Raises EndpointStop, and keeps none, if one was not understood
        and the endpoint now refuses a question that it has answered."""
        unclear = [held.record for held in self._held.values() if not held.is_understood]
        if unclear and (cause := self._refuses(teacher)):
            raise EndpointStop(
                f"The teacher's endpoint refused the last {len(unclear)} questions ({unclear[-1].cause}), and then one "
                f"that it had answered: {cause}.",
                "Run again when it answers: only these are asked.",
            )
        self.answered(max(self._held, default=0) + 1)

    def _refuses(self, teacher: Teacher) -> str:
        """Why the endpoint does not answer a question that it has answered before; empty if it does."""
        if (known := self.answered_before()) is None:
            return "none was answered"
        try:
            teacher.say(*known[:2], Spent(), "required", known[2])
        except (TeacherFailed, TeacherUnavailable) as error:
            return str(error)
        return ""
