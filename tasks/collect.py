"""Has the teacher play one episode for each seed of the collect window.

In: the task, the teacher, the seeds. Out: `Rollouts`: rollouts.jsonl, one episode a line, by seed.
Every finished episode is appended to a scratch file that only this very work finds again (its name is the key), so an
interrupted collection goes on where it was; a torn last line is cut off first.
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.session import SessionLost
from apprentice.tasks import announce
from apprentice.tasks.artifacts import Questions, Rollouts
from apprentice.tasks.episode import Episode
from apprentice.tasks.errors import Stop
from apprentice.tasks.questions import read_questions
from apprentice.tasks.specs import CollectSpec, TeacherSpec
from apprentice.tasks.stage import Bench, stage
from apprentice.tasks.teacher import Spent, Teacher, TeacherFailed


@stage(gives=Rollouts, version=1, title="Teacher's rollouts")
def collect(
    bench: Bench, spec: CollectSpec, teacher: TeacherSpec, environment: EnvironmentSpec, questions: Questions
) -> dict[str, Any]:
    """Plays every seed of the collect window once. Raises Stop when too many fail; what finished is kept."""
    seeds = [row["seed"] for row in read_questions(bench.fetch(questions), "collect")]
    with _journal(bench.scratch / "episodes.jsonl") as journal:
        done = {json.loads(line)["seed"] for line in journal}
        failures = _play(bench, spec, teacher, environment, [seed for seed in seeds if seed not in done], journal)
        return _publish(journal, failures, bench.out / "rollouts.jsonl")


def _play(
    bench: Bench,
    spec: CollectSpec,
    teacher_spec: TeacherSpec,
    environment: EnvironmentSpec,
    seeds: list[int],
    journal: IO[bytes],
) -> list[dict[str, Any]]:
    """Appends every played episode to the journal; returns those that infrastructure failed, to be tried next time."""
    if not seeds:
        return []
    servers = bench.work.servers
    teacher = Teacher(teacher_spec, servers.teacher(), spec.asks)
    lost: list[dict[str, Any]] = []

    def play(instance: ToolEnvironment, seed: int) -> dict[str, Any]:
        return play_one(instance, seed, teacher, environment)

    with (
        announce.progress("episodes", len(seeds)) as advance,
        EnvironmentPool(environment, servers.environment(), servers.sessions) as pool,
    ):
        for _, record in pool.map(play, seeds):
            advance(1)
            if record["failure"] and record["failure"]["boundary"] == "environment":
                lost.append(record)
                if len(lost) > spec.max_failed * len(seeds):
                    raise Stop(
                        f"{len(lost)} episodes were lost to the environment, the last one to: "
                        f"{record['failure']['cause']}",
                        "See that its server runs, then run again: finished episodes are kept.",
                    )
            else:
                journal.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
                journal.flush()
    return lost


def play_one(instance: ToolEnvironment, seed: int, teacher: Teacher, environment: EnvironmentSpec) -> dict[str, Any]:
    """One whole episode of the teacher as a record; a failure is data, with the boundary at which it happened."""
    spent = Spent()
    record: dict[str, Any] = {"seed": seed, "environment": environment.model_dump(mode="json")}
    transcript: dict[str, Any] = {"messages": [], "tools": []}
    failure = None
    try:
        episode = Episode(instance, seed)
        transcript = {"messages": episode.messages, "tools": episode.tools}
        while not episode.done:
            episode.hear(teacher.reply(episode.messages, episode.tools, spent))
    except TeacherFailed as failed:
        failure = {"boundary": "teacher", "cause": str(failed)}
    except SessionLost as lost:
        failure = {"boundary": "environment", "cause": str(lost)}
    reward = None if failure else instance.reward
    return record | transcript | {"reward": reward} | asdict(spent) | {"failure": failure}


@contextmanager
def _journal(path: Path) -> Iterator[IO[bytes]]:
    """The scratch file, locked against a second collector, its torn last line cut off, read from its start."""
    with path.open("a+b") as journal:
        try:
            fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Stop("Another run collects the very same episodes.", "Wait for it; its result serves both.") from None
        whole = path.read_bytes()
        journal.truncate(whole.rfind(b"\n") + 1)
        journal.seek(0)
        yield journal


def _publish(journal: IO[bytes], failures: list[dict[str, Any]], to: Path) -> dict[str, Any]:
    """Writes the episodes by seed, one line in memory at a time, and counts."""
    counts = {"episodes": len(failures), "failed": len(failures), "prompt_tokens": 0, "completion_tokens": 0}
    places: list[tuple[int, int]] = []
    journal.seek(0)
    while line := journal.readline():
        record = json.loads(line)
        places.append((record["seed"], journal.tell() - len(line)))
        counts["episodes"] += 1
        counts["failed"] += record["failure"] is not None
        counts["prompt_tokens"] += record["usage"]["prompt_tokens"]
        counts["completion_tokens"] += record["usage"]["completion_tokens"]
    with to.open("wb") as file:
        for _, place in sorted(places):
            journal.seek(place)
            file.write(journal.readline())
        file.writelines(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in failures)
    return counts
