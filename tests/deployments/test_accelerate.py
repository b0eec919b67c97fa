"""The configurations for several GPUs are what accelerate understands, as far as that shows without one."""

from pathlib import Path
from typing import Any

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

from apprentice.tasks.engine.processes import launch_command

CONFIGS = sorted((Path(__file__).parents[2] / "deployments/accelerate").glob("*.yaml"))


def environment(config: Path) -> dict[str, str]:
    """What the processes would be told."""
    words = launch_command(config, 4, Path("job"))
    args = launch_command_parser().parse_args(words[words.index("accelerate.commands.launch") + 1 :])
    args, _, _ = _validate_launch_command(args)
    assert args.num_processes == 4
    assert args.no_python
    assert "apprentice.tasks.engine.launched" in args.training_script_args
    if args.use_deepspeed:
        args.deepspeed_fields_from_accelerate_config = ""
        return prepare_deepspeed_cmd_env(args)[1]
    assert args.use_fsdp
    return prepare_multi_gpu_env(args)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.stem)
def test_no_configuration_decides_what_the_recipe_decides(config: Path):
    """Precision and the number of processes."""
    loaded: Any = load_config_from_file(str(config))
    assert str(loaded.mixed_precision) == "no"
    assert loaded.num_processes == -1, "named in the recipe"
    assert environment(config)["ACCELERATE_MIXED_PRECISION"] == "no"


def test_fsdp2_shards_parameters_gradients_and_optimizer_and_saves_whole_weights():
    variables = environment(next(config for config in CONFIGS if config.stem == "fsdp2"))
    assert variables["ACCELERATE_USE_FSDP"] == "true"
    assert variables["FSDP_VERSION"] == "2"
    assert variables["FSDP_RESHARD_AFTER_FORWARD"] == "true"
    assert variables["FSDP_STATE_DICT_TYPE"] == "FULL_STATE_DICT"
    assert variables["FSDP_ACTIVATION_CHECKPOINTING"] == "false", (
        "the recipe's gradient_checkpointing would do it twice"
    )


def test_zero3_gathers_the_whole_weights_when_a_checkpoint_is_written():
    variables = environment(next(config for config in CONFIGS if config.stem == "zero3"))
    assert variables["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert variables["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"
    assert variables["ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL"] == "true"
