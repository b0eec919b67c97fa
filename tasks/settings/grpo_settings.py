"""The settings of GRPO, its curriculum, and the questions that are held out of it.

In: a recipe's section `grpo`. Out: validated settings; everything else keeps TRL's defaults.
"""

from collections.abc import Callable, Iterator
from math import ceil, gcd
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from apprentice.tasks.settings.generation_engine import SHARES, GenerationSpec
from apprentice.tasks.settings.signals import RewardSignals
from apprentice.tasks.settings.spec_base import OPERATIONAL, SEARCH_SPACE, WHEN_GIVEN, Spec
from apprentice.tasks.settings.training import LearningRate, Positive, Saving, Scheduler, TrainerSpec, halved
from apprentice.tasks.settings.trl_arguments import ITSELF

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


_TRL_FIELDS = {
    **{
        name: f"grpo.{name}"
        for name in ("max_steps", "num_generations", "max_completion_length", "max_grad_norm", "temperature", "beta")
    },
    "reward_weights": "grpo.reward_weights",
    "num_train_epochs": "grpo.max_steps",
    **dict.fromkeys(("steps_per_generation", "generation_batch_size"), "grpo.gradient_accumulation"),
    **dict.fromkeys(("shuffle_dataset", "chat_template_kwargs", "max_tool_calling_iterations"), ITSELF),
    **dict.fromkeys(("eval_strategy", "eval_steps", "load_best_model_at_end"), "grpo.held_out"),
    **dict.fromkeys(("metric_for_best_model", "greater_is_better", "num_generations_eval"), "grpo.held_out"),
    "per_device_eval_batch_size": "grpo.held_out.batch_size",
    **dict.fromkeys(("use_vllm", "use_transformers_continuous_batching", "use_transformers_paged"), "grpo.generation"),
    "transformers_continuous_batching_config": "grpo.generation.gpu_memory_utilization",
    "vllm_mode": "grpo.generation.mode",
    **{
        f"vllm_{name}": f"grpo.generation.{name}"
        for name in ("server_base_url", "server_timeout", "group_port", "gpu_memory_utilization", "max_model_length")
    },
    **dict.fromkeys(("vllm_server_host", "vllm_server_port"), "grpo.generation.server_base_url"),
    "vllm_tensor_parallel_size": "grpo.generation.tensor_parallel_size",
    "vllm_enable_sleep_mode": "grpo.generation.enable_sleep_mode",
}


class GrpoSpec(TrainerSpec):
    """TRL's GRPOTrainer, with the walkthrough's defaults."""

    section = "grpo"
    label = "GRPO"
    config = "GRPOConfig"
    trl_fields: ClassVar[dict[str, str]] = _TRL_FIELDS
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
    thought_cost: float = Field(default=0.0, ge=0.0, le=1000.0, json_schema_extra=WHEN_GIVEN)
    """Reward that a hundred tokens of thought cost, for a student that thinks. 0: thoughts cost nothing."""
    soft_overlong: int = Field(default=0, ge=0, json_schema_extra=WHEN_GIVEN)
    """Last tokens of a completion's room in which it loses reward, from 0 to 1.0 at the end: DAPO's soft overlong
    punishment, by TRL. 0: off. TRL's own `args: {mask_truncated_completions: true}` takes truncated completions out of
    the loss instead."""
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
    signals: RewardSignals = RewardSignals()
    """What to warn about or stop at during training; the report applies the same rules."""
    held_out: HeldOut = HeldOut()
    """Questions that decide which step's weights are published."""
    said_every: int = Field(default=10, ge=1)
    """Logs between two groups that are kept in completions.jsonl for reading; the first and the last log's group are
    always kept."""
    keep_groups: bool = Field(default=False, json_schema_extra=WHEN_GIVEN)
    """Keep the groups with a right and a wrong rollout, whole, in groups.jsonl: the pairs that `dpo` learns from."""
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
    def steps_known(self) -> int | None:
        return self.max_steps

    @property
    def kl_weight(self) -> float:
        return self.beta

    @property
    def needs_packages(self) -> bool:
        return super().needs_packages or not self.plain_generation

    @property
    def plain_generation(self) -> bool:
        return self.generation.engine == "plain"

    @property
    def longest_context(self) -> tuple[str, int] | None:
        room = self.generation.max_model_length
        return None if room is None else ("grpo.generation.max_model_length", room)

    @property
    def longest_episode(self) -> tuple[str, int]:
        return "grpo.max_completion_length", self.max_completion_length

    @property
    def chooses_weights(self) -> tuple[str, str] | None:
        remedy = "Set grpo.held_out.questions: 0; the evaluation then judges the last step."
        uses = "grpo.held_out loads the best step's weights at the end"
        return (uses, remedy) if self.held_out.questions else None

    def with_levels(self, completed: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> "GrpoSpec":
        return self.model_copy(update={"auto_difficulty": completed(self.auto_difficulty)})

    def first_savings(self) -> Iterator[Saving]:
        engine = self.generation
        colocated = engine.engine == "vllm" and engine.mode == "colocate"
        if colocated or engine.engine == "continuous_batching":
            share = engine.gpu_memory_utilization or SHARES[engine.engine]
            less = round(share / 2, 2)
            yield Saving({"generation.gpu_memory_utilization": less}, f"generation's share, now {share:g}")
        if colocated and not engine.enable_sleep_mode:
            yield Saving({"generation.enable_sleep_mode": True}, "vLLM frees its memory during the optimizer step")

    def last_savings(self) -> Iterator[Saving]:
        yield from halved("max_completion_length", self.max_completion_length, "longer completions are truncated")
        if self.gradient_accumulation % 2 == 0:
            fewer = "fewer rollouts per step, which are all generated at once"
            yield from halved("gradient_accumulation", self.gradient_accumulation, fewer)

    @property
    def rollouts_a_step(self) -> int:
        """Completions per step over all processes; each needs a session."""
        return self.batch_size * self.gradient_accumulation * self.processes

    @property
    def groups_a_step(self) -> int:
        """Groups that a step learns from, over all processes."""
        return self.rollouts_a_step // self.num_generations

    @property
    def groups_together(self) -> int:
        """The smallest number of groups whose rollouts the processes share equally."""
        return self.processes // gcd(self.num_generations, self.processes)

    @property
    def questions_a_step(self) -> int:
        """The most questions that a step asks."""
        further = int(self.groups_a_step * (self.oversample - 1.0) + 1e-9)  # 1.1 - 1.0 is below 0.1 in floating point
        return self.groups_a_step + further - further % self.groups_together

    @model_validator(mode="after")
    def _further_questions_fit(self) -> "GrpoSpec":
        if self.oversample > 1.0 and self.questions_a_step == self.groups_a_step:
            least = 1 + ceil(100 * self.groups_together / self.groups_a_step) / 100
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
