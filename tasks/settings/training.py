"""The settings that all trainings share. Everything here enters the stage's key, except OPERATIONAL fields.

In: a recipe's section. Out: validated settings; everything else keeps TRL's defaults. A training's own settings say
what other code has to know of it: `TrainerSpec` has an answer for those that say nothing.
"""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, field_validator, model_validator

from apprentice.envs.paths import FilePath
from apprentice.tasks.settings.spec import OPERATIONAL, WHEN_GIVEN, Spec
from apprentice.tasks.settings.trl_arguments import TrlSection, check_arguments

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
"""transformers' schedulers that need no evaluation; their arguments go into `args.lr_scheduler_kwargs`."""


class LoraSpec(Spec):
    """Train low-rank adapters and merge them into the weights at the end; the checkpoint has no adapters."""

    rank: int = Field(default=16, ge=1)
    """Rank of the adapters. A higher rank can learn more, and needs more memory for gradients and optimizer state."""
    alpha: int = Field(default=32, ge=1)
    """Scales the adapters' output by alpha ÷ rank. At 2, use ten times the learning rate of full training."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout probability of the adapters' inputs."""
    targets: Literal["all-linear"] | list[str] = "all-linear"
    """The layers that get an adapter, by the ends of their names, such as q_proj. `all-linear`: all but the output
    layer."""
    quantized: bool = False
    """QLoRA: keep the frozen weights in 4 bits during training, then merge the adapters into the unrounded weights. An
    eighth of the memory of fp32, slower steps; needs an NVIDIA GPU."""

    @field_validator("targets")
    @classmethod
    def _leaves_the_output_layer(cls, targets: str | list[str]) -> str | list[str]:
        if "lm_head" in targets:
            raise ValueError("TRL bypasses the lm_head module: an adapter on it would never be trained; leave it out")
        return targets


class Saving(NamedTuple):
    """Settings to change if memory runs out, by their paths within the section, and the effect."""

    change: dict[str, Any]
    why: str


def halved(setting: str, value: int, why: str) -> list[Saving]:
    return [Saving({setting: value // 2}, why)] if value > 1 else []


class TrainerSpec(TrlSection):
    """A section of a recipe that trains a model."""

    label: ClassVar[str]
    """The training's name for people."""
    shown_metric: ClassVar[str]
    """Of which a run's terminal shows the last value."""

    batch_size: Positive
    """Sequences per device and batch."""
    gradient_accumulation: Positive
    """Batches per optimizer step."""
    processes: int = Field(default=1, ge=1)
    """Devices to train on, one accelerate process each. A step takes batch_size × gradient_accumulation × processes
    sequences."""
    accelerate_config: FilePath | None = Field(default=None, json_schema_extra=OPERATIONAL)
    """An accelerate configuration file, as written by `accelerate config` or from deployments/accelerate/. Default:
    data parallel on this machine, with the whole model in each process."""
    learning_rate: LearningRate
    scheduler: Scheduler
    warmup_steps: int = Field(default=10, ge=0)
    """Steps of linear warmup to the peak learning rate."""
    adam_epsilon: float = Field(default=1e-8, gt=0.0, lt=1.0)
    """A larger value damps updates of weights with small gradients, which stabilizes a model without pretraining."""
    adam_beta2: float = Field(default=0.999, gt=0.0, lt=1.0)
    """Decay of the squared gradients; 0.95 adapts faster, for short trainings."""
    gradient_checkpointing: bool = Field(default=False, json_schema_extra=OPERATIONAL)
    """Saves memory for about a third more time."""
    bf16: bool = False
    """Compute in bf16 over fp32 master weights. Pays on a GPU with bf16 support, and for models of some size on a CPU
    that has avx512_bf16 or AMX (`make bench NAME=sft`); slower elsewhere."""
    lora: LoraSpec | None = None
    """Train low-rank adapters; default: train all weights."""
    liger: bool = Field(default=False, json_schema_extra=OPERATIONAL)
    """Use Liger's Triton kernels: less memory, faster steps; needs a GPU and `openenv-apprentice[liger]`."""
    logging_steps: int = Field(default=1, ge=1)
    """Steps between two logs."""
    checkpoint_steps: int = Field(default=10, ge=1, json_schema_extra=OPERATIONAL)
    """Steps between two checkpoints; a killed training loses at most this many steps."""
    args: dict[str, Any] = Field(default={}, json_schema_extra=WHEN_GIVEN)
    """Further arguments of TRL's SFTConfig or GRPOConfig that have no field here, such as {weight_decay: 0.01}."""

    @field_validator("args")
    @classmethod
    def _are_trls(cls, args: dict[str, Any]) -> dict[str, Any]:
        check_arguments(cls, args)
        return args

    @model_validator(mode="after")
    def _nothing_is_lost_from_the_log(self) -> "TrainerSpec":
        if self.checkpoint_steps % self.logging_steps:
            raise ValueError(
                f"checkpoint_steps ({self.checkpoint_steps}) must be a multiple of logging_steps "
                f"({self.logging_steps}), else a resumed log's mean lacks the steps before the checkpoint"
            )
        return self

    @classmethod
    def trainer(cls) -> str:
        """TRL's trainer."""
        return cls.config.replace("Config", "Trainer")

    def lacks(self, others: Iterable["TrainerSpec"]) -> str:
        """What this training lacks of a run's others, as an error says it; empty if nothing."""
        return ""

    @property
    def steps_known(self) -> int | None:
        """Its optimizer steps, where they do not depend on rows."""
        return None

    @property
    def kl_weight(self) -> float:
        """Weight of a KL term against the model that it began from."""
        return 0.0

    @property
    def needs_packages(self) -> bool:
        """Whether it needs more than a plain training on a CPU: a GPU, or packages that may be missing."""
        return bool(self.lora or self.liger)

    @property
    def plain_generation(self) -> bool:
        """Whether no other engine than transformers generates."""
        return True

    @property
    def longest_context(self) -> tuple[str, int] | None:
        """A field that bounds a text, within the section, with its tokens."""
        return None

    @property
    def longest_episode(self) -> tuple[str, int] | None:
        """A field that bounds what follows an episode's prompt, without thoughts, with its tokens."""
        return None

    @property
    def chooses_weights(self) -> tuple[str, str] | None:
        """The setting by which an earlier step's weights may be published, and how to do without it."""
        return None

    def sessions(self) -> int:
        """Maximum number of episodes that one process plays at once."""
        return 0

    def to_its_best(self) -> "TrainerSpec | None":
        """The settings of a control, trained beside it for the trainings after it to beat; None without one."""
        return None

    def with_levels(self, _completed: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> "TrainerSpec":
        """The settings with those of its environments completed."""
        return self

    def first_savings(self) -> Iterable[Saving]:
        """What to change first if memory runs out: it changes the training least."""
        return ()

    def last_savings(self) -> Iterable[Saving]:
        """What to change last."""
        return ()


def section_named(name: str) -> type[TrainerSpec] | None:
    """The settings of the training whose section, stage and model have that name; None for a model before any."""
    return next((each for each in TrainerSpec.__subclasses__() if each.section == name), None)
