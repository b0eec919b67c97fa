"""The sizes and the settings that the GPU benchmark compares.

In: names, and overrides such as grpo.batch_size=8. Out: checked settings. `documents`: the public tutorials' script, so
plain TRL, with its defaults where they say nothing: bf16 compute and gradient checkpointing. `ours` makes the same
steps of as many rows and completions by the stages' trainers, in one batch, and keeps the activations. `tuned` does
without these trainers, and generates from a copy in bf16; `compiled` besides as a CUDA graph. The last two are ways
that no recipe sets.
"""

from pathlib import Path
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
DOCUMENTS_STEPS = {"sft": 102, "grpo": 150}
"""270 rows, 8 a step, 3 times; and the steps of GRPO, of 4 completions each."""


class How(BaseModel):
    """What no recipe sets: how the same training is computed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trainer: Literal["trl", "loop", "stage"] = "loop"
    """`trl`: TRL's trainers and tool loop as they are. `loop`: with our tool loop. `stage`: as the stages make them."""
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
    folder: Path | None = None
    """A pretrained model of that shape; its weights are random where the folder does not exist."""


SIZES = {
    "full": Size(  # Qwen/Qwen3-1.7B's config.json; a fraction of the documents' steps, so that it ends within minutes
        Shape(2048, 6144, 28, 16, 8, 128, 151_936, 40_960), 80, {"grpo": {"max_steps": 10, "logging_steps": 5}}
    ),
    "smollm2": Size(  # SmolLM2-135M-Instruct with the batches of the recipe smollm2-addition
        Shape(576, 1536, 30, 9, 3, 64, 49_152, 8_192),
        160,
        {
            "sft": {"batch_size": 16, "gradient_accumulation": 1},
            "grpo": {"batch_size": 64, "gradient_accumulation": 1, "num_generations": 8, "max_completion_length": 40}
            | {"max_steps": 15, "logging_steps": 5},
        },
        Path("build/smollm2/model"),
    ),
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
    "documents": {"sft": PRECISE, "grpo": PRECISE | {"logging_steps": 10}, "how": {"trainer": "trl"}},
    "ours": TUNED | {"how": {"trainer": "stage"}},
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
