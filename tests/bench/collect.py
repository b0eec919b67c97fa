"""Our collection against OpenEnv's own, on the same servers, at four latencies of the teacher; and our memory.

In: nothing. Out: a table, then one line of JSON. Takes about six minutes on two idle cores.
The peer is `openenv.core.harness.collect.CollectRunner` with `MCPHarnessAdapter` and OpenEnv's OpenAI client, driven as
its command `openenv collect` drives them, with a teacher that closes each connection: with one that keeps connections
alive it loses every second episode.
"""

import argparse
import contextlib
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer

SESSIONS = 64
SETTINGS = {"dataset": "chain_sum", "config": {"min_terms": 2, "max_terms": 3, "min_digits": 2, "max_digits": 2}}
TASK = EnvironmentSpec(name="reasoning_gym", settings=SETTINGS)
LATENCIES: dict[int, tuple[int, int]] = {0: (5000, 300), 50: (5000, 100), 200: (3840, 40), 1000: (1280, 8)}
"""Teacher's latency in ms → episodes of ours, of the peer's."""
ROUNDS = 2
MEMORY = (1_000, 100_000)


@contextmanager
def endpoint(latency_ms: float, *more: str) -> Iterator[str]:
    with local_server("tests.bench.endpoint", "--latency-ms", str(latency_ms), *more) as url:
        yield url


def ours(server: str, teacher: str, episodes: int, folder: Path, warm: bool = False) -> float:
    """Seconds that the stage's body takes for `episodes`, from opening its sessions to the finished file."""
    from apprentice.tasks.artifacts.local import LocalStore
    from apprentice.tasks.collect import collect_shard
    from apprentice.tasks.engine.run import RunContext, StandingServers
    from apprentice.tasks.engine.stage import StageContext
    from apprentice.tasks.settings.endpoint import TeacherSpec
    from apprentice.tasks.settings.spec import CollectSpec, Window

    if not warm:  # what is imported when first needed is no part of the comparison; the peer's imports are not, too
        ours(server, teacher, SESSIONS, folder / "warm", warm=True)
    servers = StandingServers({"reasoning_gym": EnvironmentServer(url=server, sessions=SESSIONS)}, f"{teacher}/v1")
    out, scratch = folder / "out", folder / "scratch"
    out.mkdir(parents=True)
    scratch.mkdir()
    bench = StageContext(RunContext(LocalStore(folder / "store", "bench"), servers), "0" * 20, out, scratch)
    window = Window(start=0, size=episodes)
    began = time.perf_counter()
    counts = collect_shard.body(bench, CollectSpec(), TeacherSpec(model="bench"), TASK, window)
    seconds = time.perf_counter() - began
    assert (counts["episodes"], counts["failed"]) == (episodes, 0), counts
    return seconds


def peer(server: str, teacher: str, episodes: int, folder: Path) -> float:
    """Seconds that OpenEnv's collector takes for `episodes`, its imports and set-up not counted."""
    from openenv.core.env_server.mcp_types import Tool
    from openenv.core.generic_client import GenericEnvClient
    from openenv.core.harness import (
        HarnessRunLimits,
        MCPHarnessAdapter,
        ResourceSessionFactory,
        StepEnvSessionAdapter,
        VerifyResult,
    )
    from openenv.core.harness.collect import CollectRunner, RolloutSerializer, build_model_step
    from openenv.core.llm_client import OpenAIClient

    schema = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    tool = Tool(name="answer", description="Hand in the final answer to the problem.", input_schema=schema)
    seeds = iter(range(episodes))

    class Factory(ResourceSessionFactory):
        def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> StepEnvSessionAdapter:
            return StepEnvSessionAdapter(
                GenericEnvClient(base_url=server),
                seed=next(seeds),
                tool_specs=[tool],
                action_builder=lambda name, arguments: arguments,
                initial_messages_builder=lambda result, task: [
                    {"role": "user", "content": result.observation["question"]}
                ],
                verify_builder=lambda transcript, final, last, state: VerifyResult(
                    env_reward=last.reward if last else 0.0, done=True
                ),
                reset_kwargs={"dataset_name": SETTINGS["dataset"], "dataset_config": SETTINGS["config"], "size": 1},
            )

    host, _, port = teacher.rpartition(":")
    client = OpenAIClient(endpoint=host, port=int(port), model="bench", api_key="none-needed")
    runner = CollectRunner(
        session_factory=Factory(),
        harness_adapter=MCPHarnessAdapter(),
        serializer=RolloutSerializer(folder),
        limits=HarnessRunLimits(max_turns=1),
    )
    step = build_model_step(client, system_prompt="Solve the problem; call the tool once.")
    with contextlib.redirect_stdout(io.StringIO()):
        began = time.perf_counter()
        result = runner.run(model_step=step, num_episodes=episodes)
        seconds = time.perf_counter() - began
    assert result.num_collected == episodes, result
    return seconds


def ceiling(server: str, episodes: int = 6000) -> float:
    """Episodes a second that the server itself carries: our sessions with answers that cost nothing."""
    from apprentice.envs.pool import EnvironmentPool

    def play(instance: Any, seed: int) -> None:
        instance.ask(seed)
        instance.act("answer", {"answer": "0"})

    with EnvironmentPool(TASK, EnvironmentServer(url=server, sessions=SESSIONS)) as pool:
        list(pool.map(play, range(SESSIONS)))  # imports, and opens the sessions
        began = time.perf_counter()
        played = sum(1 for _ in pool.map(play, range(episodes)))
        assert played == episodes
        return episodes / (time.perf_counter() - began)


def in_a_process(what: str, *given: str) -> float:
    """One measurement in a process of its own, as a user's command would be; its last line is the figure."""
    command = [sys.executable, "-m", "tests.bench.collect", what, *given]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OPENAI_API_KEY": "none"})
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.split()[-1])


def compare(server: str) -> list[dict[str, float]]:
    most = in_a_process("ceiling", server)
    rows = []
    for latency, (many, few) in LATENCIES.items():
        with endpoint(latency) as kept_alive, endpoint(latency, "--close") as closing:
            # in turns, and the best of each: what else the machine does slows either
            our, their = 0.0, 0.0
            for _ in range(ROUNDS):
                their = max(their, few / in_a_process("peer", server, closing, str(few)))
                our = max(our, many / in_a_process("ours", server, kept_alive, str(many)))
        limit = min(SESSIONS / (latency / 1000), most) if latency else most
        rows.append(
            {
                "latency_ms": latency,
                "ours_eps": round(our, 1),
                "peer_eps": round(their, 2),
                "ratio": round(our / their, 1),
                "limit_eps": round(limit, 1),
                "share_of_limit": round(our / limit, 3),
            }
        )
        print(rows[-1], flush=True)
    return rows


def memory_of(stage: str, server: str, teacher: str, episodes: int, folder: Path) -> float:
    """Peak resident MB of this process after one stage over so many episodes."""
    if stage == "collect":
        ours(server, teacher, episodes, folder, warm=True)
    else:
        over_rollouts(stage, episodes, folder)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def over_rollouts(stage: str, episodes: int, folder: Path) -> None:
    """Runs filter, or lengths, over a published dataset of so many copies of a played episode."""
    from apprentice.envs.wire.session import Session
    from apprentice.tasks.artifacts.local import LocalStore
    from apprentice.tasks.artifacts.types import COUNTED, BaseStudent, KeptRollouts, Questions, Rollouts
    from apprentice.tasks.engine.run import RunContext, StandingServers
    from apprentice.tasks.engine.stage import StageContext
    from apprentice.tasks.episodes.episode import Episode
    from apprentice.tasks.episodes.record import Record
    from apprentice.tasks.filter import filter_rollouts
    from apprentice.tasks.lengths import lengths
    from apprentice.tasks.settings.spec import LengthsSpec
    from tests.tokenizers import build_tokenizer

    store = LocalStore(folder / "store", "bench")
    out = folder / "out"
    out.mkdir()
    bench = StageContext(RunContext(store, StandingServers({}, None)), "0" * 20, out, folder)
    with local_server("apprentice.envs.serving.serve", "reasoning_gym") as url:
        episode = Episode(TASK.make(Session(EnvironmentServer(url=url))), 1)
        function = {"name": "answer", "arguments": json.dumps({"answer": "1"})}
        call = {"id": "call", "type": "function", "function": function}
        episode.step({"role": "assistant", "content": "", "tool_calls": [call]})

    def published(kind: Any, name: str, **counts: Any) -> Any:
        with store.staging() as staged:
            with (staged / name).open("wb") as file:
                for seed in range(episodes):
                    record = Record(
                        seed=seed,
                        environment="reasoning_gym 1",
                        messages=episode.messages,
                        tools=json.dumps(episode.tools),
                        reward=1.0,
                    )
                    file.write(record.line())
            return store.publish(kind, "k", staged, counts, {"stage": "bench"})

    if stage == "filter":
        with store.staging() as staged:
            (staged / "questions.jsonl").write_text("")
            none = dict(collect=0, grpo=0, evaluate=0, dropped_from_grpo=0)
            questions_artifact = store.publish(Questions, "k", staged, none, {"stage": "bench"})
        counts = {"episodes": episodes, "failed": 0} | dict.fromkeys(COUNTED, 0)
        filter_rollouts.body(bench, published(Rollouts, "rollouts.jsonl", **counts), questions_artifact)
        return
    with store.staging() as staged:
        build_tokenizer(TASK, [episode.question]).save_pretrained(staged)
        (staged / "config.json").write_text(json.dumps({"max_position_embeddings": 2048}))
        student = store.publish(BaseStudent, "k", staged, {"parameters": 0, "stage": "base"}, {"stage": "bench"})
    kept = published(KeptRollouts, "kept.jsonl", episodes=episodes, kept=episodes, dropped={})
    lengths.body(bench, LengthsSpec(), kept, student)


def memory(server: str) -> dict[str, dict[str, float]]:
    """Peak resident memory in MB of collect, filter and lengths, over few and over many episodes."""
    with endpoint(0) as teacher:
        return {
            stage: {str(many): round(in_a_process(f"memory-{stage}", server, teacher, str(many))) for many in MEMORY}
            for stage in ("collect", "filter", "lengths")
        }


def show(rows: Sequence[dict[str, Any]]) -> None:
    table = Table(*rows[0], title=f"Collection with {SESSIONS} sessions", title_justify="left", box=None)
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", default="all")
    parser.add_argument("given", nargs="*")
    arguments = parser.parse_args()
    if arguments.what == "all":
        with local_server(
            "apprentice.envs.serving.serve", "reasoning_gym", "--max-sessions", str(2 * SESSIONS)
        ) as server:
            rows = compare(server)
            show(rows)
            used = memory(server)
            show(
                [
                    {"stage": stage} | {f"{many} episodes, MB": mb for many, mb in each.items()}
                    for stage, each in used.items()
                ]
            )
            print(json.dumps({"rows": rows, "rss_mb": used.pop("collect"), "rss_mb_of_other_stages": used}))
        return
    with tempfile.TemporaryDirectory() as folder:
        if arguments.what == "ceiling":
            print(ceiling(arguments.given[0]))
        elif arguments.what in ("ours", "peer"):
            measure = ours if arguments.what == "ours" else peer
            print(measure(arguments.given[0], arguments.given[1], int(arguments.given[2]), Path(folder)))
        else:
            stage = arguments.what.removeprefix("memory-")
            print(memory_of(stage, arguments.given[0], arguments.given[1], int(arguments.given[2]), Path(folder)))


if __name__ == "__main__":
    main()
