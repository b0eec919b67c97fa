"""Runs a training as several processes under accelerate: one a device, on this machine or on several.

In: a stage's body and its arguments. Out: what the body returned in the first process.
Every process runs the same body; only the first one writes. A process that fails ends all of them, and the stage fails
as it did; they end, too, when the stage's own process does, however that came. What the first one says (its bar, its
warnings) is said here, where the run's terminal and Prefect are.
https://huggingface.co/docs/accelerate/basic_tutorials/launch
"""

import os
import pickle
import queue
import secrets
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.wire.metrics import Counted, count
from apprentice.tasks.artifacts.types import Artifact
from apprentice.tasks.engine.run import StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import ProcessDied, Stop
from apprentice.tasks.settings.stages import Reporter, StudentSpec, TrackioSpec
from apprentice.tasks.settings.training import GrpoSpec, TrainerSpec

P = ParamSpec("P")
KILLED = "Signal 9 (SIGKILL)"
"""How torch's launcher tells of a process that was killed."""


class Job(NamedTuple):
    """What every process is told."""

    body: Callable[..., dict[str, Any]]
    given: tuple[Any, ...]
    key: str
    out: Path
    scratch: Path
    root: Path
    project: str
    servers: StandingServers
    trackio: TrackioSpec
    report_to: Sequence[Reporter]
    trusted: tuple[StudentSpec, ...]
    address: str
    secret: bytes


class Outcome(NamedTuple):
    """How a process ended."""

    returned: dict[str, Any]
    error: BaseException | None
    cause: BaseException | None
    counts: dict[Counted, float]


def on_processes(
    spec: TrainerSpec, body: Callable[Concatenate[StageContext, P], dict[str, Any]], context: StageContext, *given: Any
) -> dict[str, Any]:
    """`body(bench, *given)`, in this process or in `spec.processes` new ones.

    Raises what the body raises in any of them; Stop where they cannot be had here; ProcessDied.
    """
    if spec.processes == 1:
        return body(context, *given)  # type: ignore[call-arg]
    config = _configured(spec, context.scratch / "accelerate.yaml")
    with Listener(family="AF_UNIX", authkey=(secret := secrets.token_bytes(32))) as listener:
        job = context.scratch / "job.pickle"
        with open(os.open(job, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            pickle.dump(_job(body, context, given, str(listener.address), secret), file)
        with _launched(config, spec, job) as process:
            outcomes = _heard(listener, process)
    return _judged(outcomes, context.scratch / "processes.log")


def _job(body: Callable[..., Any], context: StageContext, given: tuple[Any, ...], address: str, secret: bytes) -> Job:
    """With everything here that the processes need: artifacts in the folder, the environment's server running."""
    work = context.run
    for each in given:
        if isinstance(each, Artifact):
            context.fetch(each)
    names = [each.name for each in given if isinstance(each, EnvironmentSpec)]
    servers = StandingServers({name: work.servers.environment(name) for name in names}, None)
    folders = context.out, context.scratch, work.store.root
    told = servers, work.trackio, work.report_to, work.trusted
    return Job(body, given, context.key, *folders, work.store.project, *told, address, secret)


def _configured(spec: TrainerSpec, default: Path) -> Path:
    """accelerate's configuration: the recipe's, or one for the devices of this machine. Raises Stop."""
    import torch
    from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
    from accelerate.utils import is_deepspeed_available

    if spec.accelerate_config is None:
        plain: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "mixed_precision": "no", "debug": False}
        without_gpu = not torch.cuda.is_available()
        config = ClusterConfig(distributed_type="MULTI_GPU", use_cpu=without_gpu, **plain)  # type: ignore[arg-type]
        config.to_yaml_file(str(default))
        path = default
    else:
        path = spec.accelerate_config.absolute()
        if not path.exists():
            raise Stop(f"There is no accelerate configuration at {path}.", "See deployments/accelerate/ for some.")
        try:
            config = load_config_from_file(str(path))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Stop(
                f"{path} is no configuration of accelerate: {error}", "`accelerate config` writes one."
            ) from error
    kind = str(getattr(config.distributed_type, "value", config.distributed_type))
    if kind == "DEEPSPEED" and not is_deepspeed_available():
        raise Stop(f"{path} wants DeepSpeed, which is not installed.", "pip install 'apprentice[deepspeed]'")
    if kind in ("DEEPSPEED", "FSDP") and not torch.cuda.is_available():
        raise Stop(f"{path} shards the model over GPUs ({kind}), and here is none.", "Run this stage where GPUs are.")
    if kind in ("DEEPSPEED", "FSDP"):
        _check_sharded(spec, path, kind)
    here = spec.processes // max(getattr(config, "num_machines", 1), 1)
    if torch.cuda.is_available() and not config.use_cpu and torch.cuda.device_count() < here:
        raise Stop(
            f"{here} processes want a GPU each on this machine, and it has {torch.cuda.device_count()}.",
            "Lower `processes` and raise gradient_accumulation by as much, or run on a machine with more GPUs.",
        )
    return path


def _check_sharded(spec: TrainerSpec, config: Path, kind: str) -> None:
    """Raises Stop for what would fail at the training's end: whole weights are never loaded into a sharded model."""
    if isinstance(spec, GrpoSpec) and spec.held_out.questions:
        raise Stop(
            f"{config} shards the model ({kind}), and grpo.held_out loads the best step's weights at the end.",
            "Set grpo.held_out.questions: 0; the evaluation then judges the last step.",
        )
    if spec.lora is not None:
        raise Stop(
            f"{config} shards the model ({kind}), and adapters are merged into whole weights.",
            "Leave out accelerate_config: with adapters each GPU can hold the model. Or leave out lora.",
        )


def launch_command(config: Path, processes: int, job: Path, machine: str | None = None) -> list[str]:
    """What starts the processes of one machine; `machine`: its rank, where there are several."""
    import yaml

    several = (yaml.safe_load(config.read_text()).get("num_machines") or 1) > 1
    rank = ["--machine_rank", machine or "0"] if several else ["--main_process_port", "0"]
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config)]
    return [*launch, "--num_processes", str(processes), *rank, "-m", "apprentice.tasks.engine.launched", str(job)]


@contextmanager
def _launched(config: Path, spec: TrainerSpec, job: Path) -> Iterator["subprocess.Popen[bytes]"]:
    command = launch_command(config, spec.processes, job)
    if "--machine_rank" in command:
        others = shlex.join(launch_command(config, spec.processes, job, "N"))
        announce.warn(f"On each of the other machines, which see the same store, with N = 1, 2, …:\n  {others}")
    with (job.parent / "processes.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # its end is how the processes learn that this one is gone
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is ours to handle
            env={**os.environ, "APPRENTICE_FIRST_MACHINE": "1"},
        )
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _heard(listener: Listener, process: "subprocess.Popen[bytes]") -> list[Outcome]:
    """Says what the first process says, until all have ended; returns how."""
    said: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def take(connection: Connection) -> None:
        try:
            while True:
                said.put(connection.recv())
        except (EOFError, ConnectionResetError):  # it has ended
            return

    def accept() -> None:
        while True:
            try:
                connection = listener.accept()
            except OSError:  # closed: nobody listens any more
                return
            threading.Thread(target=take, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    outcomes = []
    with announce.relaying() as step, ExitStack() as ended:
        ended.callback(listener.close)
        while process.poll() is None or not said.empty():
            try:
                message = said.get(timeout=0.2)
            except queue.Empty:
                continue
            if isinstance(message, Outcome):
                outcomes.append(message)
            else:
                step(*message)
    return outcomes


def _judged(outcomes: list[Outcome], log: Path) -> dict[str, Any]:
    for outcome in outcomes:
        for what, by in outcome.counts.items():
            count(what, by)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
    died = ProcessDied(f"the training's processes ended without a result; the end of {log}:\n{tail}")
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if failed:  # a Stop says most; the other processes may have failed because the one did
        first = min(failed, key=lambda outcome: not isinstance(outcome.error, Stop))
        assert first.error is not None
        if KILLED in tail and not isinstance(first.error, Stop):  # what the others met was the broken connection
            raise died from first.error
        raise first.error from first.cause
    returned = next((outcome.returned for outcome in outcomes if outcome.returned), None)
    if returned is None:
        raise died
    return returned
