"""Collects one teacher episode for each seed of the collect window.

In: the task, the teacher, the window. Out: `Rollouts`: rollouts.jsonl, one episode per line, ordered by seed.
Every finished episode is journaled immediately, so an interrupted collection resumes where it stopped. The window may
be split into shards, each with its own task and artifact; together they give the same dataset as a single shard.
"""

import json
import math
import shutil
from collections import Counter
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path
from typing import Any, NamedTuple

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.player import Player
from apprentice.envs.pool import EnvironmentPool, open_pools
from apprentice.envs.reward import is_right
from apprentice.envs.tools import described_text
from apprentice.envs.wire.metrics import count
from apprentice.envs.wire.session import Refused, SessionLost
from apprentice.tasks.analysis.broken_episodes import check_broken
from apprentice.tasks.analysis.outcomes import why_dropped
from apprentice.tasks.analysis.thought_faults import check_of
from apprentice.tasks.artifacts.alike import made_alike
from apprentice.tasks.artifacts.types import COUNTED, Rollouts, RolloutShard
from apprentice.tasks.endpoints.budget import Budget
from apprentice.tasks.endpoints.teacher import Teacher
from apprentice.tasks.endpoints.teacher_thoughts import letters_of_thought
from apprentice.tasks.engine.limits import leases
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import Drawn, StageContext, stage
from apprentice.tasks.episodes.episode import Episode, prompt
from apprentice.tasks.episodes.journal import Journal, check_initial_settings, journal
from apprentice.tasks.episodes.record import Record
from apprentice.tasks.players.refused_episodes import RefusedEpisodes, TeacherAttempt
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import BudgetReached, EndpointStop, Stop
from apprentice.tasks.reporting.permanent_server import shared
from apprentice.tasks.reporting.progress import note
from apprentice.tasks.settings.endpoint import TeacherSpec
from apprentice.tasks.settings.spec import CollectSpec, Seeds, Window

PASSES = 2
"""Attempts at an episode that infrastructure failures interrupt; retries come after all other episodes."""


@stage(
    produces=Rollouts,
    version=3,
    title="Teacher's rollouts ({teacher.called})",
    drawn=Drawn("Teacher", "episodes", "episodes"),
)
def collect(
    context: StageContext, spec: CollectSpec, teacher: TeacherSpec, environment: EnvironmentSpec, window: Window | Seeds
) -> dict[str, Any]:
    """Plays every seed of the window once. Raises Stop; finished episodes are kept."""
    # another split would buy all again
    check_initial_settings(context.scratch / "settings.json", {"shards": spec.shards})
    run = context.run
    there = StandingServers({environment.name: run.servers.environment(environment.name)}, run.servers.teacher())
    standing = RunContext(run.store, there, run.location, recipe=run.recipe)
    parts = [(spec, teacher, environment, part) for part in window.split(spec.shards)]
    try:
        shards = collect_shard.map(standing, parts) if len(parts) > 1 else [collect_shard(standing, *parts[0])]
    except KeyboardInterrupt:  # raised in this thread; the shards run in others
        for pool in list(open_pools):
            pool.interrupt()
        raise
    with (context.out / "rollouts.jsonl").open("wb") as file:
        for shard in shards:
            with (context.fetch(shard) / "rollouts.jsonl").open("rb") as part:
                shutil.copyfileobj(part, file)
    return {name: sum(getattr(shard, name) for shard in shards) for name in ("episodes", "failed", *COUNTED)}


@stage(produces=RolloutShard, version=2, title="Rollouts of seeds {window}", drawn=Drawn("Teacher"))
def collect_shard(
    context: StageContext, spec: CollectSpec, teacher: TeacherSpec, environment: EnvironmentSpec, window: Window | Seeds
) -> dict[str, Any]:
    """Plays the seeds of one part of the window. Raises Stop; finished episodes are kept."""
    instance = environment.make()
    initial_settings = {
        "teacher": teacher.in_key(),
        spec.section: spec.in_key(),
        "environment": environment.in_key(),
        "prompt": [{"messages": prompt(part, ""), "tools": described_text(part.tools)} for part in instance.parts()],
    }
    check_address(context.scratch / "address", teacher)
    with journal(context.scratch, initial_settings, announce.warn) as kept:
        _take_known(context, kept, (spec, teacher, environment), window)
        for lost in Collector(context, spec, teacher, environment, kept).play(window):
            kept.append(lost)
        if len(kept) != window.size:
            raise RuntimeError(f"{len(kept)} episodes were journaled for {window.size} seeds")
        return _publish(kept, context.out / "rollouts.jsonl")


def _take_known(
    context: StageContext,
    kept: Journal,
    given: tuple[CollectSpec, TeacherSpec, EnvironmentSpec],
    window: Window | Seeds,
) -> None:
    """Journals the episodes that earlier windows had of these seeds: a window that grows asks for the new ones only."""
    spec, teacher, environment = given
    missing, before = set(window.seeds()) - kept.done(), len(kept)
    known: dict[str, Any] = {"stage": collect_shard.name, "version": collect_shard.version, "spec": spec.in_key()}
    known |= {"teacher": teacher.in_made_by(), "environment": environment.in_key()}
    for _, folder in made_alike(context.run.store, RolloutShard, known) if missing else ():
        with (folder / "rollouts.jsonl").open() as lines:
            for record in map(Record.model_validate_json, lines):
                if record.seed in missing and record.failed_at in ("", "teacher"):
                    missing.remove(record.seed)
                    kept.append(record)
    if found := len(kept) - before:
        announce.say(f"{found:,} of these {window.size:,} episodes exist, and are not asked for again.")


def check_address(path: Path, teacher: TeacherSpec) -> None:
    """Raises Stop if the window was begun at another endpoint: under one name it may serve another model."""
    now = teacher.base_url or ""
    if not path.exists() or teacher.provider or teacher.moved:
        path.write_text(now)
    elif (initial := path.read_text()) != now:
        raise Stop(
            f"These episodes were begun at {initial or 'OpenAI'}, and {teacher.model} is at {now or 'OpenAI'} now.",
            "If it is the same model, run again with --set teacher.moved=true; if not, set teacher.provider to a name "
            "for the new one, which then plays every episode.",
        )


@dataclass
class Collector:
    """Plays the missing episodes of a journal."""

    context: StageContext
    spec: CollectSpec
    teacher: TeacherSpec
    environment: EnvironmentSpec
    journal: Journal

    def __post_init__(self) -> None:
        thoughts, is_script = self.teacher.thoughts, self.teacher.scripted_error_rate is not None
        self._tries = thoughts.shortest_of if thoughts and not is_script else 1  # a script says the same each time
        self._refused = RefusedEpisodes(self.journal)
        self._too_many_failed = False

    def play(self, window: Window | Seeds) -> list[Record]:
        """Plays the missing seeds. Returns the episodes that failed on every attempt: lost to infrastructure, or the
        environment failed on the question itself. Raises Stop."""
        lost: list[Record] = []
        broken: list[Record] = []
        done = self.journal.done()
        if len(done) == window.size:
            return []
        share = 1 / self.spec.shards
        cap = self.teacher.budget_usd
        ledger = self.context.scratch / "spent_usd"
        budget = Budget(self.teacher.prices, cap and cap * share, ledger, self.journal.check)
        url = self.context.run.servers.teacher()
        teacher = Teacher(self.teacher, url, self.spec.asks, budget, 1.0 if shared() else share)
        seeds = (seed for seed in window.seeds() if seed not in done)
        try:
            with self._refused.asking(teacher, lambda: self._so_far(budget, window), self._forget_if_none_was_right):
                with announce.progress("episodes", window.size, len(done)) as advance, self._pool() as pool:
                    for _ in range(PASSES):
                        lost = self._pass(pool, teacher, seeds, window.size, advance, broken)
                        seeds = iter([record.seed for record in lost])
                lost = self._check_unanswered(lost, window.size)
        except BudgetReached:
            raise Stop(
                f"The budget of {cap} USD is used up{f' (1/{self.spec.shards} per shard)' if share < 1 else ''}: "
                f"{budget.spent:.4f} USD went into {len(self.journal)} of {window.size} episodes, which are kept.",
                "Raise teacher.budget_usd and run again: collection resumes from there.",
            ) from None
        except Refused as refused:
            raise Stop(
                f"The environment refused the task: {refused}. {len(self.journal)} of {window.size} episodes are kept.",
                "Correct environment.settings or server.url, then run again.",
            ) from refused
        except SessionLost as gone:
            raise Stop(
                f"The environment is out of reach: {gone}. {len(self.journal)} of {window.size} episodes are kept.",
                "Check that it runs, then run again: collection resumes from there.",
            ) from gone
        return [*lost, *broken]

    def _so_far(self, budget: Budget, window: Window | Seeds) -> str:
        spent = f" and cost {budget.spent:.4f} USD" if self.teacher.prices else ""
        return f"{len(self.journal)} of {window.size} episodes are finished and kept{spent}."

    def _check_unanswered(self, lost: list[Record], of: int) -> list[Record]:
        """Returns the lost episodes but those that the endpoint did not answer. Raises Stop for these."""
        missing = {record.seed: record for record in lost if record.failed_at == "teacher's endpoint"}
        self._refused.check_unanswered(missing, self.context.scratch / "unanswered.json", self.spec.max_refused * of)
        return [record for record in lost if record.seed not in missing]

    def _pool(self) -> EnvironmentPool:
        server = self.context.run.servers.environment(self.environment.name)
        sessions = max(1, server.sessions // self.spec.shards)
        return EnvironmentPool(self.environment, server, sessions, announce.warn, leases)

    def _pass(
        self, pool: EnvironmentPool, teacher: Teacher, seeds: Any, of: int, advance: Any, broken: list[Record]
    ) -> list[Record]:
        """Returns the episodes lost to infrastructure; adds those on which the environment failed to `broken`."""
        lost: list[Record] = []
        refused = Counter[bool]()

        def play(instance: Player, seed: int) -> CollectedEpisode:
            played = play_shortest(instance, seed, teacher, self.environment, self.spec.raw, self._tries)
            record = played.record
            if record.failed_at or record.asked_again:
                why = {"failed_at": record.failed_at, "cause": record.cause, "asked_again": record.asked_again}
                note("episode failed" if record.failed_at else "asked again", WARNING, episode=seed, **why)
            if played.refusal is not None:
                self._refused.hold(played.number, record, played.refusal)
            elif record.failed_at == "teacher" and self._too_many_failed:
                pass  # the collection has stopped, and may have forgotten the others
            elif record.failed_at in ("", "teacher"):
                self._refused.answered(played.number)
                self.journal.append(record)
            return played

        for _, (record, refusal, _) in pool.map(play, seeds):
            refused[refusal is not None or record.failed_at == "teacher"] += 1
            if refused[True] > max(self.spec.max_refused * of, 1):
                self._too_many_failed = True
                raise EndpointStop(
                    f"In {refused[True]} of {refused.total()} episodes the teacher gave no valid call or its endpoint "
                    f"refused the question, the last one: {record.cause}.",
                    "Choose a teacher that calls tools, or raise collect.max_refused, and run again.",
                )
            if record.failed_at == "question":
                broken.append(record)
                check_broken(len(broken), of, self.spec.max_failed, record.cause)
                advance(1)
            elif record.failed_at not in ("", "teacher") and refusal is None:
                lost.append(record)
                if len(lost) > max(self.spec.max_failed * of, 1):
                    raise Stop(
                        f"{len(lost)} episodes were lost to infrastructure, the last one to: {record.cause}",
                        "Check that the servers run, then run again: finished episodes are kept.",
                    )
            else:
                advance(1)
                count("episodes")
        return lost

    def _forget_if_none_was_right(self) -> None:
        """Ask all questions again where every episode failed: a server without a parser for tool calls gives none,
        however good the teacher is."""
        if self._too_many_failed:
            lines = [json.loads(line) for line in self.journal.in_order()]  # those under way have ended with the pool
            if all(line["failed_at"] == "teacher" for line in lines):
                self.journal.forget({line["seed"] for line in lines})


class CollectedEpisode(NamedTuple):
    """An episode, the refusal of its question as in `TeacherAttempt`, and the number of the last request."""

    record: Record
    refusal: bool | None
    number: int


def play_shortest(
    instance: Player, seed: int, teacher: Teacher, environment: EnvironmentSpec, keep_raw: bool, tries: int
) -> CollectedEpisode:
    """Plays a question so often, and takes the right episode with the shortest thoughts of those that the filter keeps,
    else of the right ones, else the first one. Its costs are those of all."""
    played = [play_one(instance, seed, teacher, environment, keep_raw)]
    while len(played) < tries and not played[-1].record.failed_at:
        played.append(play_one(instance, seed, teacher, environment, keep_raw))
    if len(played) == 1:
        return played[0]
    right = [each for each in played if is_right(each.record.reward)]
    right = [each for each in right if why_dropped(each.record.model_dump(), set(), check_of()) is None] or right
    letters = [letters_of_thought(each.record.messages) or math.inf for each in right]  # one without a thought is last
    chosen = right[letters.index(min(letters))] if right else played[0]
    spent = {name: sum(getattr(each.record, name) for each in played) for name in ("attempts", *COUNTED)}
    return chosen._replace(record=chosen.record.model_copy(update=spent), number=played[-1].number)


def play_one(
    instance: Player, seed: int, teacher: Teacher, environment: EnvironmentSpec, keep_raw: bool = False
) -> CollectedEpisode:
    """Plays one teacher episode. A failure is recorded, with the boundary at which it happened, and not raised."""
    instance, attempt = instance.part(seed), TeacherAttempt()
    messages: list[dict[str, Any]] = []
    with attempt.noting_failures():
        episode = Episode(instance, seed)
        messages = episode.messages
        while not episode.done:
            instance.wait_for_server()  # do not buy a turn that cannot be played
            episode.step(teacher.reply(messages, episode.tools, attempt.spent, seed, instance.takes_text))
        if episode.broken:
            attempt.failed_at, attempt.cause = "question", episode.broken
    record = attempt.record(
        teacher,
        environment,
        instance,
        seed=seed,
        messages=messages,
        reward=None if attempt.failed_at else instance.reward,
        correct=instance.correct or "",
        raw=json.dumps(attempt.spent.raw, ensure_ascii=False) if keep_raw else "",
    )
    return CollectedEpisode(record, attempt.refusal, attempt.spent.number)


def _publish(kept: Journal, to: Path) -> dict[str, Any]:
    """Writes the episodes in seed order, one line in memory at a time; returns the totals."""
    counts: Counter[str] = Counter()
    with to.open("wb") as file:
        for line in kept.in_order():
            file.write(line)
            record = json.loads(line)
            counts.update({"episodes": 1, "failed": bool(record["failed_at"])})
            counts.update({name: record[name] for name in COUNTED})
    return {name: counts[name] for name in ("episodes", "failed", *COUNTED)}
