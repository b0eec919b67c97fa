"""Runs a training as several processes, one a device, on this machine or on several.

In: a stage's body and its arguments. Out: what the body returned in the first process.
`accelerate launch` starts them under torch's elastic launch: a process that fails ends all of them, and none is started
again. Ours is what that does not bring back: errors as they were raised, and what the first process shows (its bar, its
warnings), which is shown here, where the run's terminal and Prefect are. The processes end, too, when this one does.
https://huggingface.co/docs/accelerate/basic_tutorials/launch
"""

import os
import pickle
import shlex
import shutil
import stat
import subprocess
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Concatenate, NamedTuple, ParamSpec

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.serving.child import child_command
from apprentice.envs.wire.metrics import Counted, count
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Artifact
from apprentice.tasks.engine.run import StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.models.accelerate_internals import shards_on_cpu
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.broken_packages import imported
from apprentice.tasks.reporting.errors import ProcessDied, Stop
from apprentice.tasks.settings.training import TrainerSpec

OF_A_LAUNCHER = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "NODE_RANK"),
    *("MASTER_ADDR", "MASTER_PORT", "FORK_LAUNCHED"),
)
"""Variables by which torchrun, MPI and accelerate tell a process that it is one of several, and how it trains."""
BEGINNINGS = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "MEGATRON_LM_", "TORCHELASTIC_", "OMPI_COMM_WORLD_")
BEGINNINGS += ("PMI_", "MV2_COMM_WORLD_")
"""What the names of others begin with."""
TO_END = 20.0
"""Seconds that the processes have to end by themselves, before they are killed."""


def forget_launcher() -> None:
    """Removes what the shell says of other processes and of how to train: the recipe says it, and says so once.

    Else a training would wait for processes that nobody starts, or compute in fp16.
    """
    found = [name for name in os.environ if name in OF_A_LAUNCHER or name.startswith(BEGINNINGS)]
    for name in found:
        del os.environ[name]
    found = [name for name in found if not name.startswith("ACCELERATE_DYNAMO_")]  # transformers sets it, too
    if found:
        announce.say(
            f"Ignored, because the recipe decides how to train (`processes`, `accelerate_config`, `bf16`): "
            f"{', '.join(sorted(found))}."
        )


P = ParamSpec("P")
KILLED = "Signal 9 (SIGKILL)"
"""What torch's launcher reports of a process that was killed."""


class Job(NamedTuple):
    """What every process gets. `run`: the arguments of its RunContext; `stage`: key, out and scratch."""

    body: Callable[..., dict[str, Any]]
    given: tuple[Any, ...]
    run: dict[str, Any]
    stage: tuple[str, Path, Path]


class ProcessResult(NamedTuple):
    """How a process ended, in a file beside the job's."""

    returned: dict[str, Any]
    error: BaseException | None
    cause: BaseException | None
    counts: dict[Counted, float]


def on_processes(
    spec: TrainerSpec, body: Callable[Concatenate[StageContext, P], dict[str, Any]], context: StageContext, *given: Any
) -> dict[str, Any]:
    """`body(context, *given)`, in this process or in `spec.processes` new ones.

    Raises what the body raises in any of them; Stop where they cannot be had here; ProcessDied.
    """
    forget_launcher()
    if spec.processes == 1:
        return body(context, *given)  # type: ignore[call-arg]
    config = _configured(spec, context.scratch / "accelerate.yaml")
    folder = context.scratch / "processes"
    shutil.rmtree(folder, ignore_errors=True)  # how an interrupted training ended
    folder.mkdir(mode=0o770)  # the job may name private servers
    if not folder.stat().st_mode & stat.S_IWGRP:  # else the store is a group's, who may resume this
        folder.chmod(0o700)
    (folder / "job").write_bytes(pickle.dumps(_job(body, context, given)))
    _run(config, spec, folder)
    outcomes = [pickle.loads(path.read_bytes()) for path in sorted(folder.glob("outcome-*"))]
    return _judged(outcomes, folder / "log")


def check_processes(spec: TrainerSpec) -> None:
    """Raises Stop if the section's processes cannot be had on this machine, before anything is bought."""
    forget_launcher()
    if spec.processes > 1:
        with TemporaryDirectory() as folder:
            _configured(spec, Path(folder) / "accelerate.yaml")


def _job(body: Callable[..., Any], context: StageContext, given: tuple[Any, ...]) -> Job:
    """With everything here that the processes need: artifacts in the folder, the environment's server running."""
    run = context.run
    for each in given:
        if isinstance(each, Artifact):
            context.fetch(each)
    names = [each.name for each in given if isinstance(each, EnvironmentSpec)]
    servers = StandingServers({name: run.servers.environment(name) for name in names}, None)
    shared = {"store": LocalStore(run.store.root, run.store.project), "servers": servers}
    shared |= {"trackio": run.trackio, "report_to": run.report_to, "trusted": run.trusted}
    return Job(body, given, shared, (context.key, context.out, context.scratch))


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
        raise Stop(f"{path} wants DeepSpeed, which is not installed.", "pip install 'openenv-apprentice[deepspeed]'")
    if kind == "DEEPSPEED":
        imported("deepspeed", str(path), "openenv-apprentice[deepspeed]")
    if kind in ("DEEPSPEED", "FSDP") and not torch.cuda.is_available() and not shards_on_cpu(config):
        raise Stop(
            f"{path} shards the model over GPUs ({kind}), and here is none.",
            "Run this stage where GPUs are, or try it on the CPU with deployments/accelerate/fsdp2-cpu.yaml.",
        )
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
    if spec.chooses_weights is not None:
        uses, remedy = spec.chooses_weights
        raise Stop(f"{config} shards the model ({kind}), and {uses}.", remedy)
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
    launch = child_command("accelerate.commands.launch", "--config_file", str(config))
    python, *run = child_command("apprentice.tasks.engine.launched", str(job))
    return [*launch, "--num_processes", str(processes), *rank, "--no_python", python, "-u", *run]


def _run(config: Path, spec: TrainerSpec, folder: Path) -> None:
    """Starts the processes and shows what the first one shows, until all have ended, or this is interrupted."""
    command = launch_command(config, spec.processes, folder / "job")
    if "--machine_rank" in command:
        others = shlex.join(launch_command(config, spec.processes, folder / "job", "N"))
        announce.warn(f"On each of the other machines, which see the same store, with N = 1, 2, …:\n  {others}")
    here, there = Pipe()
    with (folder / "log").open("wb") as log, there:
        process = subprocess.Popen(
            command,
            stdin=there.fileno(),  # the processes inherit it: they write to it, and it ends when we do
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is ours to handle
            env={**os.environ, "APPRENTICE_FIRST_MACHINE": "1"},
        )
    try:
        with announce.relaying() as show:
            while process.poll() is None or here.poll():
                if here.poll(0.2):
                    try:
                        message = here.recv()
                    except (EOFError, OSError):  # all have ended, perhaps amid a message
                        break
                    show(*message)
    finally:
        here.close()
        process.terminate()
        try:
            process.wait(timeout=TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _judged(outcomes: list[ProcessResult], log: Path) -> dict[str, Any]:
    """What the first process returned. Raises what ended them: a Stop says most, then that one was killed."""
    for outcome in outcomes:
        for what, by in outcome.counts.items():
            count(what, by)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
    died = ProcessDied(f"the training's processes ended without a result; the end of {log}:\n{tail}")
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if failed:
        first = min(failed, key=lambda outcome: not isinstance(outcome.error, Stop))
        assert first.error is not None
        if KILLED in tail and not isinstance(first.error, Stop):  # what the others met was the broken connection
            raise died from first.error
        raise first.error from first.cause
    returned = next((outcome.returned for outcome in outcomes if outcome.returned), None)
    if returned is None:
        raise died
    return returned
