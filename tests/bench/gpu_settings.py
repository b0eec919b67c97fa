"""The sizes and the settings that the GPU benchmark compares.

In: names, and overrides such as grpo.batch_size=8. Out: checked settings. `documents`: the public tutorials, with TRL's
defaults where they say nothing: bf16 compute and gradient checkpointing. `tuned` makes the same steps of as many rows
and completions, but takes them in one batch, keeps the activations, and generates from a copy in bf16; `compiled`
besides as a CUDA graph. The last two are ways that no recipe sets.
"""

from typing import Any, Literal, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, model_validator

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.settings.grpo_settings import GrpoSpec
from apprentice.tasks.settings.sft_settings import SftSpec
from tests.bench.device import Shape

TASK = EnvironmentSpec(
    name="reasoning_gym",
    settings={"dataset": "chain_sum", "config": {"min_terms": 2, "max_terms": 3, "min_digits": 2, "max_digits": 2}},
)
DOCUMENTS_SECONDS = {"sft": 300, "grpo": 3600}
"""About what the documents' trainings take on an A100 with 40 GB, by their own account."""


class How(BaseModel):
    """What no recipe sets: how the same training is computed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    attention: str = "sdpa"
    """transformers' name of it: sdpa, eager, flash_attention_2 where that is installed."""
    generation: Literal["autocast", "cast_once", "bf16"] = "autocast"
    """Of the fp32 weights, under bf16: rounded for every token, as TRL has it; rounded once for all tokens, to the same
    numbers; or read from a copy in bf16, which takes 2 bytes a weight and rounds what lies between the layers too."""
    cache: Literal["dynamic", "static"] = "dynamic"
    """`static`: keys and values have their full length from the start."""
    compiled: bool = False
    """Generation as a CUDA graph: one launch a token, and some minutes before the first step. Needs `cache: static`."""

    @model_validator(mode="after")
    def _go_together(self) -> "How":
        if self.cache == "static" and self.generation != "bf16":
            raise ValueError(
                "how.cache=static needs how.generation=bf16: under autocast keys are fp32, values bf16, "
                "and transformers' static cache holds one of them"
            )
        if self.compiled and self.cache != "static":
            raise ValueError("how.compiled needs how.cache=static")
        return self


class Variant(NamedTuple):
    """Settings of both trainings."""

    sft: SftSpec
    grpo: GrpoSpec
    how: How


class Size(NamedTuple):
    """How much is trained, and on what."""

    shape: Shape
    rows: int
    less: dict[str, dict[str, Any]]
    """Settings that every variant is cut down to."""


SIZES = {
    "full": Size(Shape(2048, 6144, 28, 16, 8, 128, 151_936, 40_960), 270, {}),  # Qwen/Qwen3-1.7B's config.json
    "toy": Size(
        Shape(64, 192, 2, 4, 2, 16, 2_048, 1_024),
        32,
        {"sft": {"epochs": 1.0}, "grpo": {"max_steps": 3, "max_completion_length": 32, "logging_steps": 1}},
    ),
}
PRECISE = {"bf16": True, "gradient_checkpointing": True}
TUNED: dict[str, dict[str, Any]] = {
    "sft": {"bf16": True, "batch_size": 8, "gradient_accumulation": 1},
    "grpo": {"bf16": True, "batch_size": 4, "gradient_accumulation": 1, "logging_steps": 10},
    "how": {"generation": "bf16"},
}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "documents": {"sft": PRECISE, "grpo": PRECISE | {"logging_steps": 10}, "how": {}},
    "tuned": TUNED,
    "compiled": TUNED | {"how": {"generation": "bf16", "cache": "static", "compiled": True}},
}


def variant(name: str, size: Size, overrides: list[str]) -> Variant:
    """The settings of that name, at that size, with overrides like `grpo.batch_size=8`, `how.attention=eager`."""
    merged = {part: {**VARIANTS[name][part], **size.less.get(part, {})} for part in Variant._fields}
    for override in overrides:
        place, _, value = override.partition("=")
        part, _, field = place.partition(".")
        merged[part][field] = yaml.safe_load(value)
    return Variant(SftSpec(**merged["sft"]), GrpoSpec(**merged["grpo"]), How(**merged["how"]))
