"""Checks the further TRL arguments of a recipe, such as `sft.args` for SFTConfig.

In: names and values. Out: the same, checked against TRL's config class; an argument that has a recipe field is rejected
with that field's name. TRL takes seconds to import, so it is imported only for recipes with such arguments, and once.
"""

import dataclasses
import difflib
import inspect
import json
import re
from importlib.metadata import version
from typing import Any, ClassVar, get_type_hints

from pydantic import TypeAdapter

from apprentice.envs.defaults import kept
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import Spec

ITSELF = ""
"""For an argument that has no recipe field because other fields determine it."""
_SHARED = {
    "per_device_train_batch_size": "{section}.batch_size",
    "gradient_accumulation_steps": "{section}.gradient_accumulation",
    "lr_scheduler_type": "{section}.scheduler",
    **{name: f"{{section}}.{name}" for name in ("learning_rate", "warmup_steps", "adam_epsilon", "adam_beta2", "bf16")},
    **dict.fromkeys(("activation_checkpointing", "gradient_checkpointing"), "{section}.gradient_checkpointing"),
    "use_liger_kernel": "{section}.liger",
    "logging_steps": "{section}.logging_steps",
    "save_steps": "{section}.checkpoint_steps",
    **dict.fromkeys(
        ("fsdp", "fsdp_config", "deepspeed", "parallelism_config", "accelerator_config"), "{section}.accelerate_config"
    ),
    "seed": "seed",
    "project": "name",
    "report_to": "report_to",
    "trackio_space_id": "trackio.space_id",
    "hub_private_repo": "trackio.private",
    "output_dir": "store.path",
    **dict.fromkeys(("push_to_hub", "hub_model_id", "hub_token", "hub_strategy", "hub_revision"), "store.hub"),
    "model_init_kwargs": "student",
    "trust_remote_code": "student.trust_remote_code",
    **dict.fromkeys(("trackio_static_space_id", "run_name", "use_cpu", "disable_tqdm"), ITSELF),
    **dict.fromkeys(("logging_nan_inf_filter", "logging_strategy"), ITSELF),
    **dict.fromkeys(("save_strategy", "save_total_limit", "save_only_model", "resume_from_checkpoint"), ITSELF),
    **dict.fromkeys(("eval_strategy", "eval_steps", "per_device_eval_batch_size", "local_rank"), ITSELF),
}


class TrlSection(Spec):
    """A section of a recipe whose settings become arguments of TRL."""

    section: ClassVar[str]
    """The recipe's, by whose name the stage and its model go."""
    config: ClassVar[str]
    """TRL's class of arguments."""
    trl_fields: ClassVar[dict[str, str]]
    """The recipe's fields that set TRL's arguments, beside those that all trainings have; see `field_of`."""


def field_of(spec: type[TrlSection], name: str) -> str | None:
    """The recipe field that sets a TRL argument: ITSELF if other fields determine it, None if no field does."""
    field = (_SHARED | spec.trl_fields).get(name)
    return None if field is None else field.format(section=spec.section)


def check_arguments(spec: type[TrlSection], given: dict[str, Any]) -> None:
    """Raises ValueError for the first argument that apprentice sets, that TRL lacks, or that has the wrong type."""
    for name in given:
        field = field_of(spec, name)
        if field is not None:
            do = f"set {field}" if field else "it follows from the recipe's other fields"
            raise ValueError(f"{name} is set by apprentice; {do}")
    if not given:
        return
    installed = ", ".join(f"{name} {version(name)}" for name in ("trl", "transformers"))
    key = f"{installed}, {spec.section}: {json.dumps(given, sort_keys=True, default=str)}"
    kept("trl_arguments", key, lambda: _checked(spec, given))


def _checked(spec: type[TrlSection], given: dict[str, Any]) -> float:
    """1.0 for arguments that TRL has, of its types. Raises ValueError."""
    config = _config_class(spec)
    types = get_type_hints(config)
    known = {each.name for each in dataclasses.fields(config)}
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"see TRL's documentation of {config.__name__}"
            raise ValueError(f"TRL's {config.__name__} has no argument {name}; {hint}")
        try:
            TypeAdapter(types[name]).validate_json(json.dumps(value, allow_nan=False), strict=True)
        except (ValueError, TypeError):  # a ValidationError among them
            wanted = re.sub(r"\w+\.", "", inspect.formatannotation(types[name]))
            raise ValueError(f"{name}: {value!r} is not of the type {wanted}") from None
    return 1.0


def config_of(spec: type[TrlSection], own: dict[str, Any], given: dict[str, Any]) -> Any:
    """TRL's config with our arguments and the recipe's. Raises Stop when TRL rejects the recipe's."""
    try:
        return _config_class(spec)(**own, **given)
    except (ValueError, TypeError) as error:
        if not given:
            raise
        raise Stop(
            f"TRL rejects {spec.section}.args: {' '.join(str(error).split())}", "Correct or remove the argument."
        ) from error


def _config_class(spec: type[TrlSection]) -> Any:
    import trl

    return getattr(trl, spec.config)
