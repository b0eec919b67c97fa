"""The settings of the two trainers, SFT and GRPO. Everything here enters the stage's key, unless it is marked HOW.

In: a recipe's sections `sft` and `grpo`. Out: checked settings; what is not here keeps TRL's defaults.
"""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from apprentice.tasks.settings.hardware import GenerationSpec, LoraSpec
from apprentice.tasks.settings.signals import GrpoSignals, HeldOut, Signals
from apprentice.tasks.settings.spec import OPERATIONAL, SEARCH_SPACE, WHEN_GIVEN, Spec
from apprentice.tasks.settings.trl_arguments import check_arguments

Positive = Annotated[int, Field(ge=1)]
LearningRate = Annotated[float, Field(gt=0.0, le=1.0)]
Scheduler = Literal[
    "linear",
    "cosine",
    "cosine_with_restarts",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
    "warmup_stable_decay",
]
"""Those of transformers that need no evaluation; what one needs besides goes into `args.lr_scheduler_kwargs`."""


class TrainerSpec(Spec):
    """What SFT and GRPO share; what is not here keeps TRL's defaults."""

    section: ClassVar[str]

    batch_size: Positive
    """Sequences that a device takes at once."""
    gradient_accumulation: Positive
    """Batches that make one optimizer step."""
    processes: int = Field(default=1, ge=1)
    """Devices that train together, each a process under accelerate: a step takes batch_size × gradient_accumulation ×
    processes sequences."""
    accelerate_config: Path | None = Field(default=None, json_schema_extra=OPERATIONAL)
    """How several processes share the work: a file as `accelerate config` writes, or of deployments/accelerate/; left
    out, each has the whole model, on this machine."""
    learning_rate: LearningRate
    scheduler: Scheduler
    warmup_steps: int = Field(default=10, ge=0)
    """Steps over which the learning rate rises to its full height."""
    adam_epsilon: float = Field(default=1e-8, gt=0.0, lt=1.0)
    """Larger ones damp the steps of weights with small gradients: a net without pretraining keeps what it knows."""
    adam_beta2: float = Field(default=0.999, gt=0.0, lt=1.0)
    """Memory of the squared gradients: 0.95 forgets twenty times as fast, for short trainings."""
    gradient_checkpointing: bool = Field(default=False, json_schema_extra=OPERATIONAL)
    """Less memory for about a third more time."""
    bf16: bool = False
    """bf16 compute over fp32 master weights; needs a GPU that has it."""
    lora: LoraSpec | None = None
    """Train low-rank adapters in place of all weights; left out, all weights are trained."""
    liger: bool = Field(default=False, json_schema_extra=OPERATIONAL)
    """Liger's Triton kernels in the layers: less memory, faster steps; needs a GPU and `apprentice[liger]`."""
    logging_steps: int = Field(default=1, ge=1)
    """Steps between two points of the curves."""
    checkpoint_steps: int = Field(default=10, ge=1, json_schema_extra=OPERATIONAL)
    """Steps after which the stage keeps all that it needs to go on from there: what a killed one loses at most."""
    args: dict[str, Any] = Field(default={}, json_schema_extra=WHEN_GIVEN)
    """Further arguments of TRL's SFTConfig or GRPOConfig, by the names of its documentation, such as
    {weight_decay: 0.01}: those that have no field here."""

    @field_validator("args")
    @classmethod
    def _are_trls(cls, args: dict[str, Any]) -> dict[str, Any]:
        check_arguments(cls.section, args)
        return args

    @model_validator(mode="after")
    def _nothing_is_lost_from_the_log(self) -> "TrainerSpec":
        if self.checkpoint_steps % self.logging_steps:
            raise ValueError(
                f"checkpoint_steps ({self.checkpoint_steps}) must be a multiple of logging_steps "
                f"({self.logging_steps}): a log's means would lack the steps before a checkpoint"
            )
        return self


class SftSpec(TrainerSpec):
    """TRL's SFTTrainer, with the tutorial's defaults."""

    section = "sft"

    batch_size: Positive = 4
    """Sequences that a device takes at once."""
    gradient_accumulation: Positive = 2
    """Batches that make one optimizer step."""
    learning_rate: LearningRate = 2e-5
    """At its height; a student built on the spot takes a hundred times as much."""
    scheduler: Scheduler = "cosine"
    """How the learning rate falls: one of transformers' schedulers."""
    logging_steps: int = Field(default=5, ge=1)
    """Steps between two points of the curves."""
    epochs: float = Field(default=3.0, gt=0.0)
    """At most; see `stop_at_token_accuracy`."""
    stop_at_token_accuracy: float | None = Field(default=None, gt=0.0, le=1.0)
    """Stop when this share of the trained tokens is predicted right: SFT brings the form, mastery is GRPO's. A small
    net learns a skill all at once, after a number of steps that differs from seed to seed; this does not."""
    max_rows: Positive | None = None
    """Train on the first rows only: where SFT stops is part of the recipe."""
    signals: Signals = Signals()
    """What to stop at, or to warn of, while it trains."""


class GrpoSpec(TrainerSpec):
    """TRL's GRPOTrainer, with the walkthrough's defaults."""

    section = "grpo"

    batch_size: Positive = 1
    """Completions that a device takes at once."""
    gradient_accumulation: Positive = 4
    """batch_size × gradient_accumulation completions, and as many sessions, make one step on one device."""
    learning_rate: LearningRate = 1e-6
    """At its height; a student built on the spot takes a thousand times as much."""
    scheduler: Scheduler = "linear"
    """How the learning rate falls: one of transformers' schedulers."""
    max_steps: Positive = 150
    """Optimizer steps: batch_size × gradient_accumulation completions each."""
    num_generations: int = Field(default=2, ge=2)
    """Completions of one question: a group. One alone has nothing to differ from."""
    max_grad_norm: float = Field(default=1.0, ge=0.0)
    """Longer gradients are cut to this length; 0 cuts none."""
    beta: float = Field(default=0.0, ge=0.0)
    """Weight of the KL term against the starting checkpoint; 0 means that there is no reference model."""
    temperature: float = Field(default=1.0, gt=0.0)
    """Of sampling: 1.0 is the policy as it is."""
    max_completion_length: Positive = 256
    """Tokens of a whole rollout after its prompt, tool replies included."""
    reward: Literal["score", "exact"] = "score"
    """`score`: the environment's reward as it is. `exact`: 1.0 where it is 1.0, else 0.0: no partial credit."""
    reward_weights: dict[str, Annotated[float, Field(ge=-1000.0, le=1000.0)]] = Field(default={})
    """Weights of an environment's reward streams, such as {greens: 0.5}; left-out ones keep the environment's own."""
    rollouts: Literal["environment_factory", "rollout_func"] = Field(
        default="environment_factory", json_schema_extra=OPERATIONAL
    )
    """The way into TRL: it renders and calls us, or, with `rollout_func`, we render and call it. The same rollouts."""
    generation: GenerationSpec = GenerationSpec()
    """Who generates the completions, which enters the key (each draws other samples of the same policy, and TRL
    corrects vLLM's for its rounding), and with how much of the device, which does not."""
    max_failed: float = Field(default=0.05, ge=0.0, le=1.0)
    """Share of rollouts that may fail for reasons of infrastructure; above it the stage stops."""
    signals: GrpoSignals = GrpoSignals()
    """What to stop at, or to warn of, while it trains; the report reads the curves by the same rules."""
    held_out: HeldOut = HeldOut()
    """Questions that decide which step's weights are published."""
    said_every: int = Field(default=10, ge=1)
    """Logs after which one group is kept as it was said (completions.jsonl), to be read by a person; of the first log
    and of the last one it is kept, too."""
    auto_difficulty: list[dict[str, Any]] = Field(default=[], json_schema_extra=SEARCH_SPACE)
    """A ladder: settings of the environment, each whole as in environment.settings, the easiest first. GRPO trains on
    those under which the SFT model is right nearest to half of the time. Costs a probe, and the questions, of each."""

    @model_validator(mode="after")
    def _groups_fit(self) -> "GrpoSpec":
        if self.rollouts_a_step % self.num_generations:
            raise ValueError(
                f"a step has {self.rollouts_a_step} completions (batch_size × gradient_accumulation × processes), "
                f"which num_generations={self.num_generations} does not divide"
            )
        return self

    @property
    def rollouts_a_step(self) -> int:
        """Completions, and sessions, of all processes together."""
        return self.batch_size * self.gradient_accumulation * self.processes

    @model_validator(mode="after")
    def _evaluations_fit(self) -> "GrpoSpec":
        if not self.held_out.questions:
            return self
        at_once = self.held_out.at_once(self.batch_size) * self.processes
        if self.held_out.questions % at_once:
            raise ValueError(
                f"held_out.questions ({self.held_out.questions}) must be a multiple of the {at_once} that are asked at "
                "once (held_out.batch_size, or batch_size, × processes): their mean is taken over whole batches"
            )
        if self.held_out.every % self.logging_steps:
            raise ValueError(
                f"held_out.every ({self.held_out.every}) must be a multiple of logging_steps ({self.logging_steps}): "
                "a log's means would lack the steps before a checkpoint"
            )
        return self

    def sessions(self) -> int:
        """Rollouts that one process plays at once, at most."""
        evaluation = self.held_out.at_once(self.batch_size) if self.held_out.questions else 0
        return max(self.rollouts_a_step // self.processes, evaluation)

    @model_validator(mode="after")
    def _generation_fits(self) -> "GrpoSpec":
        if self.generation.engine == "vllm" and self.lora is not None and self.lora.quantized:
            raise ValueError("vLLM would be sent weights of 4 bits as if they were whole; leave out lora.quantized")
        longest = self.generation.max_model_length
        if longest is not None and longest <= self.max_completion_length:
            raise ValueError(
                f"generation.max_model_length ({longest}) must hold a prompt besides max_completion_length "
                f"({self.max_completion_length})"
            )
        return self
