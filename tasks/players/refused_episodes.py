"""Episodes that a teacher failed to play. One whose question its endpoint refused is final once it has answered a
question that was asked later.

In: a journal, episodes without an answer. Out: the journal with those that are the question's own fault; EndpointStop
where the endpoint is at fault.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.player import Player
from apprentice.envs.tools import tools_text, without_return
from apprentice.envs.wire.session import SessionLost
from apprentice.tasks.artifacts.types import COUNTED
from apprentice.tasks.endpoints.teacher import Spent, Teacher
from apprentice.tasks.episodes.journal import Journal
from apprentice.tasks.episodes.record import Message, Record
from apprentice.tasks.reporting.errors import EndpointStop, TeacherFailed, TeacherRefused, TeacherUnavailable


class TeacherAttempt:
    """A teacher's attempt at an episode: what it spent, and where it failed.

    Attributes:
        failed_at: The boundary at which it failed, as in `Record`; empty if it did not.
        refusal: Of a question that the endpoint refused, whether the refusal says that it is the question's; else None.
    """

    def __init__(self) -> None:
        self.spent = Spent()
        self.failed_at = self.cause = ""
        self.refusal: bool | None = None

    @contextmanager
    def noting_failures(self) -> Iterator[None]:
        """Notes a failure of the block in place of raising it."""
        try:
            yield
        except (TeacherFailed, TeacherUnavailable, SessionLost) as failed:
            self.failed_at, self.cause = "teacher's endpoint", str(failed)
            if isinstance(failed, TeacherRefused):
                self.refusal = failed.is_understood
            elif not isinstance(failed, TeacherUnavailable):
                self.failed_at = "teacher" if isinstance(failed, TeacherFailed) else "environment"

    def record(self, teacher: Teacher, environment: EnvironmentSpec, player: Player, **of_episode: Any) -> Record:
        """The episode with what the attempt spent and where it failed."""
        return Record(
            environment=environment.played_by(player),
            tools=tools_text(player.tools),
            takes_text=player.takes_text,
            failed_at=self.failed_at,
            cause=self.cause,
            asked_again="; ".join(self.spent.asked_again),
            noted="; ".join([*self.spent.noted, *teacher.changes]),
            **{name: getattr(self.spent, name) for name in ("attempts", *COUNTED)},
            **of_episode,
        )


class RefusedEpisodes:
    """Refused episodes that are not in the journal yet; used by several threads."""

    def __init__(self, journal: Journal):
        self._journal = journal
        self._held: dict[int, tuple[Record, bool]] = {}

    @contextmanager
    def asking(self, teacher: Teacher, so_far: Callable[[], str], forget: Callable[[], None]) -> Iterator[None]:
        """Settles what a teacher refused when the block ends, says what it cost and closes it.

        Args:
            so_far: What is kept, for a stop of the endpoint.
            forget: Called at such a stop.
        """
        try:
            if known := self.answered_before():
                teacher.recall(*known)
            yield
            self.settle(teacher)
        except EndpointStop as stop:
            forget()
            raise EndpointStop(f"{stop.cause.removesuffix('.')}. {so_far()}", stop.remedy) from stop
        finally:
            teacher.say_what_it_cost()
            teacher.close()

    def hold(self, number: int, record: Record, is_understood: bool) -> None:
        """Keeps a refused episode; `is_understood`: as a content filter's refusal is."""
        self._held[number] = record, is_understood

    def answered(self, number: int) -> None:
        """Journals the episodes that were refused before the request of this number."""
        for each in sorted(self._held):
            if each < number and (held := self._held.pop(each, None)):
                self._journal.append(held[0])

    def answered_before(self) -> tuple[list[Message], list[dict[str, Any]], int] | None:
        """Prompt, tools and seed of an episode that the teacher has played; None without one."""
        lines = map(json.loads, self._journal.in_order())
        known = next((line for line in lines if not line["failed_at"]), None)
        return known and (known["messages"][:2], without_return(json.loads(known["tools"])), known["seed"])

    def settle(self, teacher: Teacher) -> None:
        """Journals the others at the end of a window. Raises EndpointStop, and keeps none, if one was not understood
        and the endpoint now refuses a question that it has answered."""
        unclear = [record for record, is_understood in self._held.values() if not is_understood]
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
