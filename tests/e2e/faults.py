"""What outages and kills cost a run on two pools: time, and nothing else. `make e2e NAME=faults`.

Each fault disturbs a run of the toy recipe at the stage that it names; the stages before are there already. The run
must end like an undisturbed one, with its keys and digests. In: names of faults (`E2E="grpo evaluation"`), or none
for all. Out: a line of JSON.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from apprentice.flows.recipe.loading import load_recipe
from tests.e2e.cluster import ROOT, Cluster, children_of, kill_tree, until
from tests.e2e.whole import client_of, ended, ready, start
from tests.hub_server import LocalHub
from tests.restartable import RestartableServer

OUTAGE = 60.0
GRACE = 8.0
STAGES = [
    *("questions", "rollout-shards", "rollouts", "kept-rollouts", "base", "lengths", "sft", "grpo"),
    *("evaluation", "verdict", "decisions", "model"),
]
"""The repositories of a run, in the order in which it fills them."""
RECIPE = [  # GRPO has something to learn, and every stage takes long enough to be hit in its middle
    *("student.build.hidden_size=64", "student.build.intermediate_size=128", "guards=[]"),
    *("windows.collect.size=100", "sft.epochs=25", "sft.checkpoint_steps=5"),
    *("grpo.batch_size=16", "grpo.max_steps=12", "grpo.checkpoint_steps=2"),
    *("windows.evaluate.size=100", "evaluate.questions=80", "evaluate.batch_size=4", f"server.grace={GRACE}"),
    "probe.questions=0",  # a fault of the evaluation would meet it instead
]


class Disturbed(NamedTuple):
    """One disturbed run, as a fault sees it."""

    cluster: Cluster
    environment: RestartableServer
    hub: LocalHub
    store: Path
    run: UUID

    def reaches(self, pattern: str, seconds: float = 240.0) -> Path:
        """Waits until something was written to a file of a stage's scratch folder."""
        scratch = self.store / ".scratch"
        found = until(
            pattern, lambda: [path for path in scratch.glob(pattern) if path.stat().st_size], seconds, every=0.005
        )
        say(f"  {found[0].relative_to(self.store)} is there")
        return found[0]

    def stage_processes(self) -> list[Any]:
        """The processes of flow runs below the a100 worker."""
        return children_of(self.cluster.workers["a100-worker"])


Fault = Callable[[Disturbed], None]
FAULTS: dict[str, tuple[str, list[str], list[str] | None, Fault]] = {}
MIDDLE = {
    "sft": "sft-*/checkpoint-40/trainer_state.json",
    "grpo": "grpo-*/checkpoint-4/trainer_state.json",
    "evaluate": "evaluate-*/episodes.jsonl",
    "collect": "collect_shard-*/episodes.jsonl",
}
FIRST = {"sft": "sft", "grpo": "grpo", "evaluate": "evaluation", "collect": "rollout-shards"}


def fault(stage: str, *settings: str, again: str | None = "") -> Callable[[Fault], Fault]:
    """Names a fault after its function.

    Args:
        stage: With which the run begins: what comes before is there.
        settings: Of the recipe, for this fault.
        again: How the one stage is called that must be begun twice; empty for none; None where either may be.
    """

    def named(do: Fault) -> Fault:
        expected = None if again is None else [again] if again else []
        FAULTS[do.__name__.replace("_", " ")] = (stage, list(settings), expected, do)
        return do

    return named


def away(seconds: float, disturbed: Disturbed) -> None:
    """The environment's server is killed, and comes back after `seconds`."""
    disturbed.environment.kill()
    with idle_time(disturbed) as idle:
        time.sleep(seconds)
    IDLE.append(max(0.0, idle["s"] - GRACE))
    disturbed.environment.start()


KEY = re.compile(r"[0-9a-f]{20}")
"""An artifact's tag, not one that a gate moves."""
BAD: list[str] = []
IDLE: list[float] = []
"""Seconds beyond the grace period that a process of a GPU stage lived through an outage."""


@contextmanager
def idle_time(disturbed: Disturbed) -> Iterator[dict[str, float]]:
    """Counts the seconds in which a process of a GPU stage lives."""
    idle, over = {"s": 0.0}, threading.Event()

    def look() -> None:
        before = time.monotonic()
        while not over.wait(0.1):
            now = time.monotonic()
            idle["s"] += (now - before) * bool(disturbed.stage_processes())
            before = now

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield idle
    finally:
        over.set()
        looking.join()


@fault("collect")
def environment_down_for_60_s_in_collection(disturbed: Disturbed) -> None:
    disturbed.reaches(MIDDLE["collect"])
    away(OUTAGE, disturbed)


@fault("grpo", again="GRPO")
def environment_down_for_60_s_in_grpo(disturbed: Disturbed) -> None:
    disturbed.reaches(MIDDLE["grpo"])
    away(OUTAGE, disturbed)


@fault("evaluate", again="Evaluation of base")
def environment_down_for_60_s_in_evaluation(disturbed: Disturbed) -> None:
    disturbed.reaches(MIDDLE["evaluate"])
    away(OUTAGE, disturbed)


def worker_killed(disturbed: Disturbed, stage: str) -> None:
    disturbed.reaches(MIDDLE[stage])
    worker = disturbed.cluster.workers["a100-worker"]
    worker.kill()
    worker.wait()
    disturbed.cluster.start_worker("a100", "a100-worker")


@fault("sft")
def worker_killed_in_sft(disturbed: Disturbed) -> None:
    worker_killed(disturbed, "sft")


@fault("grpo")
def worker_killed_in_grpo(disturbed: Disturbed) -> None:
    worker_killed(disturbed, "grpo")


@fault("evaluate")
def worker_killed_in_evaluation(disturbed: Disturbed) -> None:
    worker_killed(disturbed, "evaluate")


def stage_killed(disturbed: Disturbed, stage: str) -> None:
    disturbed.reaches(MIDDLE[stage])
    found = disturbed.stage_processes()
    assert found, "there was nothing to kill"
    for process in found:
        process.kill()


@fault("sft", again="SFT")
def stage_killed_in_sft(disturbed: Disturbed) -> None:
    stage_killed(disturbed, "sft")


@fault("grpo", again="GRPO")
def stage_killed_in_grpo(disturbed: Disturbed) -> None:
    stage_killed(disturbed, "grpo")


@fault("evaluate", again="Evaluation of base")
def stage_killed_in_evaluation(disturbed: Disturbed) -> None:
    stage_killed(disturbed, "evaluate")


@fault("grpo", again="GRPO")
def worker_terminated_in_grpo(disturbed: Disturbed) -> None:
    """It takes the stage with it, whose run stays Running: the heartbeats that stop tell."""
    disturbed.reaches(MIDDLE["grpo"])
    worker = disturbed.cluster.workers["a100-worker"]
    worker.send_signal(signal.SIGTERM)
    worker.wait(60)
    disturbed.cluster.start_worker("a100", "a100-worker")


@fault("sft", again="SFT")
def worker_and_stage_killed_in_sft(disturbed: Disturbed) -> None:
    disturbed.reaches(MIDDLE["sft"])
    kill_tree(disturbed.cluster.workers["a100-worker"])
    disturbed.cluster.start_worker("a100", "a100-worker")


@fault("grpo", again="GRPO")
def worker_and_stage_killed_in_grpo(disturbed: Disturbed) -> None:
    disturbed.reaches(MIDDLE["grpo"])
    kill_tree(disturbed.cluster.workers["a100-worker"])
    disturbed.cluster.start_worker("a100", "a100-worker")


@fault("grpo")
def retraining_and_its_worker_killed_in_grpo(disturbed: Disturbed) -> None:
    """The holder of the recipe's one place dies: found by its heartbeats, it is run again, and joins its stage."""
    disturbed.reaches(MIDDLE["grpo"])
    kill_tree(disturbed.cluster.workers["cpu-worker"])
    disturbed.cluster.start_worker("cpu", "cpu-worker")
    client = client_of(disturbed.cluster)

    def is_run_again() -> bool:
        states = [state.name for state in client.read_flow_run_states(disturbed.run)]
        return "Crashed" in states and states[-1] != "Crashed"

    until("it was found dead, and is run again", is_run_again, 600.0, every=1.0)


@fault("grpo", again=None)
def prefect_server_restarted_in_grpo(disturbed: Disturbed) -> None:
    disturbed.reaches(MIDDLE["grpo"])
    disturbed.cluster.kill_server()
    disturbed.cluster.start_server()


@fault("grpo", again=None)
def prefect_server_away_for_150_s_in_grpo(disturbed: Disturbed) -> None:
    disturbed.reaches(MIDDLE["grpo"])
    disturbed.cluster.kill_server()
    time.sleep(150)
    disturbed.cluster.start_server()


HOLDER = """
import time
from prefect.concurrency.sync import concurrency
with concurrency("places", occupy=1, strict=True, lease_duration=60.0):
    time.sleep(3600)
"""


@fault("grpo", again=None)
def places_of_killed_holders_come_back_over_a_restart(disturbed: Disturbed) -> None:
    """Two of two places are held: one holder is killed, the server is restarted, the other one is killed."""
    cluster = disturbed.cluster
    cluster.run("prefect", "gcl", "create", "places", "--limit", "2")

    def held() -> int:
        return client_of(cluster).read_global_concurrency_limit_by_name("places").active_slots

    holders = [subprocess.Popen([sys.executable, "-c", HOLDER], env=cluster.env) for _ in range(2)]
    until("both places are held", lambda: held() == 2)
    holders[0].kill()
    began = time.monotonic()
    until("the killed holder's place came back", lambda: held() == 1)
    say(f"  a killed holder's place came back after {time.monotonic() - began:.0f} s")
    cluster.kill_server()
    cluster.start_server()
    assert held() == 1, "a place got lost, or was given away, while the server was away"
    holders[1].kill()
    began = time.monotonic()
    until("the other one's, too", lambda: held() == 0)
    say(f"  the other one's, over a restart, after {time.monotonic() - began:.0f} s")


@fault("grpo", "store.hub.namespace=local", again="GRPO")
def hub_down_for_60_s_at_publish_of_grpo(disturbed: Disturbed) -> None:
    """The trained model is kept, the device is free; it is published once."""
    disturbed.reaches("grpo-*/checkpoint-12/trainer_state.json")
    disturbed.hub.kill()
    with idle_time(disturbed) as idle:
        time.sleep(OUTAGE)
    IDLE.append(max(0.0, idle["s"] - GRACE))
    disturbed.hub.start()
    ended(disturbed.cluster, disturbed.run, 600.0)
    tags = [line for line in disturbed.hub.requests("POST .*toy-grpo/tag/") if line.endswith("200")]
    assert len(tags) == 1, tags
    say(f"  published once: {tags[0]}")


@fault("grpo", "server.patience=20", again="GRPO")
def environment_away_beyond_patience_then_retried(disturbed: Disturbed) -> None:
    """The run fails, in words; retried as a person does it in the interface, it repeats nothing that had finished."""
    disturbed.reaches(MIDDLE["grpo"])
    disturbed.environment.kill()
    failed = ended(disturbed.cluster, disturbed.run)
    assert failed["state"] == "Failed", failed
    assert "out of reach" in failed["message"], failed
    disturbed.environment.start()
    retry(disturbed)


def retry(disturbed: Disturbed) -> None:
    from prefect.states import AwaitingRetry

    client_of(disturbed.cluster).set_flow_run_state(disturbed.run, AwaitingRetry(), force=True)


def say(text: str) -> None:
    print(text, flush=True)


def made(store: Path) -> dict[str, str]:
    """Every artifact of a store: its revision by its repository and key."""
    refs = store.glob("*/local/*/refs/*")
    return {f"{ref.parent.parent.name}:{ref.name}": ref.read_text() for ref in refs if KEY.fullmatch(ref.name)}


def disturb(cluster: Cluster, environment: RestartableServer, hub: LocalHub, whole: Path, name: str) -> dict[str, Any]:
    """One fault on a store that lacks the stage and all after it; returns its row."""
    stage, settings, again, do = FAULTS[name]
    store = cluster.store / name.replace(" ", "-")
    shutil.copytree(whole, store, symlinks=True, ignore=shutil.ignore_patterns(".scratch", ".locks", "trackio"))
    for suffix in STAGES[STAGES.index(FIRST[stage]) :]:
        for refs in store.glob(f"*/local/toy-{suffix}/refs"):
            shutil.rmtree(refs)
    began = time.monotonic()
    disturbed = Disturbed(cluster, environment, hub, store, begin(cluster, environment, store, settings))
    IDLE.clear()
    do(disturbed)
    result = ended(cluster, disturbed.run, 900.0)
    report = max((store / "runs").glob("*/report.json"), default=None, key=lambda path: path.stat().st_mtime)
    stages = json.loads(report.read_text())["stages"] if report else []
    row = {
        "name": name,
        "state": result["state"],
        "digest_equal": made(store) == made(whole),
        "stages_repeated": [stage["title"] for stage in stages for _ in range(stage["attempts"] - 1)],
        "gpu_idle_s": round(sum(IDLE), 1),
    }
    ok = row["state"] == "Not promoted" and row["digest_equal"] and row["gpu_idle_s"] < 1.0
    repeated = [title.partition(" in ")[0] for title in row["stages_repeated"]]
    if not ok or again not in (None, repeated):
        BAD.append(name)
    say(f"{json.dumps(row)} {time.monotonic() - began:.0f} s  {result['message'] or ''}")
    return row


def begin(cluster: Cluster, environment: RestartableServer, store: Path, settings: list[str]) -> UUID:
    where = [f"server.url={environment.url}", "server.patience=600", f"store.path={store}"]
    recipe = load_recipe(ROOT / "deployments" / "recipes" / "toy.yaml", [*RECIPE, *where, *settings])
    return start(cluster, "retrain/toy", {"recipe": recipe.as_parameters(), "runs": str(store / "runs"), "gpu": "a100"})


def main(names: list[str]) -> None:
    chosen = [name for name in FAULTS if not names or any(part in name for part in names)]
    rows = []
    with tempfile.TemporaryDirectory(prefix="apprentice-faults-") as folder, Cluster(Path(folder)) as cluster:
        environment = RestartableServer()
        hub = LocalHub(Path(folder) / "hub")
        cluster.env |= hub.variables(Path(folder) / "hub-cache")
        try:
            ready(cluster)
            whole = cluster.store / "undisturbed"
            began = time.monotonic()
            first = ended(cluster, begin(cluster, environment, whole, []))
            assert first["state"] == "Not promoted", first
            say(f"undisturbed: {time.monotonic() - began:.0f} s, {len(made(whole))} artifacts")
            for name in chosen:
                say(name)
                rows.append(disturb(cluster, environment, hub, whole, name))
        finally:
            environment.kill()
            hub.kill()
        for log in [] if not BAD else Path(folder).glob("*/log.txt"):
            say(f"--- {log.parent.name}\n" + "\n".join(log.read_text().splitlines()[-200:]))
    print(json.dumps({"faults": rows}))
    sys.exit(f"not as it should be: {', '.join(BAD)}" if BAD else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
