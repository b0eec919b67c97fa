"""A training in two processes is the same training, and ends as one."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.metrics import counted
from apprentice.envs.wire.server import EnvironmentServer, SessionLost
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.store_files import digest
from apprentice.tasks.artifacts.types import BaseStudent, KeptRollouts, LengthStats, Questions
from apprentice.tasks.engine.processes import launch_command, on_processes
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.grpo import grpo
from apprentice.tasks.questions import questions
from apprentice.tasks.reporting.errors import ProcessDied, Stop
from apprentice.tasks.settings.grpo_settings import CurriculumSpec, GrpoSpec
from apprentice.tasks.settings.sft_settings import SftSpec
from apprentice.tasks.settings.spec import BuiltStudent, SeedWindows, StudentSpec, Window
from apprentice.tasks.sft import train_sft
from apprentice.tasks.student import student
from apprentice.tasks.training.complete_checkpoints import newest_checkpoint, step_of
from apprentice.tasks.training.trainer import read_log
from tests.conftest import TASKS
from tests.tasks.bodies import (
    SPEC,
    one_after_another,
    puppets,
    second_is_killed,
    second_loses_its_server,
    second_stops,
    together,
)

pytestmark = pytest.mark.long

TWO: dict[str, Any] = {"processes": 2, "logging_steps": 1, "scheduler": "constant", "warmup_steps": 0}
TWO_SFT = SftSpec(**TWO, batch_size=4, gradient_accumulation=1, learning_rate=1e-2, epochs=1)
TWO_GRPO = GrpoSpec(
    **TWO,
    batch_size=8,
    gradient_accumulation=1,
    num_generations=4,
    learning_rate=1e-2,
    adam_epsilon=1e-5,
    max_steps=3,
    reward="exact",
)
SEED = 5
"""Of the four groups of a step, 3, 1 and 4 have a signal."""
REFILLED = TWO_GRPO.model_copy(update={"oversample": 1.75})
REFILLED_SEED = 7
"""The second step asks two further questions, then one."""

CHOSEN = REFILLED.model_copy(update={"curriculum": CurriculumSpec(by=("terms",), known={"terms 2": (9, 1)})})


class Made:
    """What a training starts from, in a store."""

    def __init__(self, work: RunContext, task: EnvironmentSpec, folder: Path):
        self.work, self.folder = work, folder
        windows = SeedWindows(
            collect=Window(start=0, size=24), grpo=Window(start=100, size=24), evaluate=Window(start=200, size=8)
        )
        self.questions = self._published(Questions, questions, task, windows, 4)
        small = BuiltStudent(hidden_size=32, intermediate_size=32, layers=1, heads=1, max_positions=512)
        self.base = self._published(BaseStudent, student, StudentSpec(build=small), task, self.questions, 0)
        rows = [json.loads(line) for line in (work.store.fetch(self.questions) / "questions.jsonl").open()]
        out = self.context("kept").out
        (out / "kept.jsonl").write_text("".join(_kept(task, row) for row in rows if row["purpose"] == "collect"))
        counts = {"episodes": 24, "kept": 24, "dropped": {}}
        self.kept = work.store.publish(KeptRollouts, "kept", out, counts, {})
        counts = {name: 1 for name in ("p50", "p95", "p99", "longest", "truncated")} | {"max_length": 512}
        out = self.context("lengths").out
        (out / "lengths.json").write_text("{}")
        self.lengths = work.store.publish(LengthStats, "lengths", out, counts, {})

    def context(self, name: str) -> StageContext:
        out, scratch = self.folder / f"{name}-out", self.folder / f"{name}-scratch"
        out.mkdir()
        scratch.mkdir()
        return StageContext(self.work, name, out, scratch)

    def _published(self, kind: Any, stage: Any, *given: Any) -> Any:
        context = self.context(kind.suffix)
        return self.work.store.publish(kind, kind.suffix, context.out, stage.body(context, *given), {})


def _kept(task: EnvironmentSpec, row: dict[str, Any]) -> str:
    from apprentice.envs.tools import tools_text
    from apprentice.tasks.episodes.episode import prompt
    from apprentice.tasks.episodes.rendering import CLOSING

    call = {"type": "function", "function": {"name": "answer", "arguments": {"answer": str(row["seed"])}}}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    instance = task.make()
    messages = [*prompt(instance, row["question"]), said, {"role": "tool", "name": "answer", "content": "OK."}, CLOSING]
    return json.dumps({"seed": row["seed"], "messages": messages, "tools": tools_text(instance.tools)}) + "\n"


@pytest.fixture(scope="module")
def made(server: EnvironmentServer, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    servers = StandingServers({"reasoning_gym": server}, None)
    return Made(RunContext(LocalStore(folder / "artifacts", "toy"), servers), TASKS["chain_sum"], folder)


class Two(NamedTuple):
    """What two processes did: a GRPO that lost its server; then new ones an SFT, a GRPO, the rest of the first, a GRPO
    that skips nothing, one that asks further questions, and one with a curriculum besides."""

    stopped: Stop
    kept: int
    """Finished steps of the newest checkpoint that the first one left."""
    returned: dict[str, Any]
    counts: dict[str, float]
    sft: StageContext
    grpo: StageContext
    resumed: StageContext
    unskipped: StageContext
    refilled: StageContext
    chosen: StageContext


@pytest.fixture(scope="module")
def two(made: Made) -> Two:
    names = ("sft", "grpo", "lost", "unskipped", "refilled", "chosen")
    sft, whole, lost, unskipped, refilled, chosen = (made.context(name) for name in names)
    given = TWO_GRPO, made.base, TASKS["chain_sum"], made.questions, SEED
    with pytest.raises(Stop) as stopped:
        on_processes(TWO_GRPO, second_loses_its_server, lost, puppets, *given)
    kept = step_of(newest_checkpoint(lost.scratch))
    all_rows = TWO_GRPO.model_copy(update={"skip_dead_groups": False}), *given[1:]
    further = REFILLED, *given[1:-1], REFILLED_SEED
    trainings = [
        (train_sft, sft, (TWO_SFT, made.base, made.kept, made.lengths, 0)),
        *((puppets, whole, given), (puppets, lost, given), (puppets, unskipped, all_rows)),
        (puppets, refilled, further),
        (puppets, chosen, (CHOSEN, *further[1:])),
    ]
    each = [(body, (at.key, at.out, at.scratch), given) for body, at, given in trainings]
    with counted() as counts:
        returned = on_processes(SPEC, one_after_another, made.context("two"), TASKS["chain_sum"], *each)
    return Two(stopped.value, kept, returned, counts, sft, whole, lost, unskipped, refilled, chosen)


def weights(context: StageContext) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(context.out / "model.safetensors")


def same_training(one: StageContext, other: StageContext, names: tuple[str, ...], steps: int) -> None:
    import torch

    logs = [json.loads((context.out / "log.json").read_text()) for context in (one, other)]
    assert [len(log) for log in logs] == [steps, steps]
    for name in names:
        other_values = [entry.get(name) for entry in logs[1]]
        assert other_values == pytest.approx([entry.get(name) for entry in logs[0]], rel=1e-3, abs=1e-6), name
    ours, other_weights = weights(one), weights(other)
    assert ours.keys() == other_weights.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, other_weights[name], rtol=1e-3, atol=1e-4)
    learned = [(context.out / "learned.jsonl").read_text() for context in (one, other)]
    assert sorted(learned[0].splitlines()) == sorted(learned[1].splitlines())


def test_sft_in_two_processes_has_the_losses_of_one(made: Made, two: Two):
    one, exclusive = made.context("one-sft"), TWO_SFT.model_copy(update={"processes": 1, "batch_size": 8})
    counts = on_processes(exclusive, train_sft, one, exclusive, made.base, made.kept, made.lengths, 0)
    assert two.returned["sft"] == counts | {"loss": pytest.approx(counts["loss"], rel=1e-5)}
    same_training(one, two.sft, ("loss", "mean_token_accuracy"), steps=3)


def test_grpo_in_two_processes_has_the_losses_of_one(made: Made, two: Two):
    one, exclusive = made.context("one-grpo"), TWO_GRPO.model_copy(update={"processes": 1, "batch_size": 16})
    with counted() as here:
        counts = on_processes(exclusive, puppets, one, exclusive, made.base, TASKS["chain_sum"], made.questions, SEED)
    assert two.returned["grpo"] == counts
    same_training(one, two.grpo, ("loss", "reward", "with_signal/entropy"), steps=3)
    rewards = [entry["reward"] for entry in json.loads((one.out / "log.json").read_text())]
    assert 0.0 < sum(rewards) < len(rewards)
    assert here["episodes"] == 48
    filled = [entry for each in (two.refilled, two.chosen) for entry in read_log(each.out)]
    further = sum(TWO_GRPO.num_generations * entry["refill/questions"] for entry in filled)
    assert two.counts["episodes"] == 48 + 16 + 48 + further, (
        "the step that was left of the other one, the one without skipping, and those with further questions"
    )


def test_two_processes_that_skip_dead_groups_learn_as_those_that_do_not(two: Two):
    """Two groups a process: where one or three in all have a signal, the processes have different numbers of rows."""
    shares = [entry["with_signal/share"] for entry in json.loads((two.grpo.out / "log.json").read_text())]
    assert 0.25 in shares, "in no step has a process nothing to learn from"
    assert 0.75 in shares, "in no step have both some, and different numbers"
    same_training(two.unskipped, two.grpo, ("loss", "reward", "grad_norm"), steps=3)


def test_two_processes_ask_the_further_questions_of_one_and_share_them(made: Made, two: Two):
    """Also an odd number of them, so that a group is played in two processes."""
    one, exclusive = made.context("one-refilled"), REFILLED.model_copy(update={"processes": 1, "batch_size": 16})
    on_processes(exclusive, puppets, one, exclusive, made.base, TASKS["chain_sum"], made.questions, REFILLED_SEED)
    metrics = ("loss", "reward", "refill/questions", "refill/dead_before", "refill/dead_after")
    same_training(one, two.refilled, metrics, steps=3)
    question_counts = [entry["refill/questions"] for entry in read_log(two.refilled.out)]
    assert any(number % 2 for number in question_counts)
    assert max(question_counts) <= REFILLED.questions_a_step


def test_two_processes_choose_the_questions_of_one(made: Made, two: Two):
    one, exclusive = made.context("one-chosen"), CHOSEN.model_copy(update={"processes": 1, "batch_size": 16})
    on_processes(exclusive, puppets, one, exclusive, made.base, TASKS["chain_sum"], made.questions, REFILLED_SEED)
    kinds = [f"curriculum/{what}/terms {terms}" for what in ("asked", "rate") for terms in (2, 3)]
    same_training(one, two.chosen, ("loss", "reward", "refill/questions", *kinds), steps=3)
    assert (two.chosen.out / "learned.jsonl").read_text() != (two.refilled.out / "learned.jsonl").read_text()


def test_both_processes_stop_and_go_on_as_one_when_one_of_them_loses_its_server(two: Two):
    assert "GRPO lost the environment: the server is away" in str(two.stopped)
    assert two.kept == 2
    assert digest(two.resumed.out, "*.safetensors") == digest(two.grpo.out, "*.safetensors")
    assert (two.resumed.out / "log.json").read_text() == (two.grpo.out / "log.json").read_text()


def test_too_few_places_for_all_processes_are_told_before_any_is_started(
    chain_sum: EnvironmentSpec, context: StageContext
):
    nothing: Any = None
    with local_server("apprentice.envs.serving.serve", "reasoning_gym", "--max-sessions", "3") as url:
        servers = StandingServers({"reasoning_gym": EnvironmentServer(url=url, patience=1.0)}, None)
        few = StageContext(RunContext(context.run.store, servers), context.key, context.out, context.scratch)
        with pytest.raises(Stop, match=r"plays 8 rollouts at once .* grants 3 sessions"):
            grpo.body(few, GrpoSpec(processes=4, batch_size=2, gradient_accumulation=1), nothing, chain_sum, nothing, 0)
    assert not list(few.scratch.iterdir())


# --- what they say, and how they end ----------------------------------------------------------------------------------


def test_what_one_process_raises_ends_all_and_is_raised_here_with_its_cause_after_what_the_first_one_said(
    context: StageContext, capfd: pytest.CaptureFixture[str]
):
    with counted() as counts, pytest.raises(Stop, match="second one is in trouble") as stopped:
        on_processes(SPEC, second_stops, context)
    assert isinstance(stopped.value.__cause__, SessionLost)
    assert counts == {"episodes": 2}
    assert "I am 0." in (said := capfd.readouterr().out)
    assert "I am 1." not in said


def test_a_process_that_is_killed_is_told_with_the_end_of_the_log(context: StageContext):
    with pytest.raises(ProcessDied, match="Signal 9"):
        on_processes(SPEC, second_is_killed, context)


def test_the_processes_end_with_the_stage_though_it_is_killed(tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "scratch").mkdir()
    stage = subprocess.Popen([sys.executable, "-m", "tests.tasks.bodies", str(tmp_path)])
    noted = [tmp_path / "scratch" / f"pid-{n}" for n in range(2)]
    _until(lambda: all(path.exists() and path.read_text() for path in noted))
    stage.kill()
    stage.wait()
    _until(lambda: not any(Path(f"/proc/{path.read_text()}").exists() for path in noted))


def test_on_several_machines_each_is_started_by_the_command_that_is_told(
    context: StageContext, tmp_path: Path, capfd: Any
):
    """Two of them, which are this one."""
    import socket
    import threading

    from accelerate.commands.config.config_args import ClusterConfig

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = tmp_path / "two-machines.yaml"
    ClusterConfig(
        compute_environment="LOCAL_MACHINE",  # type: ignore[arg-type]
        distributed_type="MULTI_GPU",  # type: ignore[arg-type]
        mixed_precision="no",
        debug=False,
        use_cpu=True,
        num_processes=2,
        num_machines=2,
        main_process_ip="127.0.0.1",
        main_process_port=port,
    ).to_yaml_file(str(config))
    job = context.scratch / "processes/job"

    def other_machine() -> None:
        _until(job.exists)
        subprocess.run(launch_command(config, 2, job, "1"), check=True)

    other = threading.Thread(target=other_machine)
    other.start()
    spec = SPEC.model_copy(update={"accelerate_config": config})
    assert on_processes(spec, together, context) == {"ranks": [0, 1]}
    other.join()
    assert "--machine_rank N" in capfd.readouterr().out


def test_processes_of_a_training_do_not_run_the_files_beside_them(
    context: StageContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for name in ("random", "datasets", "accelerate"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(9)")
    assert on_processes(SPEC, together, context) == {"ranks": [0, 1]}


def _until(condition: Any, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about"
        time.sleep(0.05)
