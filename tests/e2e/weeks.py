"""Four weeks that nobody watches: a round a week by schedule on two pools, a fault in each. `make e2e NAME=weeks`.

In: --seed, from which the faults and their moments are drawn, or --faults, which names them. Out: a line a run, and a
last one of JSON with the figures. Nobody touches anything but what the fault itself asks a person for.

The calendar is shortened: a week's run is put beside those that the weekly schedule has planned, for now in place of
Monday. A schedule of minutes cannot stand for one of weeks: Prefect's automations hold back what happens to a run that
was planned less than five minutes before, for a quarter of an hour, since its scheduler sends no event of the planning.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from huggingface_hub import HfApi
from prefect.client.schemas.actions import DeploymentUpdate

from apprentice.envs.serving.process import local_server
from tests.e2e.cluster import ROOT, Cluster, until
from tests.e2e.weeks_faults import (
    CLOCK,
    DISK,
    ENDS,
    FAULTS,
    SPACE,
    Fault,
    SpaceServer,
    World,
    clock_of,
    possible,
    set_clock,
)
from tests.e2e.weeks_judge import Judge, left_behind
from tests.e2e.whole import client_of, ended, scheduled, start
from tests.hub_server import LocalHub
from tests.webhook import BLOCK, receiver, save_block

WEEKS = 4
MONDAYS = "0 3 * * 1"
DISK_SIZE = "400M"
LOGS = ROOT / "build" / "weeks-logs"
"""Where a failed run's logs stay."""
TOY = str(ROOT / "deployments" / "recipes" / "toy.yaml")
RECIPE = [
    *("name=weeks", "guards=[]", "probe.questions=0", "gate.metric=mean_score", "improve.adapt=false"),
    *("improve.long_run=60", "sft.learning_rate=1.0e-2", "sft.epochs=25", "sft.checkpoint_steps=5"),
    *("grpo.max_steps=10", "grpo.checkpoint_steps=2", "windows.collect.size=60", "windows.evaluate.size=90"),
    *("store.hub.namespace=team", "store.hub.patience=120", f"server.space={SPACE}", "server.patience=180"),
    *("server.grace=8", "server.sessions=8", "teacher.scripted_error_rate=null", "teacher.model=stand-in"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--faults", nargs="+", metavar="NAME", help="in their order, in place of drawn ones")
    given = parser.parse_args()
    on_a_disk_of_its_own()
    missing, draw = possible(), random.Random(given.seed)
    names = given.faults or draw.sample(sorted(set(FAULTS) - set(missing)), WEEKS)
    print(f"seed {given.seed}: {', '.join(names)}", flush=True)
    for name, why in missing.items():
        print(f"never drawn here: {name}, since {why}", flush=True)
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="apprentice-weeks-") as folder,
        logs_kept(Path(folder), LOGS),
        weeks_of(Path(folder), names, draw) as lived,
    ):
        figures = lived.through([FAULTS[name] for name in names])
    left = left_behind(folder)
    assert not left, f"processes are left: {left}"
    figures |= {"seed": given.seed, "minutes": round((time.monotonic() - began) / 60, 1), "processes_left": len(left)}
    print(json.dumps(figures))


def on_a_disk_of_its_own() -> None:
    """Begins anew where mounts end with the process, for the disk that becomes full."""
    if DISK not in possible() and "WEEKS_OWN_MOUNTS" not in os.environ:
        os.environ["WEEKS_OWN_MOUNTS"] = "1"
        os.execvp("unshare", ["unshare", "--mount", sys.executable, "-m", "tests.e2e.weeks", *sys.argv[1:]])


@contextmanager
def logs_kept(folder: Path, where: Path) -> Iterator[None]:
    """Keeps what server, workers and database said where the weeks fail, since their folder goes."""
    shutil.rmtree(where, ignore_errors=True)
    try:
        yield
    except BaseException:
        where.mkdir(parents=True)
        for log in (*folder.glob("*/log.txt"), *folder.glob("postgres.log")):
            shutil.copy(log, where / f"{log.parent.name}.txt" if log.name == "log.txt" else where)
        print(f"the logs: {where}", flush=True)
        raise


@contextmanager
def weeks_of(folder: Path, names: list[str], draw: random.Random) -> Iterator["Weeks"]:
    """A production, and what it buys from, plays in and publishes to."""
    with ExitStack() as started:
        address, messages = started.enter_context(receiver())
        hub = LocalHub(folder / "hub")
        started.callback(hub.kill)
        space = SpaceServer()
        started.callback(space.kill)
        HfApi(endpoint=hub.url, token="write").create_repo(SPACE, repo_type="space", space_sdk="docker")
        for each in ("tmp", "teacher", "hf"):
            (folder / each).mkdir()
        (folder / "hf" / "token").write_text("write-0")
        (folder / "teacher" / "mode").write_text("ok")
        options = ("--latency-ms", "50", "--dataset", "spell_backward")
        teacher = started.enter_context(local_server("tests.faults.endpoint", str(folder / "teacher"), *options))
        cluster = Cluster(folder)
        cluster.store.mkdir()
        if DISK not in possible():
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "tmpfs", cluster.store], check=True)
            started.callback(subprocess.run, ["umount", "--lazy", cluster.store], check=True)
        cluster.env |= hub.variables(folder / "hf") | {
            "TMPDIR": str(folder / "tmp"),
            "OPENAI_API_KEY": "sk-of-the-stand-in",
        }
        del cluster.env["HF_TOKEN"]  # on the workers' machines it is in a file, where a person can renew it
        if CLOCK in names:
            set_clock(cluster, 0)
            cluster.worker_env = clock_of(cluster)
        world = World(cluster, space, hub, folder / "teacher", folder / "hf" / "token", draw)
        with cluster:
            recipe = [*RECIPE, f"server.url={space.url}", f"teacher.base_url={teacher}/v1"]
            yield Weeks(world, recipe, messages, address)


class Weeks:
    """The weeks of one deployment: what happens in them, and what is asked of them in the end."""

    def __init__(self, world: World, recipe: list[str], messages: list[str], address: str):
        self.world, self.cluster, self.messages = world, world.cluster, messages
        self._arguments = [TOY, *(part for each in recipe for part in ("--set", each))]
        self._set_up(address)
        self._judge = Judge(world, self._arguments)

    def _set_up(self, address: str) -> None:
        """What a person does once, as the README has it; the watcher looks after the Space."""
        cluster = self.cluster
        until("the server knows its blocks", lambda: save_block(client_of(cluster), address))
        cluster.run("apprentice", "setup", "--notify", BLOCK)
        cluster.run("prefect", "--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml")
        client = client_of(cluster)
        for each in client.read_deployments():
            if "retrain" in each.tags:  # other recipes, which a new commit of the Space would start
                client.delete_deployment(each.id)
        on = ("--rounds", "1", "--gpu", "a100", "--schedule", MONDAYS)
        cluster.run("apprentice", "deploy", *self._arguments, *on)
        weekly = client.read_deployment_by_name("improve/weeks")
        until("the schedule plans a run", lambda: scheduled(cluster, weekly.id))
        watched = [{"kind": "space", "repository": SPACE}]
        upstream = client.read_deployment_by_name("watch/upstream").id
        client.update_deployment(upstream, DeploymentUpdate(parameters={"repositories": watched}))
        cluster.start_worker("cpu", "cpu-worker")
        cluster.start_worker("a100", "a100-worker")

    def through(self, faults: list[Fault]) -> dict[str, Any]:
        """Lives through a week for every fault; returns the figures. Raises AssertionError."""
        rows = []
        for number, fault in enumerate(faults):
            rows += self._week(number, fault)
            self._judge.weigh()
        return self._judge.figures(rows, self.messages)

    def _week(self, number: int, fault: Fault) -> list[dict[str, Any]]:
        if fault.before is not None:
            fault.before(self.world)
        self._watch()
        runs = [self._run(number, fault)]
        if fault.sentence:
            assert runs[0]["state"] == "Failed", runs
            assert fault.sentence in runs[0]["message"], runs
            self._is_notified(runs[0], fault.sentence)
            assert fault.mend is not None
            fault.mend(self.world)
            self._watch()
            runs.append(self._run(number, Fault(f"after {fault.name}")))
        assert runs[-1]["state"] == "Completed", runs
        return runs

    def _watch(self) -> None:
        """The watcher's schedule, which is not shortened, comes to its turn."""

        def has_watched() -> bool:
            state = ended(self.cluster, start(self.cluster, "watch/upstream"))["state"]
            assert state in ("Completed", "Cancelled"), state  # cancelled: its own schedule has just begun one
            return state == "Completed"

        until("the watcher has watched", has_watched, every=1.0)

    def _run(self, number: int, fault: Fault) -> dict[str, Any]:
        """This week's run, to its end."""
        before = restarts(self.cluster)
        run = start(self.cluster, "improve/weeks")
        self._is_running(run)
        if fault.during is not None:
            fault.during(self.world._replace(run=run))
        row = {"week": number, "fault": fault.name, "run": str(run)} | ended(self.cluster, run, ENDS)
        row |= {"seconds": round(row["ended"] - row["began"]), "begun_again": restarts(self.cluster) - before}
        if (row["state"] == "Failed") != bool(fault.sentence):
            print(self.cluster.run("prefect", "flow-run", "logs", str(run)), flush=True)
        said = (row["message"] or "").partition("\n")[0][-160:]
        print(f"week {number}, {fault.name}: {row['state']} in {row['seconds']} s. {said}", flush=True)
        assert row["begun_again"] or not fault.begins_again, row
        return row

    def _is_running(self, run: UUID) -> None:
        until("it runs", lambda: client_of(self.cluster).read_flow_run(run).start_time is not None, 180.0, every=0.5)

    def _is_notified(self, run: dict[str, Any], sentence: str) -> None:
        """Whoever is told reads how it ended, and where to look."""
        link = f"{self.cluster.api.removesuffix('/api')}/runs/flow-run/{run['run']}"
        try:
            until("somebody is told", lambda: any(sentence in text and link in text for text in self.messages))
        except AssertionError:
            raise AssertionError(f"nobody is told {sentence!r} and {link}, but: {self.messages}") from None


def restarts(cluster: Cluster) -> int:
    """How often a run or a stage was begun again, of all that there are."""
    return sum(max(each.run_count - 1, 0) for each in client_of(cluster).read_flow_runs())


if __name__ == "__main__":
    main()
