"""What an audit looks at: a server that plays an environment.

In: a server, an environment, seeds. Out: its questions, and episodes that it played, by its script or by any other way.
"""

import asyncio
import itertools
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import mean, median, stdev
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.player import Player
from apprentice.envs.wire.reply import BadReply
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Refused, SessionLost
from apprentice.envs.wire.waiting import spawn, wait_for
from apprentice.flows.audit.play.audited_episodes import AuditedEpisode, AuditReply, Move, play
from apprentice.flows.audit.play.faults import Fault, ScriptFault, fault_in_server, files_of, scripted_call
from apprentice.flows.audit.play.findings import CheckEvidence
from apprentice.flows.audit.play.guesses import any_call
from apprentice.flows.audit.play.recorded import Recorded
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.episodes.episode import Call, Episode

T = TypeVar("T")
Opened = Callable[[], AbstractContextManager[EnvironmentServer]]
"""Starts a server that stops with the block."""

FIRST = 8
"""Questions on which every strategy is tried; those that earn something are tried on all."""
SEVERAL = 4
"""Questions on which a wrong answer must earn: on one or two it is partial credit, or luck."""
SURE = 1.645
"""Standard errors by which a strategy must earn more: one in twenty would by chance."""
FEWEST = 3
"""Questions that a check plays, however long they take."""
TRIED = 50
"""Episodes in which a lost server's fault is looked for."""


class Needs(NamedTuple):
    """Concurrent sessions of a run."""

    train: int
    """With fewer sessions a run stops before it buys anything."""
    evaluate: int
    """With fewer sessions evaluation and collection use smaller batches."""
    collect: int

    @staticmethod
    def of(recipe: Recipe, train: int | None = None, collect: bool = True) -> "Needs":
        """Return the needs of a run.

        Args:
            train: Sessions that the trainings ahead play at once; default: all trainings of the recipe.
            collect: Whether its episodes are still to be collected.
        """
        rollouts = recipe.training_sessions() if train is None else train
        return Needs(rollouts, recipe.evaluate.batch_size, recipe.server.sessions if collect else 0)

    def __str__(self) -> str:
        uses = {"training needs": self.train, "an evaluation uses": self.evaluate, "collection uses": self.collect}
        return ", ".join(f"{what} {sessions}" for what, sessions in uses.items() if sessions)


class Extent(NamedTuple):
    """How much an audit plays."""

    seeds: int = 24
    """Questions of a check that plays them."""
    samples: int = 1000
    """Seeds whose question is requested, and episodes over which time and memory are measured."""
    seconds: float = 5.0
    """Of a check that plays many episodes: it plays as many as it can begin."""


def lower_bound(values: Sequence[float], sure: float = SURE) -> float:
    """Return the mean less `sure` standard errors; 0.0 of none."""
    error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return mean(values) - sure * error if values else 0.0


@dataclass
class Subject:
    """A server under audit. `sessions` are open while the checks run; the first two play one episode at a time.

    Attributes:
        elsewhere: Starts the same code as another process under another hash seed, if it can run here.
        original: Starts this project's code for an environment that somebody else serves, if it can run here.
    """

    server: EnvironmentServer
    spec: EnvironmentSpec
    needs: Needs = field(default_factory=lambda: Needs(0, 0, 16))
    seeds: Sequence[int] = range(5)
    extent: Extent = field(default_factory=Extent)
    recipe: Recipe | None = None
    elsewhere: Opened | None = None
    original: Opened | None = None
    sessions: list[Recorded] = field(default_factory=list)
    granted: int = 0
    is_full: bool = False
    """Whether the server refused the session after `granted`."""
    seen: AuditReply | None = None
    reset_seconds: list[float] = field(default_factory=list)
    """Seconds of the reset of each of `questions`, one after the other."""
    refused: dict[int, str] = field(default_factory=dict)
    """Seeds that the server refused, and why."""
    script_faults: list[CheckEvidence] = field(default_factory=list)
    """Questions on which the script failed."""
    tried: list[tuple[int, Sequence[Call]]] = field(default_factory=list)
    """Episodes that were to be played, for `fault_in_tried`."""
    near_misses: list[Any] | None = None
    """Played variants of `scripted`, once a check has played them (near_misses.py)."""

    @cached_property
    def players(self) -> list[Player]:
        return [self.spec.make(session) for session in self.sessions]

    @property
    def many(self) -> list[int]:
        """The seeds that a check plays, from the first of the run's on."""
        return list(self.questions)

    @cached_property
    def questions(self) -> dict[int, str]:
        """The questions of `many`, asked one after the other in one session.

        There are fewer if a reset takes long, or where a dataset ends.
        """
        took = median([each for session in self.sessions for each in session.resets] or [0.0])
        count = min(self.extent.seeds, max(FEWEST, int(self.extent.seconds / 4 / max(took, 1e-6))))
        found: dict[int, str] = {}
        for place in range(count):
            try:
                found[self.seeds[0] + place] = self.question(self.seeds[0] + place)
            except Refused as refused:
                self.refused[self.seeds[0] + place] = str(refused)
                if not found:
                    raise
                break
            self.reset_seconds.append(self.sessions[0].resets[-1])
        return found

    def fresh(self, place: int = 0) -> Player:
        """Return an environment on a new connection."""
        self.players[place].renew()
        return self.players[place]

    @contextmanager
    def made_at(self, opened: Opened) -> Iterator[Player]:
        """Yield the environment in another process, while the block runs."""
        with opened() as server, closing(Recorded(server)) as session:
            yield self.spec.make(session)

    def question(self, seed: int, place: int = 0) -> str:
        return self.players[place].ask(seed)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of the environment's author; empty for an adapter."""
        return files_of(self.spec.name)

    def script(self, episode: Episode, error_rate: float = 0.0) -> Call:
        """Return the scripted policy's call. Raises ValueError if there is no script, or it does not know this, and
        where it fails, which is kept in `script_faults`."""
        try:
            return scripted_call(self.spec, episode, error_rate)
        except ScriptFault as failed:
            made = [call["function"] for each in episode.messages for call in each.get("tool_calls") or []]
            calls = tuple((each["name"], json.loads(each["arguments"])) for each in made)
            self.script_faults.append(CheckEvidence(episode.seed, calls, str(failed.fault)))
            raise

    def fault_in(self, seed: int, calls: Iterable[Call] = ()) -> Fault | None:
        """Return where the environment's code fails in an episode; None if it is not here, or does not fail here."""
        return fault_in_server(self.spec, seed, calls)

    def fault_in_tried(self) -> Fault | None:
        """Return where the code fails in a question or in the calls that were tried last, the server being gone."""
        resets = ((seed, ()) for seed in range(self.seeds[0], self.seeds[0] + self.extent.seeds))
        tried = itertools.chain(resets, reversed(self.tried[-TRIED:]))
        return next((fault for seed, calls in tried if (fault := self.fault_in(seed, calls))), None)

    @cached_property
    def scripted(self) -> list[AuditedEpisode]:
        """Episodes that the scripted policy plays, each on a new connection; empty without a script."""
        found, until = [], monotonic() + self.extent.seconds / 4
        for seed in self.many:
            try:
                found.append(play(self.fresh(), seed, self.script))
            except ValueError:  # the policy has no script, or knows no answer
                return found
            if monotonic() > until and len(found) >= FEWEST:
                break
        return found

    @cached_property
    def guessed(self) -> list[AuditedEpisode]:
        """Episodes that are played with a guessed call, each on a new connection."""
        return [play(self.fresh(), seed, any_call) for seed in self.many[:FEWEST]]

    @property
    def known(self) -> list[AuditedEpisode]:
        """Episodes whose calls can be made again: the script's, or guessed ones."""
        return self.scripted or self.guessed

    def within(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items, and no more once half of the extent's seconds have passed."""
        until = monotonic() + self.extent.seconds / 2
        for each in items:
            yield each
            if monotonic() > until:
                return

    def play_all(self, wanted: Sequence[tuple[int, Move]]) -> list[AuditedEpisode]:
        """Play episodes in all sessions at once: in this order, as many as can begin within the extent's seconds.

        Raises Refused, BadReply, SessionLost.
        """
        return self.at_once(lambda environment, given: play(environment, *given), wanted)

    def at_once(self, do: Callable[[Player, Any], Any], wanted: Sequence[Any]) -> list[Any]:
        """Call `do` for each, in all sessions at once, and return the results in order. As `play_all`."""
        waiting = deque(enumerate(wanted))
        results: dict[int, Any] = {}
        failures: list[Exception] = []
        until = monotonic() + self.extent.seconds

        async def use(player: Player) -> None:
            while waiting and not failures and monotonic() < until:
                place, given = waiting.popleft()
                try:
                    results[place] = await spawn(do, player, given)
                except SessionLost as lost:
                    seed = given if isinstance(given, int) else given[0]
                    failures.append(SessionLost(f"{lost}; at the time of seed {seed}"))
                except (Refused, BadReply) as error:
                    if isinstance(error, Refused):
                        self.refused[given if isinstance(given, int) else given[0]] = str(error)
                    failures.append(error)

        async def use_all() -> None:
            await asyncio.gather(*map(use, self.players))

        wait_for(use_all())
        if failures:
            raise failures[0]
        return [results[place] for place in sorted(results)]
