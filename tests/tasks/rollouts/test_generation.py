"""Who generates is a setting: checked up front, given to TRL under its names, and safe for the weights."""

import sys
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from pydantic import ValidationError

from apprentice.envs.pool import EnvironmentPool
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.files.question_lists import TrainedQuestions
from apprentice.tasks.models.memory import Machine
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.rollouts.generation import check_generation, generation_arguments, with_engine
from apprentice.tasks.rollouts.live_rollouts import LiveRollouts
from apprentice.tasks.rollouts.question_rows import row_of
from apprentice.tasks.rollouts.rewards import EnvironmentReward
from apprentice.tasks.rollouts.rollout_modes import ROLLOUT_MODES
from apprentice.tasks.settings.generation_engine import GenerationSpec
from apprentice.tasks.settings.grpo_settings import GrpoSpec
from apprentice.tasks.settings.training import LoraSpec
from tests.tasks.test_one_prompt import tiny_model
from tests.tokenizers import build_tokenizer
from tests.vllm_stand_in import StandIn

COLOCATE = GenerationSpec(engine="vllm")
WITH_GPU = Machine(gpus=1, processes=1, notebook=False)
BATCHING = GenerationSpec(engine="continuous_batching", gpu_memory_utilization=0.05)


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a package of that name and version on Python's path."""
    import trl.generation.vllm_client  # noqa: F401 (it looks for vLLM once, when it is imported)

    def installed(version: str) -> None:
        sys.modules.pop("vllm", None)
        package = tmp_path / version / "vllm"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"__version__ = {version!r}\n")
        monkeypatch.syspath_prepend(tmp_path / version)

    yield installed
    sys.modules.pop("vllm", None)


def test_nothing_is_asked_of_the_machine_where_transformers_generates():
    bare = Machine(gpus=0, processes=1, notebook=True)
    check_generation(GenerationSpec(), bare)
    check_generation(BATCHING, bare)


def test_vllm_must_be_there_in_a_version_that_trl_takes(vllm, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as context:
        context.setitem(sys.modules, "vllm", None)
        with pytest.raises(Stop, match=r"vLLM, which is not installed.\n→ Use the image .*gpu.Dockerfile"):
            check_generation(COLOCATE, WITH_GPU)
    vllm("0.30.0")
    check_generation(COLOCATE, WITH_GPU)
    vllm("99.0.0")
    with pytest.raises(Stop, match=r"supports vLLM versions from .* You have version 99.0.0"):
        check_generation(COLOCATE, WITH_GPU)


def test_vllm_without_a_gpu_is_refused_in_both_modes(vllm):
    vllm("0.30.0")
    for mode in ("colocate", "server"):
        with pytest.raises(Stop, match=r"vLLM needs an NVIDIA GPU"):
            check_generation(GenerationSpec(engine="vllm", mode=mode), Machine(gpus=0, processes=1, notebook=False))


def test_colocation_is_refused_in_a_notebook_and_a_server_is_not(vllm):
    vllm("0.30.0")
    notebook = WITH_GPU._replace(notebook=True)
    with pytest.raises(Stop, match=r"fails in IPython and Jupyter.\n→ Start the run from a terminal"):
        check_generation(COLOCATE, notebook)
    with StandIn() as server:
        check_generation(GenerationSpec(engine="vllm", mode="server", server_base_url=server.url), notebook)


def test_a_server_that_is_away_is_told_before_a_model_is_loaded(vllm):
    vllm("0.30.0")
    with StandIn() as server:
        away = GenerationSpec(engine="vllm", mode="server", server_base_url=server.url, server_timeout=0.1)
    with pytest.raises(Stop, match="No vLLM server answered at"):
        check_generation(away, WITH_GPU)


def test_tensor_parallelism_needs_as_many_processes(vllm):
    vllm("0.30.0")
    spread = GenerationSpec(engine="vllm", tensor_parallel_size=2)
    with pytest.raises(Stop, match=r"tensor_parallel_size \(2\) does not divide .* \(1\)"):
        check_generation(spread, WITH_GPU)
    check_generation(spread, Machine(gpus=2, processes=2, notebook=False))


@pytest.mark.parametrize(
    ("spec", "arguments"),
    [
        (GenerationSpec(), {"use_vllm": False, "use_transformers_continuous_batching": False}),
        (
            BATCHING,
            {
                "use_vllm": False,
                "use_transformers_continuous_batching": True,
                "transformers_continuous_batching_config": {"max_memory_percent": 0.05},
            },
        ),
        (
            GenerationSpec(engine="vllm", gpu_memory_utilization=0.4, max_model_length=800, enable_sleep_mode=True),
            {
                "use_vllm": True,
                "vllm_mode": "colocate",
                "vllm_gpu_memory_utilization": 0.4,
                "vllm_max_model_length": 800,
                "vllm_tensor_parallel_size": 1,
                "vllm_enable_sleep_mode": True,
            },
        ),
        (COLOCATE, {"vllm_gpu_memory_utilization": 0.3, "vllm_max_model_length": None}),
        (
            GenerationSpec(engine="vllm", mode="server", server_base_url="http://there:9000", server_timeout=5),
            {
                "use_vllm": True,
                "vllm_mode": "server",
                "vllm_server_base_url": "http://there:9000",
                "vllm_server_timeout": 5.0,
                "vllm_group_port": 51216,
            },
        ),
    ],
)
def test_trl_is_told_under_its_own_names(spec: GenerationSpec, arguments: dict[str, Any], tmp_path: Path):
    from trl.trainer.grpo_config import GRPOConfig

    config = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none", **generation_arguments(spec))
    assert {name: getattr(config, name) for name in arguments} == arguments


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"generation": {"mode": "server"}}, "mode has no effect with plain .*set engine: vllm"),
        ({"generation": {"engine": "vllm", "server_timeout": 3}}, "server_timeout has no effect with vllm .colocate"),
        ({"generation": {"engine": "vllm", "max_model_length": 256}}, "must be greater than max_completion_length"),
        ({"generation": {"engine": "vllm"}, "lora": {"quantized": True}}, "leave out lora.quantized"),
        ({"generation": {"engine": "vllm", "mode": "server", "server_base_url": "there:8000"}}, "should match pattern"),
        ({"lora": {"targets": ["q_proj", "lm_head"]}}, "would never be trained"),
    ],
)
def test_settings_that_would_not_be_heeded_are_refused(settings: dict[str, Any], words: str):
    with pytest.raises(ValidationError, match=words):
        GrpoSpec.model_validate(settings)


def test_who_generates_enters_the_key_and_where_and_with_how_much_memory_does_not():
    server = GenerationSpec(engine="vllm", mode="server", group_port=51217)
    assert GrpoSpec(generation=COLOCATE).in_key() == GrpoSpec(generation=server).in_key()
    assert GrpoSpec(generation=COLOCATE).in_key() != GrpoSpec().in_key() == GrpoSpec(liger=True).in_key()
    assert GrpoSpec(generation=COLOCATE).in_record()["generation"] == {"engine": "vllm"}
    assert GrpoSpec(lora=LoraSpec()).in_key() != GrpoSpec().in_key()


# --- transformers' continuous batching, which runs on a processor, too ---------------------------------------------


@pytest.fixture(scope="module")
def tokenizer():
    from tests.conftest import TASKS

    return build_tokenizer(TASKS["chain_sum"], ["1 + 1 =", "2 + 2 ="])


def trainer_of(
    tokenizer: Any, folder: Path, engine: GenerationSpec, bf16: bool, trainer_class: Any = None, **settings: Any
) -> Any:
    """A greedy one."""
    import torch
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    torch.manual_seed(0)
    given: dict[str, Any] = {
        "train_dataset": Dataset.from_list([{"prompt": [{"role": "user", "content": "1 + 1 ="}]}] * 8),
        "reward_funcs": lambda prompts, **_: [0.0] * len(prompts),
    }
    trainer = with_engine(trainer_class or GRPOTrainer, engine, bf16)(
        model=tiny_model(tokenizer),
        processing_class=tokenizer,
        args=GRPOConfig(
            str(folder),
            report_to="none",
            use_cpu=True,
            bf16=bf16,
            max_steps=2,
            weight_decay=0.0,
            disable_tqdm=True,
            per_device_train_batch_size=4,
            num_generations=2,
            max_completion_length=8,
            chat_template_kwargs=TEMPLATE_ARGUMENTS,
            **generation_arguments(engine),
        ),
        **{**given, **settings},
    )
    trainer.generation_config.do_sample = False
    return trainer


@pytest.mark.long
def test_continuous_batching_says_greedily_what_generate_says(tokenizer, tmp_path: Path):
    prompts = [tokenizer.encode(text) for text in ("1 + 1 =", "a longer question than that, is it not?", "?", "22 - 3")]
    plain, batched = (trainer_of(tokenizer, tmp_path, engine, False) for engine in (GenerationSpec(), BATCHING))
    said = [trainer._generate_single_turn(prompts, None, {}, 1)[0] for trainer in (plain, batched)]
    assert said[0] == said[1]
    assert len({tuple(ids) for ids in said[0]}) > 1


@pytest.mark.long
@pytest.mark.parametrize("way", ROLLOUT_MODES)
def test_continuous_batching_plays_the_rollouts_that_generate_plays(way, tokenizer, chain_sum, server, tmp_path: Path):
    played = []
    for engine in (GenerationSpec(), BATCHING):
        with EnvironmentPool(chain_sum, server, size=4) as pool, LiveRollouts(pool) as rollouts:
            pool.open_all()
            rows = [row_of(way, chain_sum.make(), seed, pool.players[0].ask(seed)) for seed in (3, 3, 4, 4)]
            trainer_class, given = ROLLOUT_MODES[way](chain_sum.make(), rollouts)
            reward = EnvironmentReward(GrpoSpec(), TrainedQuestions(tmp_path / f"{engine.engine}.jsonl"), rollouts)
            settings = {**given, "reward_funcs": reward, "train_dataset": Dataset.from_list(rows)}
            trainer = trainer_of(tokenizer, tmp_path, engine, False, trainer_class, **settings)
            out = trainer._generate_and_score_completions(rows)
            played.append([out[name].tolist() for name in ("prompt_ids", "completion_ids", "completion_mask")])
            assert [environment.reward for environment in rollouts.players] == [0.0] * 4
    assert played[0] == played[1]


@pytest.mark.long
def test_continuous_batching_leaves_the_optimizers_weights_in_fp32(tokenizer, tmp_path: Path):
    """TRL rounds them to bf16 for good, and the positions' angles with them. Rewards of 0 move no weight here."""
    import torch

    trainer = trainer_of(tokenizer, tmp_path, BATCHING, bf16=True)

    def state() -> dict[str, Any]:
        return dict([*trainer.model.named_parameters(), *trainer.model.named_buffers()])

    before = {name: value.detach().clone() for name, value in state().items()}
    trainer.train()
    assert trainer.state.global_step == 2
    assert trainer.args.bf16
    assert {value.dtype for value in state().values()} == {torch.float32}
    assert all(torch.equal(state()[name], value) for name, value in before.items())


def test_what_the_engine_fails_to_generate_is_no_empty_completion(tokenizer, tmp_path: Path):
    """A cache in fp32 takes nothing that was computed in bf16: transformers logs that, and gives empty completions."""
    trainer = trainer_of(tokenizer, tmp_path, BATCHING, bf16=True)
    trainer.accelerator.prepare(trainer.model)
    trainer.args.bf16 = False  # the weights are not rounded any more, the computation still is
    with pytest.raises(RuntimeError, match="gave 0 completions for 2 prompts"):
        trainer._generate_single_turn([tokenizer.encode("1 + 1 =")] * 2, None, {}, 1)


def test_with_bf16_a_training_samples_from_rounded_weights_and_steps_whole_ones(tokenizer, tmp_path: Path):
    import torch

    trainer = trainer_of(tokenizer, tmp_path, GenerationSpec(), bf16=True)
    seen: list[set[Any]] = []
    generate = trainer.model.generate

    def noted(*given: Any, **named: Any) -> Any:
        seen.append({weight.dtype for weight in trainer.model.parameters()})
        return generate(*given, **named)

    trainer.model.generate = noted
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    assert seen
    assert all(dtypes == {torch.bfloat16} for dtypes in seen)
    assert all(torch.equal(weight, before[name]) for name, weight in trainer.model.named_parameters())


def test_a_key_of_grpo_says_that_its_samples_come_from_rounded_weights():
    batching = GenerationSpec(engine="continuous_batching")
    assert "sampled_in" not in GrpoSpec().in_key() | GrpoSpec(bf16=True, generation=batching).in_key()
    assert GrpoSpec(bf16=True).in_key()["sampled_in"] == "bf16"
