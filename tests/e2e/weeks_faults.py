"""What goes wrong in a week, and what a person does about it: only what the fault itself asks for.

In: a `World`, a flow run that has begun, or none before it begins. Out: faults by name. One that the product bridges
has no sentence; any other ends the run with its sentence, and after the person's deed the next schedule goes on.
"""

import errno
import os
import random
import shutil
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from huggingface_hub import CommitOperationAdd, HfApi
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import StateType

from tests.e2e.cluster import Cluster, kill_tree, until
from tests.e2e.whole import client_of
from tests.hub_server import LocalHub
from tests.restartable import RestartableServer

AWAY = 30.0
"""Seconds without the environment: longer than the grace of a stage that holds a device, shorter than the patience."""
CREDIT = 20
"""Answers for which an account that runs empty has credit."""
STEP = 120
"""Seconds by which a clock is wrong. From 240 on a live run counts as silent and is begun a second time."""
ENDS = 600.0
"""Seconds within which a run must get to its fault, and within which it must end then."""
SPACE = "team/words"
MIDDLE = {"sft": "sft-*/checkpoint-*/trainer_state.json", "grpo": "grpo-*/checkpoint-*/trainer_state.json"}
"""Files of a stage's scratch folder that show it in its middle."""


class SpaceServer(RestartableServer):
    """The Space: a commit is a repository's and a server's. A broken one fails in its tool, not in its reset."""

    WHOLE = RestartableServer.CODE
    BROKEN = WHOLE.replace(
        "app = ",
        "ReasoningGymEnvironment.step = lambda self, *a, **k: (_ for _ in ()).throw(KeyError('answr'));app = ",
    )

    def deploy(self, hub: LocalHub, broken: bool) -> None:
        """A new commit: the Space restarts with it."""
        api = HfApi(endpoint=hub.url, token="write")
        text = f"{'broken' if broken else 'whole'} {time.time_ns()}".encode()
        change = CommitOperationAdd("README.md", text)
        api.create_commit(SPACE, [change], commit_message="a change", repo_type="space")
        self.kill()
        self.CODE = self.BROKEN if broken else self.WHOLE
        self.start()


class World(NamedTuple):
    """What a week needs that is not the product."""

    cluster: Cluster
    space: SpaceServer
    hub: LocalHub
    teacher: Path
    """Folder of the teacher's endpoint: its `mode` and what it was `asked`."""
    token: Path
    """The file that holds the Hub's token on the workers' machines."""
    draw: random.Random
    run: UUID | None = None
    """This week's run, once it has begun."""

    def answered(self) -> int:
        requests = self.teacher / "asked.jsonl"
        return requests.read_text().count('"answered": true') if requests.exists() else 0

    def say(self, mode: str) -> None:
        """What the teacher's endpoint does from now on."""
        beside = self.teacher / "mode.beside"
        beside.write_text(mode)
        os.replace(beside, self.teacher / "mode")

    def reaches(self, stage: str) -> None:
        """Waits until a stage that has begun since is in its middle, for as long as this week's run goes on."""
        scratch = self.cluster.store / ".scratch"
        before = {path: path.stat().st_mtime_ns for path in scratch.glob(MIDDLE[stage])}
        looked = time.monotonic()

        def has_saved() -> bool:
            nonlocal looked
            if time.monotonic() > looked + 2:
                self._goes_on(stage)
                looked = time.monotonic()
            changed = {path: _changed(path) for path in scratch.glob(MIDDLE[stage])}
            return any(at and at != before.get(path) for path, at in changed.items())

        until(f"{stage} is in its middle", has_saved, ENDS, every=0.02)
        running = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING]))
        wanted = FlowRunFilter(state=running, tags=FlowRunFilterTags(all_=[stage]))
        assert client_of(self.cluster).read_flow_runs(flow_run_filter=wanted), f"{stage} was over too soon"

    def _goes_on(self, stage: str) -> None:
        assert self.run is not None
        state = client_of(self.cluster).read_flow_run(self.run).state
        assert not state.is_final(), f"it ended without having been in the middle of {stage}: {state}"


def _changed(path: Path) -> int:
    """When a file that is not empty was changed; 0 where it is empty, or gone meanwhile."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0
    return found.st_mtime_ns if found.st_size else 0


class Fault(NamedTuple):
    """A fault of one week.

    Attributes:
        before: What happens between the run before and this week's; None for nothing.
        during: What happens once this week's run has begun.
        sentence: With which the run must end; empty if it must be done in spite of the fault.
        mend: What a person does then, and no more.
        begins_again: Whether a stage dies of it and has to be begun again.
    """

    name: str
    before: Callable[[World], None] | None = None
    during: Callable[[World], None] | None = None
    sentence: str = ""
    mend: Callable[[World], None] | None = None
    begins_again: bool = False


def environment_away(world: World) -> None:
    world.reaches(world.draw.choice(["sft", "grpo"]))
    world.space.kill()
    time.sleep(AWAY)  # the length of the outage, not a wait for something
    world.space.start()


def account_runs_empty(world: World) -> None:
    world.say(f"credit {CREDIT}")


def topped_up(world: World) -> None:
    world.say("ok")


def worker_killed_in_sft(world: World) -> None:
    """The worker alone, as by the kernel for its memory: its stage goes on without it."""
    world.reaches("sft")
    worker = world.cluster.workers["a100-worker"]
    worker.kill()
    worker.wait()
    world.cluster.start_worker("a100", "a100-worker")


def worker_killed_in_grpo(world: World) -> None:
    """The worker with its stage, as by a machine that goes down: found by the heartbeats that stop."""
    world.reaches("grpo")
    kill_tree(world.cluster.workers["a100-worker"])
    world.cluster.start_worker("a100", "a100-worker")


def server_restarted(world: World) -> None:
    world.reaches(world.draw.choice(["sft", "grpo"]))
    world.cluster.kill_server()
    world.cluster.start_server()


def disk_full(world: World) -> None:
    world.reaches("sft")
    block = bytes(2**20)
    with (world.cluster.store / "ballast").open("wb", buffering=0) as file:
        try:
            while file.write(block):
                pass
        except OSError as full:
            if full.errno != errno.ENOSPC:
                raise


def disk_freed(world: World) -> None:
    (world.cluster.store / "ballast").unlink()


def hub_is_busy(world: World) -> None:
    world.hub.fail({"match": "", "do": 429, "times": world.draw.randint(8, 16)})


def space_breaks(world: World) -> None:
    world.space.deploy(world.hub, broken=True)


def space_mended(world: World) -> None:
    world.space.deploy(world.hub, broken=False)


def token_expires(world: World) -> None:
    world.hub.fail({"match": "", "do": 401})


def token_renewed(world: World) -> None:
    world.hub.fail()
    world.token.write_text(f"write-{world.draw.randrange(10**6)}")


def clock_stepped(world: World) -> None:
    """The workers' machine runs ahead, and is set right in mid-training: a step forward and one back."""
    set_clock(world.cluster, STEP)
    world.reaches("grpo")
    set_clock(world.cluster, 0)


def set_clock(cluster: Cluster, seconds: int) -> None:
    """In place: processes have the file in their memory."""
    clock = cluster.folder / "clock"
    clock.touch()
    with clock.open("r+b") as file:
        file.write(struct.pack("q", seconds))


def clock_of(cluster: Cluster) -> dict[str, str]:
    """Variables by which a process has the clock of `set_clock`; see clock.c."""
    library = cluster.folder / "clock.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, Path(__file__).with_name("clock.c")], check=True)
    return {"LD_PRELOAD": str(library), "WRONG_CLOCK": str(cluster.folder / "clock")}


CLOCK, DISK = "clock stepped", "disk full"
FAULTS = {
    fault.name: fault
    for fault in (
        Fault("environment away", during=environment_away),
        Fault("account empty", account_runs_empty, sentence="Insufficient credits", mend=topped_up),
        Fault("worker killed in SFT", during=worker_killed_in_sft),
        Fault("worker killed in GRPO", during=worker_killed_in_grpo, begins_again=True),
        Fault("server restarted", during=server_restarted),
        Fault(DISK, during=disk_full, sentence="No space left on device", mend=disk_freed),
        Fault("Hub's 429", during=hub_is_busy),
        Fault("Space breaks a tool", space_breaks, sentence="does not work for", mend=space_mended),
        Fault("token expired", token_expires, sentence="it is wrong, or it has expired", mend=token_renewed),
        Fault(CLOCK, during=clock_stepped),
    )
}


def possible() -> dict[str, str]:
    """The faults that this machine cannot have, each with the reason."""
    missing = {}
    if shutil.which("cc") is None:
        missing[CLOCK] = "a C compiler is needed to give some processes another clock than the machine's"
    if os.geteuid() or subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL).returncode:
        missing[DISK] = "only root mounts a small disk"
    return missing
