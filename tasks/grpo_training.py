"""GRPO as a run knows it: what starts it, what is checked and predicted before it, what is drawn of it."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

from apprentice.envs.player import Player
from apprentice.tasks.artifacts.types import GrpoCheckpoint
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.rendering import IGNORED
from apprentice.tasks.grpo import check_machine, first_step, grpo, grpo_arguments
from apprentice.tasks.models import trl_internals
from apprentice.tasks.models.checkpoints import adapter_arguments
from apprentice.tasks.models.memory import in_bf16
from apprentice.tasks.rollouts.streams import streams_of
from apprentice.tasks.settings.grpo_settings import GrpoSpec
from apprentice.tasks.training.forecast import Forecast, Student, held, saving, update
from apprentice.tasks.training.method import Curve, RunSoFar, Start, Training
from apprentice.tasks.training.shared_prompts import forward_shared, generate_shared

ASKED = 2.5
"""Questions that a step asks for each of its groups where `grpo.oversample` lets it: 60% of the groups are equal. Two
runs of SmolLM2 asked 2.5 and 2.8, and one that thinks 2.1."""


def start(spec: GrpoSpec, made: RunSoFar) -> Start | None:
    """GRPO trains the last model on the task that the probe chose; not where the probe found nothing to learn."""
    task = made.task(spec)
    if task.stopped:
        return None
    return Start(task.trains_with, (made.models.last, task.environment, task.questions, made.seed))


def arguments(context: StageContext, spec: GrpoSpec, environment: Player, seed: int) -> dict[str, Any]:
    """The arguments of GRPOConfig."""
    return grpo_arguments(context, spec, seed, streams_of(environment, spec.reward_weights))


def forecast(spec: GrpoSpec, _episodes: int, student: Student) -> Forecast:
    """GRPO, if two in five of its groups differ."""
    called = f"grpo in a tree {spec.batch_size} {spec.num_generations} {spec.bf16} {spec.share_prompts} {spec.lora}"
    learning = partial(_pass, spec=spec, student=student)
    asks = student.seconds(f"{called} asks", partial(_samples, spec=spec, student=student), generates=True)
    learns = student.seconds(f"{called} learns", learning)
    batches = spec.max_steps * spec.gradient_accumulation
    saves = spec.max_steps / spec.checkpoint_steps
    seconds = batches * (asks * min(spec.oversample, ASKED) + learns) + saves * saving(spec, student)
    return Forecast(seconds, held(spec, student) + student.saved(f"{called} learns", learning))


def _samples(model: Any, spec: GrpoSpec, student: Student) -> Callable[[], object]:
    """The rollouts of one batch."""
    from transformers import GenerationConfig

    from apprentice.tasks.models.shared_prefix import rests

    prompts = student.texts.repeated(spec.batch_size, each=spec.num_generations)
    inputs = rests(student.tokenizer, prompts, 0, model.device)
    tokens = student.texts.longest(spec.max_completion_length + student.texts.thought * student.texts.turns)
    settings = GenerationConfig(
        max_new_tokens=tokens,
        do_sample=True,
        temperature=1.0,
        pad_token_id=0,
        disable_compile=True,
    )

    def run() -> None:
        rounded = in_bf16(model) if spec.bf16 else nullcontext()
        alike = Alike(spec.num_generations, tokens)
        shared = generate_shared(model, prompts, alike.draws, alike.draft) if spec.share_prompts else nullcontext()
        with rounded, shared:
            model.generate(**inputs, generation_config=settings)

    return run


class Alike:
    """Rollouts as a trained model's are: half of a group are alike, the others differ in their last third. What comes
    before that is drafted once its first token is known."""

    def __init__(self, group: int, tokens: int):
        self._group = group
        self._begins = tokens * 2 // 3
        self._step = 0

    def draws(self, _: int) -> Any:
        def draw(scores: Any, _: Any, rows: Any, *__: Any) -> Any:
            scores.softmax(dim=-1).cumsum(dim=-1)  # what a draw costs
            self._step += 1
            return rows // (self._group if self._step <= self._begins else 2)

        return draw

    def draft(self, ids: list[int], most: int) -> list[int]:
        return ids[-1:] * min(most, max(self._begins - self._step, 0)) if self._step else []


def _pass(model: Any, spec: GrpoSpec, student: Student) -> Callable[[], object]:
    """A step on one batch of rollouts."""
    import torch

    from apprentice.tasks.models.shared_prefix import rests

    turn, draw = student.texts.rest, torch.Generator().manual_seed(0)
    last = max(len(turn) // 3, 1)
    others = torch.randint(0, model.config.vocab_size, (spec.batch_size // 2 + 1, last), generator=draw).tolist()
    prompts = student.texts.repeated(spec.batch_size, each=spec.num_generations)
    rows = [[*each, *turn[:-last], *others[place // 2]] for place, each in enumerate(prompts)]
    batch = rests(student.tokenizer, rows, 0, model.device)
    batch["labels"] = batch["input_ids"].clone()
    batch["labels"][:, : -len(turn)] = IGNORED
    trl_internals.fuse_head(model)
    if spec.lora:
        from peft import get_peft_model

        model = get_peft_model(model, **adapter_arguments(spec.lora))
    forward = forward_shared(model, len(turn)) if spec.share_prompts else model
    step = update(model)

    def run() -> None:
        with torch.autocast(model.device.type, torch.bfloat16, enabled=spec.bf16):
            out = forward(**batch, fused_lm_head=True)
        (out.log_probs[:, -len(turn) :].sum() + out.entropy[:, -len(turn) :].sum()).backward()
        step()

    return run


GRPO = Training(
    GrpoSpec,
    GrpoCheckpoint,
    grpo,
    start,
    arguments,
    first_step,
    curves={
        "reward": Curve("reward"),
        "frac_reward_zero_std": Curve("groups without signal", ("saturated", "no_signal")),
        "entropy": Curve("entropy", ("entropy",)),
        "completions/mean_length": Curve("tokens a completion", ("length",)),
        "thought/tokens": Curve("tokens of thought", ("cut_off", "longer", "stopped")),
        "loss": Curve("loss", ("nan",)),
    },
    forecast=forecast,
    check_machine=check_machine,
)
