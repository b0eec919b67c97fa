"""Episodes a second that are rescored, and how many requests to a teacher that took.

In: `--episodes`. Out: one line of JSON. The rollouts are collected first, from a teacher that answers at once; then
they are rescored under the same rewards, over the same server, and must come out byte for byte alike.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Rollouts
from apprentice.tasks.collect import collect_shard
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.rescore import rescore
from apprentice.tasks.settings.endpoint import TeacherSpec
from apprentice.tasks.settings.spec import CollectSpec, Window
from tests.bench.collect import SESSIONS, TASK, endpoint


class Asked(StandingServers):
    """Servers that count how often somebody asks where the teacher is: nobody can send it a request without."""

    times = 0

    def teacher(self) -> str | None:
        Asked.times += 1
        return super().teacher()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=10_000)
    episodes = parser.parse_args().episodes
    os.environ.setdefault("OPENAI_API_KEY", "none")
    serves = ("apprentice.envs.serving.serve", "reasoning_gym", "--max-sessions", str(2 * SESSIONS))
    with tempfile.TemporaryDirectory() as folder, local_server(*serves) as url, endpoint(0) as teacher:
        servers = Asked({TASK.name: EnvironmentServer(url=url, sessions=SESSIONS)}, f"{teacher}/v1")
        run = RunContext(LocalStore(Path(folder) / "store", "bench"), servers)

        def context(name: str) -> StageContext:
            out, scratch = Path(folder) / name, Path(folder) / f"{name}-scratch"
            out.mkdir()
            scratch.mkdir()
            return StageContext(run, "0" * 20, out, scratch)

        bought = context("bought")
        began = time.perf_counter()
        given = CollectSpec(), TeacherSpec(model="bench"), TASK, Window(start=0, size=episodes)
        counts = collect_shard.body(bought, *given)
        collected = episodes / (time.perf_counter() - began)
        rows = (bought.out / "rollouts.jsonl").read_bytes()
        rollouts = run.store.publish(Rollouts, "a" * 20, bought.out, counts, {"stage": "bench"})

        asked_before, again = Asked.times, context("again")
        began = time.perf_counter()
        found = rescore.body(again, rollouts, TASK)
        rescored = episodes / (time.perf_counter() - began)
        assert (again.out / "rollouts.jsonl").read_bytes() == rows, "an unchanged rule gave other rows"
    figures = {
        "episodes": found["episodes"],
        "left_out": found["left_out"],
        "episodes_a_second": round(rescored),
        "collected_a_second": round(collected),
        "requests_to_a_teacher": Asked.times - asked_before,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
