"""Collects one teacher episode for each seed of the collect window.

In: the task, the teacher, the window. Out: `Rollouts`: rollouts.jsonl, one episode per line, ordered by seed.
Every finished episode is journaled immediately, so an interrupted collection resumes where it stopped. The window may
be split into shards, each with its own task and artifact; together they give the same dataset as a single shard.
"""

import json
import shutil
from collections import Counter
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path
from typing import Any

from apprentice.envs.base import ToolEnvironment, tools_text
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.pool import EnvironmentPool, open_pools
from apprentice.envs.wire.metrics import count
from apprentice.envs.wire.session import Refused, SessionLost
from apprentice.tasks.analysis.broken import check_broken
from apprentice.tasks.artifacts.types import Rollouts, RolloutShard
from apprentice.tasks.engine.limits import leases, shared
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext, stage
from apprentice.tasks.episodes.episode import Episode, prompt
from apprentice.tasks.episodes.journal import Journal, check_begun_with, journal
from apprentice.tasks.episodes.record import Record
from apprentice.tasks.players.budget import Budget
from apprentice.tasks.players.teacher import Spent, Teacher
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import BudgetReached, Stop, TeacherFailed, TeacherUnavailable
from apprentice.tasks.reporting.log import note
from apprentice.tasks.settings.stages import CollectSpec, Seeds, TeacherSpec, Window

COUNTED = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "cost_usd")
PASSES = 2
"""Attempts at an episode that infrastructure failures interrupt; retries come after all other episodes."""


@stage(produces=Rollouts, version=3, title="Teacher's rollouts ({teacher.called})")
def collect(
    context: StageContext, spec: CollectSpec, teacher: TeacherSpec, environment: EnvironmentSpec, window: Window | Seeds
) -> dict[str, Any]:
    """Plays every seed of the window once. Raises Stop; finished episodes are kept."""
    check_begun_with(context.scratch / "settings.json", {"shards": spec.shards})  # another split would buy all again
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


@stage(produces=RolloutShard, version=2, title="Rollouts of seeds {window}")
def collect_shard(
    context: StageContext, spec: CollectSpec, teacher: TeacherSpec, environment: EnvironmentSpec, window: Window | Seeds
) -> dict[str, Any]:
    """Plays the seeds of one part of the window. Raises Stop; finished episodes are kept."""
    instance = environment.make()
    begun_with = {
        "teacher": teacher.in_key(),
        "collect": spec.in_key(),
        "environment": environment.in_key(),
        "prompt": [{"messages": prompt(part, ""), "tools": tools_text(part)} for part in instance._parts()],
    }
    with journal(context.scratch, begun_with) as kept:
        for lost in Collector(context, spec, teacher, environment, kept).play(window):
            kept.append(lost)
        if len(kept) != window.size:
            raise RuntimeError(f"{len(kept)} episodes were journaled for {window.size} seeds")
        return _publish(kept, context.out / "rollouts.jsonl")


@dataclass
class Collector:
    """Plays the missing episodes of a journal."""

    context: StageContext
    spec: CollectSpec
    teacher: TeacherSpec
    environment: EnvironmentSpec
    journal: Journal

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
        budget = Budget(self.teacher.prices, cap and cap * share, self.context.scratch / "spent_usd")
        url = self.context.run.servers.teacher()
        teacher = Teacher(self.teacher, url, self.spec.asks, budget, 1.0 if shared() else share)
        seeds = (seed for seed in window.seeds() if seed not in done)
        try:
            with announce.progress("episodes", window.size, len(done)) as advance, self._pool() as pool:
                for _ in range(PASSES):
                    lost = self._pass(pool, teacher, seeds, window.size, advance, broken)
                    seeds = iter([record.seed for record in lost])
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
        finally:
            teacher.close()
            budget.close()
        return [*lost, *broken]

    def _pool(self) -> EnvironmentPool:
        server = self.context.run.servers.environment(self.environment.name)
        sessions = max(1, server.sessions // self.spec.shards)
        return EnvironmentPool(self.environment, server, sessions, announce.warn, leases)

    def _pass(
        self, pool: EnvironmentPool, teacher: Teacher, seeds: Any, of: int, advance: Any, broken: list[Record]
    ) -> list[Record]:
        """Returns the episodes lost to infrastructure; adds those on which the environment failed to `broken`."""
        lost: list[Record] = []

        def play(instance: ToolEnvironment, seed: int) -> Record:
            record = play_one(instance, seed, teacher, self.environment)
            if record.failed_at or record.asked_again:
                why = {"failed_at": record.failed_at, "cause": record.cause, "asked_again": record.asked_again}
                note("episode failed" if record.failed_at else "asked again", WARNING, episode=seed, **why)
            if record.is_final:
                self.journal.append(record)
            return record

        for _, record in pool.map(play, seeds):
            if record.failed_at == "question":
                broken.append(record)
                check_broken(len(broken), of, self.spec.max_failed, record.cause)
                advance(1)
            elif not record.is_final:
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


def play_one(instance: ToolEnvironment, seed: int, teacher: Teacher, environment: EnvironmentSpec) -> Record:
    """Plays one teacher episode. A failure is recorded, with the boundary at which it happened, and not raised."""
    instance = instance._part(seed)
    spent = Spent()
    messages: list[dict[str, Any]] = []
    failed_at = cause = ""
    try:
        episode = Episode(instance, seed)
        messages = episode.messages
        while not episode.done:
            instance._wait_for_server()  # do not buy a turn that cannot be played
            episode.step(teacher.reply(messages, episode.tools, spent, seed))
        if episode.broken:
            failed_at, cause = "question", episode.broken
    except TeacherFailed as failed:
        failed_at, cause = "teacher", str(failed)
    except TeacherUnavailable as away:
        failed_at, cause = "teacher's endpoint", str(away)
    except SessionLost as gone:
        failed_at, cause = "environment", str(gone)
    return Record(
        seed=seed,
        environment=environment.played_by(instance),
        messages=messages,
        tools=tools_text(instance),
        reward=None if failed_at else instance.reward,
        failed_at=failed_at,
        cause=cause,
        asked_again="; ".join(spent.asked_again),
        correct=instance.correct or "",
        **{name: getattr(spent, name) for name in ("attempts", *COUNTED)},
    )


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
