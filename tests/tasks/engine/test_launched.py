"""How a training's processes are begun, shown and judged, with small scripts and stand-ins in their place."""

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import accelerate.state
import accelerate.utils
import pytest
import torch
import yaml

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.serving.child import child_command
from apprentice.envs.wire.metrics import counted
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.engine import launched, processes
from apprentice.tasks.engine.processes import Job, ProcessResult, launch_command, on_processes
from apprentice.tasks.engine.run import StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.models import accelerate_internals
from apprentice.tasks.models.accelerate_internals import shard_on_cpu, shards_on_cpu
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import ProcessDied, Stop
from apprentice.tasks.settings.grpo_settings import GrpoSpec, HeldOut
from apprentice.tasks.settings.sft_settings import SftSpec
from apprentice.tasks.settings.training import LoraSpec, TrainerSpec
from tests.tasks.engine.ranked import ranked

PLAIN = {"batch_size": 1, "gradient_accumulation": 1, "learning_rate": 1.0, "scheduler": "constant"}
TWO = TrainerSpec(**PLAIN, processes=2)
SHARDED = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "FSDP", "mixed_precision": "no", "debug": False}


class Unsendable(Exception):
    def __reduce__(self) -> Any:
        raise TypeError


# --- the job ---------------------------------------------------------------------------------------------------------


def test_one_process_is_this_one_and_more_get_a_job_of_their_own(
    context: StageContext, chain_sum: EnvironmentSpec, monkeypatch: pytest.MonkeyPatch
):
    one = TWO.model_copy(update={"processes": 1})
    assert on_processes(one, lambda *given: {"given": given}, context, 3) == {"given": (context, 3)}
    folder = context.scratch / "processes"
    folder.mkdir()
    (folder / "outcome-9").write_text("of an interrupted training")
    ran: list[Any] = []
    context.run.trackio, context.run.report_to = "trackio", ["wandb"]  # type: ignore[assignment]

    def run(config: Path, spec: TrainerSpec, folder: Path) -> None:
        ran.append((config, spec, pickle.loads((folder / "job").read_bytes())))
        for rank, returned in enumerate(({"rows": 1}, {})):
            (folder / f"outcome-{rank}").write_bytes(pickle.dumps(ProcessResult(returned, None, None, {"episodes": 1})))
        (folder / "log").touch()

    monkeypatch.setattr(processes, "_run", run)
    with counted() as counts:
        assert on_processes(TWO, ranked, context, chain_sum, "word") == {"rows": 1}
    assert counts == {"episodes": 2}
    assert folder.stat().st_mode & 0o777 == 0o700
    ((config, spec, job),) = ran
    assert (spec, config) == (TWO, context.scratch / "accelerate.yaml")
    assert (job.body, job.given) == (ranked, (chain_sum, "word"))
    assert job.stage == (context.key, context.out, context.scratch)
    assert set(job.run) == {"store", "servers", "trackio", "report_to", "trusted"}
    assert (job.run["trackio"], job.run["report_to"]) == ("trackio", ["wandb"])
    assert job.run["store"].root == context.run.store.root
    assert job.run["servers"].environment("reasoning_gym") == context.run.servers.environment("reasoning_gym")
    written = yaml.safe_load(config.read_text())
    assert (written["distributed_type"], written["use_cpu"], written["mixed_precision"]) == ("MULTI_GPU", True, "no")


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Path]:
    def write(word: str) -> Path:
        run = {"store": LocalStore(tmp_path / "store", "toy"), "servers": StandingServers({}, None)}
        path = tmp_path / "job"
        path.write_bytes(pickle.dumps(Job(ranked, (word,), run, ("the key", tmp_path, tmp_path))))
        return path

    return write


@pytest.mark.parametrize("rank", ["0", "1"])
@pytest.mark.parametrize("is_first_machine", [True, False])
@pytest.mark.parametrize("word", ["go", "stop"])
def test_each_process_leaves_how_it_ended_and_only_the_first_one_speaks_and_returns(
    rank: str, is_first_machine: bool, word: str, job: Any, tmp_path: Path
):
    here, there = Pipe()
    machine = {"APPRENTICE_FIRST_MACHINE": "1"} if is_first_machine else {}
    with there:
        process = subprocess.Popen(
            child_command("apprentice.tasks.engine.launched", str(job(word))),
            stdin=there.fileno(),
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | machine | {"RANK": rank},
        )
    _, log = process.communicate(timeout=60)
    assert (process.returncode, "Stop: It cannot be done." in log) == ((1, True) if word == "stop" else (0, False)), log
    assert [each.name for each in tmp_path.glob("outcome-*")] == [f"outcome-{rank}"]
    assert not list(tmp_path.glob("half-*"))
    outcome = pickle.loads((tmp_path / f"outcome-{rank}").read_bytes())
    whole = {"rank": rank, "key": "the key", "store": "toy"} if rank == "0" and word == "go" else {}
    assert (outcome.returned, outcome.counts) == (whole, {"episodes": 2})
    assert (str(outcome.error).partition("\n")[0], str(outcome.cause)) == (
        ("It cannot be done.", "why") if word == "stop" else ("None", "None")
    )
    sent = []
    with here, suppress(EOFError):
        while True:
            sent.append(here.recv())
    assert sent == ([("warn", f"{word} {rank}")] if rank == "0" and is_first_machine else [])


def test_a_process_of_the_first_machine_ends_with_its_parent(job: Any, tmp_path: Path):
    here, there = Pipe()
    with there:
        process = subprocess.Popen(
            child_command("apprentice.tasks.engine.launched", str(job("wait"))),
            stdin=there.fileno(),
            env=os.environ | {"APPRENTICE_FIRST_MACHINE": "1", "RANK": "0"},
        )
    assert here.recv() == ("warn", "wait 0"), "its body has begun"
    here.close()
    process.wait(timeout=60)
    assert not list(tmp_path.glob("outcome-*"))


def test_an_error_that_cannot_be_sent_is_sent_in_words():
    assert launched._portable(None) is None
    assert isinstance(launched._portable(ValueError("why")), ValueError)
    assert str(launched._portable(Unsendable("why"))) == "Unsendable: why"


# --- the launcher ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machines", "machine", "rank"),
    [
        (None, None, ["--main_process_port", "0"]),
        (1, None, ["--main_process_port", "0"]),
        (2, None, ["--machine_rank", "0"]),
        (2, "N", ["--machine_rank", "N"]),
    ],
)
def test_the_launcher_gets_the_configuration_and_on_several_machines_its_rank(
    machines: int | None, machine: str | None, rank: list[str], tmp_path: Path
):
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({} if machines is None else {"num_machines": machines}))
    launch = child_command("accelerate.commands.launch", "--config_file", str(config))
    python, *run = child_command("apprentice.tasks.engine.launched", "job")
    rest = ["--no_python", python, "-u", *run]
    assert launch_command(config, 4, Path("job"), machine) == [*launch, "--num_processes", "4", *rank, *rest]


SPEAKS = """
import os, sys, time
from multiprocessing.connection import Connection
to = Connection(os.dup(0))
print("into the log", os.environ["APPRENTICE_FIRST_MACHINE"], os.getsid(0) == os.getpid())
to.send(("warn", "first"))
to.send(("warn", "second"))
"""
DEAF = SPEAKS + "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); to.send(('stop',)); time.sleep(60)"


def test_what_the_processes_say_is_said_here_and_what_they_print_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    said: list[Any] = []
    monkeypatch.setattr(announce, "warn", said.append)
    monkeypatch.setattr(processes, "launch_command", lambda *_: [sys.executable, "-c", SPEAKS])
    processes._run(tmp_path / "config", TWO, tmp_path)
    assert said == ["first", "second"]
    assert (tmp_path / "log").read_text() == "into the log 1 True\n"
    calls: list[Any] = []

    def command(*given: Any) -> list[str]:
        calls.append(given)
        return [sys.executable, "-c", "pass", "--machine_rank", given[-1] if len(given) > 3 else "0"]

    monkeypatch.setattr(processes, "launch_command", command)
    processes._run(tmp_path / "config", TWO, tmp_path)
    assert calls == [(tmp_path / "config", 2, tmp_path / "job"), (tmp_path / "config", 2, tmp_path / "job", "N")]
    assert said[-1].startswith("On each of the other machines")
    assert said[-1].endswith("-c pass --machine_rank N")


def test_processes_that_do_not_end_when_told_to_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(announce, "warn", lambda _: None)
    monkeypatch.setattr(announce, "stop", stop, raising=False)
    monkeypatch.setattr(processes, "TO_END", 0.1)
    monkeypatch.setattr(processes, "launch_command", lambda *_: [sys.executable, "-c", DEAF])
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        processes._run(tmp_path / "config", TWO, tmp_path)
    assert time.monotonic() - began < 30


# --- how they ended --------------------------------------------------------------------------------------------------

WENT_WELL = ProcessResult({"rows": 1}, None, None, {})
BROKE = ProcessResult({}, ConnectionError("the other end is gone"), None, {"episodes": 1})
STOPPED = ProcessResult({}, Stop("It cannot be done.", "Leave it."), ValueError("why"), {"episodes": 2})


@pytest.mark.parametrize(
    ("outcomes", "log", "raised", "words"),
    [
        ([WENT_WELL, ProcessResult({}, None, None, {})], "", None, ""),
        ([ProcessResult({}, None, None, {}), WENT_WELL], "Signal 9 (SIGKILL)", None, ""),
        ([BROKE, STOPPED], "Signal 9 (SIGKILL)", Stop, "It cannot be done"),
        ([BROKE, WENT_WELL], "", ConnectionError, "the other end is gone"),
        ([BROKE, WENT_WELL], "Signal 9 (SIGKILL)\nlast line", ProcessDied, "last line"),
        ([BROKE, WENT_WELL], "Signal 9 (SIGKILL)" + "\n" * 21, ConnectionError, "gone"),
        ([], "\n".join(map(str, range(30))), ProcessDied, r"(?s):\n10\n.*29$"),
        ([ProcessResult({}, None, None, {})], "", ProcessDied, "without a result"),
    ],
)
def test_a_stop_says_most_then_that_a_process_was_killed(
    outcomes: list[ProcessResult], log: str, raised: type[BaseException] | None, words: str, tmp_path: Path
):
    path = tmp_path / "log"
    path.write_text(log)
    with counted() as counts:
        if raised is None:
            assert processes._judged(outcomes, path) == {"rows": 1}
        else:
            with pytest.raises(raised, match=words) as ended:
                processes._judged(outcomes, path)
            assert raised is not Stop or str(ended.value.__cause__) == "why"
    assert counts.get("episodes", 0) == sum(each.counts.get("episodes", 0) for each in outcomes)


# --- the configuration -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "gpus", "spec", "refusal"),
    [
        (None, 0, TWO, "There is no accelerate configuration"),
        ("- what\n", 0, TWO, "is no configuration of accelerate"),
        (
            SHARDED | {"fsdp_config": {"fsdp_version": 2}},
            0,
            TWO,
            r"shards the model over GPUs \(FSDP\), and here is none",
        ),
        (SHARDED | {"fsdp_config": {"fsdp_version": 2}, "use_cpu": True}, 0, TWO, ""),
        (SHARDED | {"fsdp_config": {"fsdp_version": 1}, "use_cpu": True}, 0, TWO, "over GPUs"),
        (SHARDED | {"distributed_type": "DEEPSPEED"}, 2, TWO, "wants DeepSpeed, which is not installed"),
        (SHARDED, 2, TWO, ""),
        (SHARDED, 1, TWO, "2 processes want a GPU each on this machine, and it has 1"),
        (SHARDED | {"num_machines": 2}, 1, TWO, ""),
        (SHARDED | {"num_machines": 2}, 1, TrainerSpec(**PLAIN, processes=4), "2 processes want a GPU each"),
        (SHARDED | {"use_cpu": True, "distributed_type": "MULTI_CPU"}, 1, TWO, ""),
        (SHARDED | {"distributed_type": "MULTI_GPU"}, 0, TWO, ""),
        (SHARDED, 4, GrpoSpec(processes=4, held_out=HeldOut(questions=16)), "grpo.held_out loads the best step's"),
        (SHARDED, 4, GrpoSpec(processes=4, held_out=HeldOut(questions=0)), ""),
        (SHARDED, 4, SftSpec(processes=4, held_out=0.1), "sft.held_out loads the best epoch's weights"),
        (SHARDED, 4, SftSpec(processes=4, held_out=0.0), ""),
        (SHARDED, 4, SftSpec(processes=4, held_out=0.0, lora=LoraSpec()), "adapters are merged"),
        (SHARDED | {"distributed_type": "MULTI_GPU"}, 4, SftSpec(processes=4, lora=LoraSpec()), ""),
    ],
)
def test_what_a_configuration_wants_and_this_machine_or_a_sharded_model_has_not_is_told_up_front(
    given: Any, gpus: int, spec: TrainerSpec, refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "config.yaml"
    if given is not None:
        path.write_text(given if isinstance(given, str) else yaml.safe_dump(given))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(accelerate.utils, "is_deepspeed_available", lambda: False)
    spec = spec.model_copy(update={"accelerate_config": path})
    if not refusal:
        assert processes._configured(spec, tmp_path / "own.yaml") == path
        return
    with pytest.raises(Stop, match=refusal):
        processes._configured(spec, tmp_path / "own.yaml")


@pytest.mark.parametrize(
    ("use_cpu", "deepspeed", "fsdp", "shards"),
    [
        (True, {}, {"fsdp_version": 2}, True),
        (True, {}, {"fsdp_version": 1}, False),
        (True, {"zero_stage": 3}, None, True),
        (False, {"zero_stage": 3}, {"fsdp_version": 2}, False),
        (True, {}, None, False),
    ],
)
def test_a_trial_on_the_cpu_is_of_fsdp2_or_deepspeed(use_cpu: bool, deepspeed: Any, fsdp: Any, shards: bool):
    assert shards_on_cpu(SimpleNamespace(use_cpu=use_cpu, deepspeed_config=deepspeed, fsdp_config=fsdp)) is shards


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("requested", ["ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", ""])
@pytest.mark.parametrize("on_cpu", [True, False])
def test_accelerate_shards_on_the_cpu_where_it_is_asked_to(
    precision: str, requested: str, on_cpu: bool, monkeypatch: pytest.MonkeyPatch
):
    kinds = accelerate.state.DistributedType
    starts, set_to, shared = [], [], {}

    class State:
        def __init__(self, *given: Any, **named: Any):
            starts.append((given, named))
            self.distributed_type = kinds.MULTI_CPU if on_cpu else kinds.MULTI_GPU
            self.mixed_precision = precision

    monkeypatch.setattr(accelerate.state, "AcceleratorState", State)
    monkeypatch.setattr(accelerate.state, "PartialState", SimpleNamespace(_shared_state=shared))
    monkeypatch.setattr(accelerate_internals, "_use_deepspeed", lambda state, plugin: set_to.append(plugin))
    for name in ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"):
        monkeypatch.setenv(name, str(name == requested).lower())
    shard_on_cpu()
    plugin = SimpleNamespace(set_mixed_precision=set_to.append)
    named = {"deepspeed_plugin" if "DEEPSPEED" in requested else "fsdp_plugin": plugin}
    state: Any = State(1, cpu=True, **named)
    both = {"fsdp_plugin": None, "deepspeed_plugin": None} if requested else {}
    assert starts == [((1,), {"cpu": True} | both | named)]
    if not (requested and on_cpu):
        assert (set_to, shared) == ([], {})
        return
    kind = kinds.DEEPSPEED if "DEEPSPEED" in requested else kinds.FSDP
    assert state.distributed_type == shared["distributed_type"] == kind
    assert set_to == ([plugin] if kind == kinds.DEEPSPEED else [precision] if precision != "no" else [])
    assert kind == kinds.DEEPSPEED or state.fsdp_plugin is plugin


def test_deepspeed_takes_over_precision_and_the_communication(monkeypatch: pytest.MonkeyPatch):
    starts, settings = [], []
    comm = SimpleNamespace(init_distributed=lambda **how: starts.append(how))
    monkeypatch.setitem(sys.modules, "deepspeed", SimpleNamespace(comm=comm))
    plugin = SimpleNamespace(set_mixed_precision=settings.append, select=lambda **how: settings.append(how))
    state = SimpleNamespace(backend="gloo", mixed_precision="bf16", _mixed_precision="bf16")
    accelerate_internals._use_deepspeed(state, plugin)
    assert starts == [{"dist_backend": "gloo", "auto_mpi_discovery": False}]
    assert settings == ["bf16", {"_from_accelerator_state": True}]
    assert (state._mixed_precision, state.deepspeed_plugins) == ("no", plugin)
