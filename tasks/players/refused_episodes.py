"""Episodes whose question the teacher's endpoint refused: final once it has answered a question that was asked later.

In: a journal, episodes without an answer. Out: the journal with those that are the question's own fault; EndpointStop
where the endpoint is at fault.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from apprentice.envs.tools import without_return
from apprentice.tasks.episodes.record import Journal, Message, Record
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

    def check_unanswered(self, missing: dict[int, Record], file: Path, most: float) -> None:
        """Holds episodes that the endpoint did not answer in two runs as refused questions. Raises EndpointStop as
        `check_unanswered_twice` does."""
        check_unanswered_twice(
            {seed: record.cause for seed, record in missing.items()}, file, most, "collect.max_refused"
        )
        for place, record in enumerate(missing.values(), 1):
            self.hold(-place, record, is_understood=False)


def check_unanswered_twice(missing: dict[int, str], file: Path, most: float, limit: str) -> None:
    """Raises EndpointStop for episodes that the endpoint did not answer, unless it answered the others and gave these
    no answer in the run before either.

    Args:
        missing: Why not, by their numbers, in the order in which they were given up.
        file: The numbers of the run before.
        most: How many may be left out, if it is more than one.
        limit: The recipe's field that says so.
    """
    before = set(json.loads(file.read_text())) if file.exists() else set()
    file.write_text(json.dumps(sorted(missing)))
    if not missing:
        return
    *_, last = missing.values()
    cause = f"The endpoint gave no answer in {len(missing)} episodes, the last one: {last}."
    if missing.keys() - before:
        raise EndpointStop(
            cause,
            "Run again: only these are asked. A question that is not answered then either is left out, as one that the "
            f"endpoint refuses (at most {limit} of them).",
        )
    if len(missing) > max(most, 1):
        raise EndpointStop(
            f"{cause} It gave them none in the run before either.", f"Raise {limit} to leave them out, and run again."
        )
