"""Measures the figures of deployments/figures.json that say `make bench NAME=scaling`, and checks its predictions.

In: nothing; `--small` for a look in half a minute. Out: a row of Markdown a point, then one line of JSON: recorded (or
predicted from what is recorded) and measured seconds and their ratio. Takes under four minutes on two idle cores.
Collection meets each kind of bound once: the teacher's latency at three sizes, our own loop, a limit of requests, a
server that grants few sessions. What was collected is filtered and its tokens counted, as in a run.
"""

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import COUNTED, BaseStudent, KeptRollouts, Questions, Rollouts
from apprentice.tasks.collect import collect_shard
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.files.question_lists import read_questions
from apprentice.tasks.filter import filter_rollouts
from apprentice.tasks.lengths import lengths
from apprentice.tasks.questions import questions
from apprentice.tasks.reporting import announce
from apprentice.tasks.settings.endpoint import TeacherSpec
from apprentice.tasks.settings.spec import CollectSpec, LengthsSpec, SeedWindows, Window
from tests.bench.bounds import MEASURED, Collection
from tests.bench.collect import SESSIONS, TASK, endpoint
from tests.tokenizers import build_tokenizer

LATENCY = 0.1
"""Seconds that the endpoint takes for an answer."""
TASKS = "tasks"
"""First argument of the process that runs trivial tasks."""


class Plan(NamedTuple):
    """How much is measured."""

    episodes: tuple[int, ...]
    """One collection after another, at LATENCY."""
    looked_at: tuple[int, ...]
    """Of those, which are filtered and measured, too."""
    held_back: int
    """Episodes under a limit of requests, and with few sessions."""
    hurried: int
    """Episodes without latency."""
    tasks: tuple[int, ...]


WHOLE = Plan((300, 3_000, 30_000), (3_000, 30_000), held_back=600, hurried=3_000, tasks=(50, 200))
SMALL = Plan((200, 600), (600,), held_back=200, hurried=300, tasks=(5, 20))
FEW_SESSIONS = 8
REQUESTS_A_MINUTE = 6_000


class Point(NamedTuple):
    """One comparison."""

    point: str
    bound: str
    predicted_s: float
    measured_s: float

    def row(self) -> dict[str, Any]:
        rounded = {"predicted_s": round(self.predicted_s, 2), "measured_s": round(self.measured_s, 2)}
        return self._asdict() | rounded | {"ratio": round(self.measured_s / self.predicted_s, 2)}


class Stages:
    """Runs the bodies of stages, each in new folders of one store."""

    def __init__(self, folder: Path, server: str):
        folder.mkdir()
        self._folder = folder
        self._server = server
        self.store = LocalStore(folder / "store", "bench")
        self._made = 0

    def run(
        self, body: Callable[..., Any], *given: Any, teacher: str | None = None
    ) -> tuple[float, dict[str, Any], Path]:
        """Seconds of a body, its counts, and the folder that it filled."""
        self._made += 1
        out, scratch = self._folder / f"out-{self._made}", self._folder / f"scratch-{self._made}"
        out.mkdir()
        scratch.mkdir()
        server = EnvironmentServer(url=self._server, sessions=SESSIONS, shared=False)
        servers = StandingServers({"reasoning_gym": server}, teacher and f"{teacher}/v1")
        bench = StageContext(RunContext(self.store, servers), "0" * 20, out, scratch)
        began = time.perf_counter()
        counts = body(bench, *given)
        return time.perf_counter() - began, counts, out

    def publish(self, kind: Any, folder: Path, counts: dict[str, Any]) -> Any:
        return self.store.publish(kind, "k", folder, counts, {"stage": "bench"})

    def collect(self, teacher: str, size: Collection) -> tuple[float, dict[str, Any], Path]:
        limit = None if math.isinf(size.requests_per_minute) else size.requests_per_minute
        spec = TeacherSpec(model="bench", requests_per_minute=limit)
        given = (CollectSpec(), spec, TASK, Window(start=0, size=size.episodes))
        seconds, counts, out = self.run(collect_shard.body, *given, teacher=teacher)
        assert (counts["episodes"], counts["failed"]) == (size.episodes, 0), counts
        return seconds, counts, out


def collected(name: str, size: Collection, seconds: float) -> Point:
    return Point(f"collect {name}", size.bounds()[0][1], size.seconds, seconds)


def points(plan: Plan, folder: Path) -> Iterator[Point]:
    """All of the stages'."""
    announce.console.quiet = True
    module = "apprentice.envs.serving.serve", "reasoning_gym"
    with (
        local_server(*module, "--max-sessions", str(2 * SESSIONS)) as server,
        local_server(*module, "--max-sessions", str(FEW_SESSIONS)) as small_server,
    ):
        stages = Stages(folder / "large", server)
        with endpoint(1000 * LATENCY) as teacher:
            first = Collection(SESSIONS, SESSIONS, LATENCY)
            list(after_collection(stages, first, *stages.collect(teacher, first)[1:]))  # imports
            for episodes in plan.episodes:
                size = Collection(episodes, SESSIONS, LATENCY)
                seconds, counts, out = stages.collect(teacher, size)
                yield collected(f"{episodes:,}, 100 ms", size, seconds)
                if episodes in plan.looked_at:
                    yield from after_collection(stages, size, counts, out)
            few = Collection(plan.held_back, FEW_SESSIONS, LATENCY)
            limited = Collection(plan.held_back, SESSIONS, LATENCY, REQUESTS_A_MINUTE)
            name = f"{plan.held_back:,}, 100 ms"
            yield collected(
                f"{name}, {FEW_SESSIONS} sessions", few, Stages(folder / "small", small_server).collect(teacher, few)[0]
            )
            seconds = stages.collect(teacher, limited)[0]
            yield collected(f"{name}, {REQUESTS_A_MINUTE:,} requests a minute", limited, seconds)
        with endpoint(0) as teacher:
            size = Collection(plan.hurried, SESSIONS, 0.0)
            yield collected(f"{plan.hurried:,}, no latency", size, stages.collect(teacher, size)[0])


def after_collection(stages: Stages, size: Collection, counts: dict[str, Any], out: Path) -> Iterator[Point]:
    """Questions, filter and lengths over as many episodes."""
    named = f"{size.episodes:,}"
    windows = SeedWindows(
        collect=Window(start=0, size=size.episodes),
        grpo=Window(start=100_000_000, size=50),
        evaluate=Window(start=200_000_000, size=50),
    )
    seconds, found_counts, folder = stages.run(questions.body, TASK, windows, 20)
    seeds = sum(window.size for _, window in windows)
    yield Point(f"questions {named}", "question_s", seeds * MEASURED["question_s"], seconds)
    texts = [row["question"] for row in read_questions(folder, "collect")]
    found = stages.publish(Questions, folder, found_counts)

    rollouts = stages.publish(Rollouts, out, {name: counts[name] for name in ("episodes", "failed", *COUNTED)})
    seconds, kept, folder = stages.run(filter_rollouts.body, rollouts, found)
    yield Point(f"filter {named}", "filter_s", size.episodes * MEASURED["filter_s"], seconds)

    with stages.store.staging() as staged:
        build_tokenizer(TASK, texts).save_pretrained(staged)
        (staged / "config.json").write_text(json.dumps({"max_position_embeddings": 2048}))
        student = stages.publish(BaseStudent, staged, {"parameters": 0, "stage": "base"})
    seconds, _, _ = stages.run(lengths.body, LengthsSpec(), stages.publish(KeptRollouts, folder, kept), student)
    yield Point(f"lengths {named}", "length_s", kept["kept"] * MEASURED["length_s"], seconds)


def trivial_tasks(numbers: list[int]) -> list[float]:
    """Seconds of a flow with so many trivial tasks, on Prefect's temporary server, which is started before."""
    from prefect import flow, task

    @task
    def trivial(number: int) -> int:
        return number

    @flow
    def many(number: int) -> int:
        return sum(trivial(each) for each in range(number))

    many(1)
    seconds = []
    for number in numbers:
        began = time.perf_counter()
        many(number)
        seconds.append(time.perf_counter() - began)
    return seconds


def task_points(plan: Plan, folder: Path) -> Iterator[Point]:
    """In a process of its own: a new home, no other server, and Prefect reads its settings when it is imported."""
    settings = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    settings |= {"PREFECT_HOME": str(folder / "prefect"), "PREFECT_LOGGING_LEVEL": "ERROR", "DO_NOT_TRACK": "1"}
    settings |= {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120"}
    command = [sys.executable, "-m", "tests.bench.scaling", TASKS, *map(str, plan.tasks)]
    done = subprocess.run(command, capture_output=True, text=True, env=settings)
    if done.returncode:
        raise SystemExit(done.stderr)
    few, many = json.loads(done.stdout.splitlines()[-1])
    more = plan.tasks[1] - plan.tasks[0]
    yield Point(f"{more} more task runs", "task_run_s", more * MEASURED["task_run_s"], many - few)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", default="all")
    parser.add_argument("given", nargs="*", type=int)
    parser.add_argument("--small", action="store_true", help="half a minute, for a look")
    arguments = parser.parse_args()
    if arguments.what == TASKS:
        print(json.dumps(trivial_tasks(arguments.given)))
        return
    os.environ.setdefault("OPENAI_API_KEY", "none")
    plan = SMALL if arguments.small else WHOLE
    rows = []
    print("| point | bound, or figure | recorded, s | measured, s | ratio |\n|" + " --- |" * 5)
    with tempfile.TemporaryDirectory() as folder:
        for point in itertools.chain(points(plan, Path(folder)), task_points(plan, Path(folder))):
            rows.append(point.row())
            print("| " + " | ".join(str(value) for value in rows[-1].values()) + " |", flush=True)
    print(json.dumps({"points": rows}))


if __name__ == "__main__":
    main()
