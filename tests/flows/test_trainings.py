"""What a training is made of is made before the teacher is asked a single question."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from apprentice.envs.serving.process import local_server
from apprentice.flows.preflight import Preflight
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime.servers import RunServers
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.models.checkpoints import save
from apprentice.tasks.reporting.errors import Stop
from tests.endpoint import KEY, Endpoint, call
from tests.flows.commands import BIN
from tests.hostile.endings import assert_clear
from tests.tasks.test_one_prompt import tiny_model
from tests.tokenizers import build_tokenizer

TOY = Path(__file__).parents[2] / "deployments" / "recipes" / "toy.yaml"


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    with local_server("apprentice.envs.serving.serve", "echo", "--max-sessions", "99") as url:
        yield url


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    endpoint = Endpoint([call("echo", '{"message": "hello"}')])
    yield endpoint
    endpoint.shutdown()


def recipe(endpoint: Endpoint, echo: str, *overrides: str) -> Recipe:
    teacher = f"teacher={{base_url: '{endpoint.url}', model: toy, patience: 1, timeout: 5}}"
    given = "environment={name: echo}", "guards=[]", f"server.url={echo}", teacher
    return load_recipe(TOY, [*given, *overrides])


def look(chosen: Recipe, folder: Path, trains_here: bool = True) -> None:
    with RunServers(chosen) as servers:
        work = RunContext(LocalStore(folder / "artifacts", project="toy"), servers, report_to=chosen.report_to)
        Preflight(chosen, trains_here=trains_here)(work, "questions")


NO_DECAY = "grpo.scheduler: warmup_stable_decay needs num_decay_steps"
NO_RATE = "sft.scheduler: cosine_with_min_lr needs min_lr_rate"
ROWS: dict[str, tuple[list[str], str]] = {
    "SFT's scheduler": (["sft.scheduler=cosine_with_min_lr"], NO_RATE),
    "SFT's scheduler beside another argument": (
        ["sft.scheduler=cosine_with_min_lr", "sft.args={weight_decay: 0.1}"],
        NO_RATE,
    ),
    "SFT's scheduler, where a control ends later": (
        ["sft.scheduler=cosine_with_min_lr", "sft.stop_at_token_accuracy=0.5"],
        NO_RATE,
    ),
    "GRPO's scheduler": (["grpo.scheduler=warmup_stable_decay"], NO_DECAY),
    "an optimizer's package": (["sft.args={optim: lomo}"], "lomo_optim"),
    "GRPO's optimizer's package": (["grpo.args={optim: schedule_free_adamw}"], "schedulefree"),
    "an argument of the loss": (["grpo.args={loss_type: nonsense}"], "refuses grpo.args"),
    "a layer that a built student lacks": (["sft.lora={targets: [nonsense]}"], "no layer 'nonsense'"),
    "GRPO's adapters' layer": (["grpo.lora={targets: [q_prj]}"], "Did you mean 'q_proj'?"),
    "accelerate's configuration": (["sft.processes=2", "sft.accelerate_config=/nowhere.yaml"], "/nowhere.yaml"),
    "a tracker": (["report_to=[mlflow]"], "mlflow, which is not installed"),
}


@pytest.mark.long
@pytest.mark.parametrize(("overrides", "says"), ROWS.values(), ids=ROWS)
def test_what_a_section_lacks_stops_the_run_before_the_teacher_is_asked(
    overrides: list[str], says: str, endpoint: Endpoint, echo: str, tmp_path: Path
):
    with pytest.raises(Stop) as stop:
        look(recipe(endpoint, echo, *overrides), tmp_path)
    assert says in str(stop.value)
    assert_clear(stop.value)
    assert endpoint.requests == []


def test_a_scheduler_is_looked_at_where_another_machine_trains(endpoint: Endpoint, echo: str, tmp_path: Path):
    with pytest.raises(Stop, match=NO_DECAY):
        look(recipe(endpoint, echo, "grpo.scheduler=warmup_stable_decay"), tmp_path, trains_here=False)
    other = recipe(endpoint, echo, "sft.args={optim: lomo}", "report_to=[mlflow]", "sft.processes=64")
    look(other, tmp_path, trains_here=False)
    assert len(endpoint.requests) == 1, "that machine may have the package, and as many devices"


REMEDIED = (
    ["sft.scheduler=cosine_with_min_lr", "sft.args={lr_scheduler_kwargs: {min_lr_rate: 0.1}}"],
    ["grpo.scheduler=warmup_stable_decay", "grpo.args={lr_scheduler_kwargs: {num_decay_steps: 10}}"],
    ["sft.lora={targets: [q_proj]}", "grpo.lora={}"],
)


@pytest.mark.long
@pytest.mark.parametrize("overrides", REMEDIED, ids=str)
def test_with_what_the_message_asks_for_the_teacher_is_asked(
    overrides: list[str], endpoint: Endpoint, echo: str, tmp_path: Path
):
    look(recipe(endpoint, echo, *overrides), tmp_path)
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("[]", "generation_config.json of .* cannot be loaded: TypeError"),
        ('{"max_new_tokens": -5}', "max_new_tokens` must be greater than 0"),
        ('{"cache_implementation": "none"}', "Invalid `cache_implementation`"),
        ("{no json", ""),
        ('{"temperature": 0.6, "do_sample": false}', ""),
    ],
)
def test_a_student_s_generation_settings_are_read_as_sft_will_read_them(
    settings: str, says: str, endpoint: Endpoint, echo: str, tmp_path: Path
):
    folder = tmp_path / "student"
    folder.mkdir()
    tokenizer = build_tokenizer(recipe(endpoint, echo).environment, ["a", "b"])
    save(tiny_model(tokenizer, positions=4096), tokenizer, folder)
    (folder / "generation_config.json").write_text(settings)
    chosen = recipe(endpoint, echo, f"student={{model: '{folder}'}}").with_student_pinned()
    if not says:
        look(chosen, tmp_path)
        return
    with pytest.raises(Stop, match=says):
        look(chosen, tmp_path)
    assert endpoint.requests == []


def run(folder: Path, *overrides: str, **shell: str) -> tuple[int, str, bool]:
    """Exit code and output of a whole run, and whether it collected."""
    given = [
        word
        for each in ("grpo=off", "probe.questions=0", "evaluate.questions=5", *overrides)
        for word in ("--set", each)
    ]
    own = {"PREFECT_HOME": str(folder / "prefect"), "HOME": str(folder), "COLUMNS": "220", "HF_HUB_OFFLINE": "1"}
    own["TRACKIO_DIR"] = ""  # another test of this process may have set it
    ended = subprocess.run(
        [str(BIN / "apprentice"), "run", "toy", *given],
        cwd=folder,
        env=os.environ | own | shell,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    collected = bool(list((folder / "artifacts").rglob("rollouts.jsonl")))
    return ended.returncode, " ".join((ended.stdout + ended.stderr).split()), collected


@pytest.mark.long
@pytest.mark.parametrize(
    ("package", "overrides"),
    [
        ("peft", []),  # by a library
        ("bitsandbytes", ["sft.args={optim: adamw_bnb_8bit}"]),  # by a setting
        ("mlflow", ["report_to=[mlflow]"]),  # by a reporter
    ],
)
def test_a_broken_package_is_named_by_a_whole_run_which_has_bought_nothing(
    package: str, overrides: list[str], tmp_path: Path
):
    (tmp_path / "lib" / package).mkdir(parents=True)
    (tmp_path / "lib" / package / "__init__.py").write_text("raise AttributeError('no attribute float8')")
    code, said, collected = run(tmp_path, *overrides, PYTHONPATH=str(tmp_path / "lib"))
    assert (code, collected) == (1, False)
    assert f"The package {package} is installed, and importing it fails: AttributeError: no attribute float8." in said


SHELL = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}  # torchrun
SHELL |= {"ACCELERATE_MIXED_PRECISION": "fp16", "ACCELERATE_USE_FSDP": "true"}
SHELL |= {"TRACKIO_SERVER_URL": "http://127.0.0.1:9", "TRACKIO_SPACE_ID": "others/curves"}
SAID = "WORLD_SIZE", "ACCELERATE_USE_FSDP", "TRACKIO_SERVER_URL and TRACKIO_SPACE_ID of the shell are ignored"


@pytest.mark.long
def test_what_the_shell_says_does_not_win_over_the_recipe_and_is_said(tmp_path: Path):
    code, said, _ = run(tmp_path, **SHELL)
    assert code == 0, said
    assert [said.count(each) for each in SAID] == [1] * len(SAID), said
    assert list((tmp_path / "artifacts" / "trackio").glob("toy*.db"))
