"""The settings of the two trainers, SFT and GRPO. Everything here enters the stage's key, except OPERATIONAL fields.

In: a recipe's sections `sft` and `grpo`. Out: validated settings; everything else keeps TRL's defaults.

The settings of GRPO's curriculum: the slices of the questions, and how fast old evidence fades.

Settings for monitoring a training: which signals warn or stop, and which questions are held out.
"""

from math import ceil, gcd
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from apprentice.envs.paths import FilePath
from apprentice.tasks.settings.spec import OPERATIONAL, SEARCH_SPACE, WHEN_GIVEN, Spec
from apprentice.tasks.settings.trl_arguments import GenerationSpec, LoraSpec, check_arguments

Answers = Annotated[int, Field(ge=0)]


class CurriculumSpec(Spec):
    """Asks the kinds of questions that the model answers right about half of the time more often than others."""

    by: tuple[str, ...] = ()
    """The tags of a question that define its slice, such as `word_len`: those of the report's tables. Default: the
    environment of a mixture, or the dataset of a composite one."""
    levels: Literal["own", "all"] | tuple[str, ...] = Field(default=(), json_schema_extra=SEARCH_SPACE)
    """Reasoning Gym only: train on the levels of its curricula, each level a slice. `own`: those of the recipe's
    dataset, or of the parts of a composite one or a mixture; `all`: those of all datasets whose curriculum works; or
    the names of some. `curriculum: reasoning_gym` is short for `own`, and a list of names for itself."""
    most_levels: int = Field(default=4, ge=2, json_schema_extra=SEARCH_SPACE)
    """Levels of a dataset, at most: the easiest ones."""
    floor: float = Field(default=0.2, gt=0.0, le=1.0)
    """Share of the questions that follow the original mixture of slices, so that each slice is drawn now and then. 1 is
    the original mixture."""
    forget: float = Field(default=0.05, ge=0.0, lt=1.0)
    """Share of the evidence that fades in each step, because the model changes; 0.05 remembers about 20 steps."""
    known: dict[str, tuple[Answers, Answers]] = Field(default={})
    """Correct and wrong answers by slice before the first step. Filled in from the probe."""

    @field_validator("by", mode="before")
    @classmethod
    def _may_be_one(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given


Act = Literal["stop", "warn", "off"]
"""`stop` ends the training at that step, `warn` warns once and continues, `off` disables the check."""


class Signals(Spec):
    """The checks of both trainers, after every log."""

    nan: Act = "stop"
    """A NaN or infinite loss, gradient or reward. Such a step changes no weight. `stop` keeps the last checkpoint
    before it; `warn` skips the step, continues, and publishes the last weights. Weights with NaN are never published.
    """


class GrpoSignals(Signals):
    """The checks of GRPO's curves; training and the report use the same rules."""

    saturated: Act = "warn"
    """Most groups have equal rewards, with a mean above `low`: further training teaches little."""
    no_signal: Act = "warn"
    """Most groups have equal rewards, with a mean at `low` or below: there is nothing to learn from."""
    length: Act = "warn"
    """Completions shrink to `length_left` of their initial length while the reward does not rise."""
    entropy: Act = "warn"
    """Entropy falls to `entropy_left` of its initial value before the reward reaches `high`: the policy has collapsed
    and no longer explores. With `grpo.skip_dead_groups` it is the entropy of groups whose rewards differ; the other
    groups count in `saturated` and `no_signal`."""
    engine: Act = "warn"
    """vLLM generates, and its log-probabilities differ from the trainer's by more than `engine_gap` on the same tokens:
    its samples are not the policy's."""
    engine_gap: float = Field(default=0.05, gt=0.0)
    """Mean difference of a token's log-probabilities, in nats, above which `engine` is reported. In fp32 it is about
    1e-6, in bf16 0.001 to 0.02."""
    window: int = Field(default=10, ge=2)
    """Logs to average over; the first such window is the initial value. A longer window is more certain, and later."""
    dead_groups: float = Field(default=0.8, gt=0.0, le=1.0)
    """Share of groups with equal rewards (`frac_reward_zero_std`) that counts as most of them."""
    low: float = Field(default=0.2, ge=0.0, le=1.0)
    """A mean reward at or below this counts as no success."""
    high: float = Field(default=0.9, ge=0.0, le=1.0)
    """A mean reward at or above this leaves little to learn."""
    length_left: float = Field(default=0.5, gt=0.0, lt=1.0)
    """Share of the initial completion length at which `length` is reported."""
    entropy_left: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Share of the initial entropy at which `entropy` is reported."""


class HeldOut(Spec):
    """Questions of the GRPO window that are not trained on; the checkpoint that scores best on them is published."""

    questions: int = Field(default=0, ge=0)
    """Number of held-out questions, one rollout each at the training temperature. 0 publishes the last step. 100
    resolve a difference of about 10 points, and cost as much as a step with 100 rollouts."""
    every: int = Field(default=10, ge=1)
    """Steps between two evaluations. Each evaluation also saves a checkpoint."""
    batch_size: int | None = Field(default=None, ge=1)
    """Completions per device at once, each with its own session; default: the training batch size. There is no
    backward pass, so a larger one fits."""

    def at_once(self, batch_size: int) -> int:
        """Evaluation rollouts that run at once, given the training `batch_size`."""
        return min(self.questions, self.batch_size or batch_size)


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

CONTROL_HELD_OUT = 0.1
"""Share of the rows that choose the control's epoch."""


class TrainerSpec(Spec):
    """The settings that SFT and GRPO share."""

    section: ClassVar[str]
    """The recipe's, by whose name the stage goes."""
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
        check_arguments(cls.section, args)
        return args

    @model_validator(mode="after")
    def _nothing_is_lost_from_the_log(self) -> "TrainerSpec":
        if self.checkpoint_steps % self.logging_steps:
            raise ValueError(
                f"checkpoint_steps ({self.checkpoint_steps}) must be a multiple of logging_steps "
                f"({self.logging_steps}), else a resumed log's mean lacks the steps before the checkpoint"
            )
        return self


class SftSpec(TrainerSpec):
    """TRL's SFTTrainer, with the tutorial's defaults."""

    section = "sft"
    shown_metric = "loss"

    batch_size: Positive = 4
    """Sequences per device and batch."""
    gradient_accumulation: Positive = 2
    """Batches per optimizer step."""
    learning_rate: LearningRate = 2e-5
    """Peak learning rate; a built student needs about a hundred times as much."""
    scheduler: Scheduler = "cosine"
    """Learning rate schedule, one of transformers' schedulers. Arguments go into `args`: `warmup_stable_decay` needs
    {lr_scheduler_kwargs: {num_decay_steps: 10}}, the two with a minimum {lr_scheduler_kwargs: {min_lr_rate: 0.1}}."""
    logging_steps: int = Field(default=5, ge=1)
    """Steps between two logs."""
    epochs: float = Field(default=3.0, gt=0.0)
    """Maximum number of epochs; see `stop_at_token_accuracy`."""
    stop_at_token_accuracy: float | None = Field(default=None, gt=0.0, le=1.0)
    """Stop when the logged token accuracy reaches this share, and leave the rest to GRPO. A small model learns a skill
    abruptly, after a number of steps that varies with the seed; the accuracy at which to stop does not vary."""
    max_rows: Positive | None = None
    """Train on the first rows only."""
    held_out: float = Field(default=0.0, ge=0.0, le=0.5, json_schema_extra=WHEN_GIVEN)
    """Share of the rows to hold out of training. The loss on them is measured after each epoch, and the epoch with the
    lowest is published. 0 publishes the last step."""
    share_prompts: bool = Field(default=True, json_schema_extra=OPERATIONAL)
    """Compute what the rows of a batch begin with once, from 32 tokens on: instructions, tools, common words. The
    weights are the same up to rounding, which no sampled token depends on here, so it is no part of the key. Needs what
    `grpo.share_prompts` needs; not with packing."""
    control: bool | None = Field(default=None, json_schema_extra=OPERATIONAL)
    """Also train SFT to its best on the same rollouts, as a control for GRPO: all rows, no early stop, the best epoch.
    It holds out `held_out`, or a tenth. Default: exactly where `stop_at_token_accuracy` or `max_rows` ends SFT early.
    """
    signals: Signals = Signals()
    """What to warn about or stop at during training."""

    def to_its_best(self) -> "SftSpec | None":
        """The settings of the control; None where it is not wanted."""
        ends_early = self.stop_at_token_accuracy is not None or self.max_rows is not None
        if self.control is False or (self.control is None and not ends_early):
            return None
        held_out = self.held_out or CONTROL_HELD_OUT
        return self.model_copy(update={"stop_at_token_accuracy": None, "max_rows": None, "held_out": held_out})


class GrpoSpec(TrainerSpec):
    """TRL's GRPOTrainer, with the walkthrough's defaults."""

    section = "grpo"
    shown_metric = "reward"

    batch_size: Positive = 1
    """Completions per device and batch."""
    gradient_accumulation: Positive = 4
    """Batches per optimizer step. Each device plays batch_size × gradient_accumulation rollouts at once, each with its
    own session."""
    learning_rate: LearningRate = 1e-6
    """Peak learning rate; a built student needs about a thousand times as much."""
    scheduler: Scheduler = "linear"
    """Learning rate schedule, one of transformers' schedulers. Arguments go into `args`: `warmup_stable_decay` needs
    {lr_scheduler_kwargs: {num_decay_steps: 10}}, the two with a minimum {lr_scheduler_kwargs: {min_lr_rate: 0.1}}."""
    max_steps: Positive = 150
    """Optimizer steps."""
    num_generations: int = Field(default=2, ge=2)
    """Completions per question (the group size)."""
    max_grad_norm: float = Field(default=1.0, ge=0.0)
    """Clip gradients to this norm; 0 disables clipping."""
    beta: float = Field(default=0.0, ge=0.0)
    """Weight of the KL term against the initial checkpoint; with 0 there is no reference model."""
    temperature: float = Field(default=1.0, gt=0.0)
    """Sampling temperature."""
    max_completion_length: Positive = 256
    """Maximum tokens of a rollout after its prompt, tool replies included."""
    reward: Literal["score", "exact"] = "score"
    """`score`: the environment's reward. `exact`: 1.0 for a reward of 1.0, else 0.0, so no partial credit."""
    reward_weights: dict[str, Annotated[float, Field(ge=-1000.0, le=1000.0)]] = Field(default={})
    """Weights of the environment's reward streams, such as {greens: 0.5}; default: the environment's weights."""
    rollouts: Literal["environment_factory", "rollout_func"] = Field(
        default="environment_factory", json_schema_extra=OPERATIONAL
    )
    """TRL's entry point for rollouts. Both give the same rollouts; with `rollout_func`, apprentice renders the prompts
    instead of TRL."""
    generation: GenerationSpec = GenerationSpec()
    """The generation engine. The engine enters the key, because each one draws different samples; its memory settings
    do not."""
    skip_dead_groups: bool = True
    """Skip the forward and backward pass of completions whose whole group has the same reward, because their gradient
    is zero. The weights are the same up to rounding; it enters the key, because over many steps a rounded weight can
    change a sampled token. Entropy and clip ratios are then logged as `with_signal/…`: they cover the other
    completions. Nothing is skipped with `beta` above 0, dropout, an entropy bonus or quantile, or a router's loss."""
    share_prompts: bool = True
    """Compute what the prompts of a batch have in common once, from 32 tokens on: the instructions and tools of all,
    the question of a group. The weights are the same up to rounding; it enters the key for that. Needs one process and
    a model with SDPA attention in every layer, without dropout; not with `gradient_checkpointing`. Other generation
    engines keep their own keys, and only the loss shares."""
    oversample: float = Field(default=1.0, ge=1.0, le=10.0, json_schema_extra=WHEN_GIVEN)
    """Bound of the questions that a step asks, as a multiple of its groups. Above 1, a step asks further questions in
    place of groups whose rewards are all equal, until its groups differ or the bound is reached. Completions beyond
    need are discarded: none is trained on by later weights. A group of which infrastructure lost a rollout is not
    replaced. A step takes longer, and needs no more sessions."""
    curriculum: CurriculumSpec | None = Field(default=None, json_schema_extra=WHEN_GIVEN)
    """Prefer those slices of the questions that the model answers correctly about half of the time. `on`: the slices
    are the parts of a mixture, or the levels of `auto_difficulty`, all of which are then used. `reasoning_gym`: the
    levels of its curricula."""
    max_failed: float = Field(default=0.05, ge=0.0, le=1.0)
    """Share of rollouts that infrastructure may lose; above it the stage stops."""
    signals: GrpoSignals = GrpoSignals()
    """What to warn about or stop at during training; the report applies the same rules."""
    held_out: HeldOut = HeldOut()
    """Questions that decide which step's weights are published."""
    said_every: int = Field(default=10, ge=1)
    """Logs between two groups that are kept in completions.jsonl for reading; the first and the last log's group are
    always kept."""
    auto_difficulty: list[dict[str, Any]] = Field(default=[], json_schema_extra=SEARCH_SPACE)
    """Difficulty levels: complete environment settings, easiest first. GRPO trains on the one where the SFT model's
    accuracy is nearest to one half; with `curriculum` on a mixture of all. Each level costs a probe and questions."""

    def in_key(self) -> dict[str, Any]:
        """With `bf16`, transformers samples from weights rounded to it, which a key of before does not say."""
        rounded = {"sampled_in": "bf16"} if self.bf16 and self.generation.engine == "plain" else {}
        return super().in_key() | rounded

    @field_validator("curriculum", mode="before")
    @classmethod
    def _curriculum_may_be_on(cls, given: Any) -> Any:
        if given in (True, False, "on", "off"):
            return {} if given in (True, "on") else None
        if isinstance(given, list | tuple):
            return {"levels": given}
        return {"levels": "own"} if given == "reasoning_gym" else given

    @model_validator(mode="after")
    def _groups_fit(self) -> "GrpoSpec":
        if self.rollouts_a_step % self.num_generations:
            raise ValueError(
                f"a step has {self.rollouts_a_step} completions (batch_size × gradient_accumulation × processes), "
                f"which num_generations={self.num_generations} does not divide"
            )
        return self

    @model_validator(mode="after")
    def _completions_are_used_up_at_checkpoints(self) -> "GrpoSpec":
        uses = max(self.args.get("num_iterations", 1), 1)
        saved = {"checkpoint_steps": self.checkpoint_steps}
        if self.held_out.questions:
            saved["held_out.every"] = self.held_out.every
        for name, steps in saved.items():
            if steps % uses:
                raise ValueError(
                    f"{name} ({steps}) must be a multiple of args.num_iterations ({uses}): a checkpoint does not hold "
                    "completions that a later step uses again"
                )
        return self

    @property
    def rollouts_a_step(self) -> int:
        """Completions per step over all processes; each needs a session."""
        return self.batch_size * self.gradient_accumulation * self.processes

    @property
    def groups_a_step(self) -> int:
        """Groups that a step learns from, over all processes."""
        return self.rollouts_a_step // self.num_generations

    @property
    def groups_asked_together(self) -> int:
        """The smallest number of groups whose rollouts the processes share equally."""
        return self.processes // gcd(self.num_generations, self.processes)

    @property
    def questions_a_step(self) -> int:
        """The most questions that a step asks."""
        further = int(self.groups_a_step * (self.oversample - 1.0) + 1e-9)  # 1.1 - 1.0 is below 0.1 in floating point
        return self.groups_a_step + further - further % self.groups_asked_together

    @model_validator(mode="after")
    def _further_questions_fit(self) -> "GrpoSpec":
        if self.oversample > 1.0 and self.questions_a_step == self.groups_a_step:
            least = 1 + ceil(100 * self.groups_asked_together / self.groups_a_step) / 100
            raise ValueError(
                f"oversample ({self.oversample:g}) leaves no room for a further question in a step of "
                f"{self.groups_a_step} groups on {self.processes} processes; set it to {least:g} or more"
            )
        return self

    @model_validator(mode="after")
    def _evaluations_fit(self) -> "GrpoSpec":
        if not self.held_out.questions:
            return self
        at_once = self.held_out.at_once(self.batch_size) * self.processes
        if self.held_out.questions % at_once:
            raise ValueError(
                f"held_out.questions ({self.held_out.questions}) must be a multiple of the {at_once} that are asked at "
                "once (held_out.batch_size or batch_size, × processes), because TRL averages over whole batches"
            )
        if self.held_out.every % self.logging_steps:
            raise ValueError(
                f"held_out.every ({self.held_out.every}) must be a multiple of logging_steps ({self.logging_steps}), "
                "else a resumed log's mean lacks the steps before the checkpoint"
            )
        return self

    def sessions(self) -> int:
        """Maximum number of rollouts that one process plays at once."""
        evaluation = self.held_out.at_once(self.batch_size) if self.held_out.questions else 0
        return max(self.rollouts_a_step // self.processes, evaluation)

    @model_validator(mode="after")
    def _generation_fits(self) -> "GrpoSpec":
        if self.generation.engine == "vllm" and self.lora is not None and self.lora.quantized:
            raise ValueError("vLLM cannot load 4-bit weights from the trainer; leave out lora.quantized")
        longest = self.generation.max_model_length
        if longest is not None and longest <= self.max_completion_length:
            raise ValueError(
                f"generation.max_model_length ({longest}) must be greater than max_completion_length "
                f"({self.max_completion_length}): it includes the prompt"
            )
        return self


TRAININGS = (SftSpec.section, GrpoSpec.section)
"""The sections of a recipe that train a model, in their order; each can be turned off."""
