"""Monitors a training while it runs and selects the weights to publish.

In: a trainer, and the rules. Out: warnings, early stops, signals.json; the trainer ends with the weights of the best
held-out reward, or else the last good ones. Decisions use values that all processes share, so all decide alike; only
the first process reports and writes.
"""

import math
from collections.abc import Iterable
from itertools import takewhile
from typing import Any

from apprentice.tasks.analysis.curve_signals import (
    ADVICE,
    OF_WEIGHTS,
    Entry,
    Signal,
    as_lines,
    new_signals,
    not_numbers,
    signals_in,
    steps_of,
    write_signals,
)
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.models import trl_internals
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.signals import Signals
from apprentice.tasks.training.complete_checkpoints import step_of, whole_checkpoints


def watch(trainer: Any, rules: Signals) -> None:
    """Adds a callback that checks every step and every log. `generate` is set to tolerate NaN logits, because the check
    of the gradients detects them."""
    from transformers import TrainerCallback

    if hasattr(trainer, "generation_config"):
        trainer.generation_config.remove_invalid_values = True

    class Watcher(TrainerCallback):
        seen: dict[str, Signal]

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.seen = signals_in(state.log_history, rules)

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if rules.nan != "off" and not _all_finite(trainer, (weight.grad for weight in trainer.model.parameters())):
                trainer.model.zero_grad()  # without gradients the optimizer changes no weight
                control.should_log = True

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_save |= control.should_evaluate  # keeps the weights of an evaluation
            if args.metric_for_best_model:  # resumed from there, the next log's mean would lack the steps before
                control.should_log |= control.should_evaluate

        def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            entries = steps_of(state.log_history)
            if not entries or entries[-1] is not state.log_history[-1]:
                return
            invalid = bool(not_numbers(entries[-1], OF_WEIGHTS))
            if invalid:
                trl_internals.forget_loss(trainer)
            new = new_signals(entries, rules, self.seen)
            self.seen |= new
            for signal in new.values():
                if state.is_world_process_zero:
                    announce.warn(signal.message())
                if signal.stopped:
                    control.should_training_stop, control.should_save = True, not invalid
                    control.should_evaluate = not invalid and args.eval_strategy != "no"

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
            if args.metric_for_best_model not in metrics:
                return
            found = metrics[args.metric_for_best_model]
            if found is None:
                raise Stop("Every held-out rollout was lost to the environment.", "Check that its server runs.")
            if state.global_step % args.save_steps and not _is_better(found, state, args):
                control.should_save = False  # nothing loads weights that are not the best

    trainer.add_callback(Watcher())


def _is_better(metric: float, state: Any, args: Any) -> bool:
    """Whether the metric that chooses the weights is better than at every evaluation before, as the trainer decides."""
    if state.best_metric is None:
        return True
    return metric > state.best_metric if args.greater_is_better else metric < state.best_metric


def stop_without_gain(trainer: Any, most: int) -> None:
    """Adds a callback that ends a training after `most` evaluations in a row that were no better than the best.

    transformers' EarlyStoppingCallback begins to count anew where a training is resumed.
    """

    def on_evaluate(args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        found = metrics.get(args.metric_for_best_model)
        if found is not None and not _is_better(found, state, args):
            control.should_training_stop |= state.global_step - state.best_global_step >= most * args.eval_steps

    trl_internals.call_back(trainer, on_evaluate=on_evaluate)


def select_weights(context: StageContext, trainer: Any, rules: Signals) -> None:
    """Loads the weights to publish into the trainer, and writes signals.json.

    Selects the best held-out reward; else the last step; if that step is NaN, the newest checkpoint that was followed
    by a valid step. Raises Stop when there is none.
    """
    state = trainer.state
    published = _load_good_weights(context, trainer, rules)
    about = {
        "trained_steps": state.global_step,
        "published_step": published,
        "held_out_loss" if trainer.args.greater_is_better is False else "held_out_reward": state.best_metric,
    }
    if trainer.is_world_process_zero():
        seen = list(signals_in(state.log_history, rules).values())
        write_signals(context.out, rules, seen, about)
        for line in as_lines(about | {"signals": []}):
            announce.warn(line)


def _load_good_weights(context: StageContext, trainer: Any, rules: Signals) -> int:
    last, best = trainer.state.global_step, trainer.state.best_global_step
    broken = _first_invalid(trainer.state.log_history)
    trusted = broken is None or (rules.nan == "warn" and broken == last)  # the last step was skipped
    if trusted and best in (None, last) and _all_finite(trainer, trainer.model.parameters()):
        return last
    for checkpoint in whole_checkpoints(context.scratch):
        step = step_of(checkpoint)
        if step == best if best else broken is None or step < broken - 1:
            trl_internals.load_weights(trainer, checkpoint)
            if _all_finite(trainer, trainer.model.parameters()):
                return step
    invalid = ", ".join(not_numbers(steps_of(trainer.state.log_history)[-1], OF_WEIGHTS))
    cause = f"Step {broken}: {invalid}" if broken else f"After step {last} weights are NaN"
    raise Stop(f"{cause}, and no checkpoint from before is left to publish.", ADVICE["nan"])


def _first_invalid(log: list[Entry]) -> int | None:
    """The first step of the invalid ones at the end of the log; None when the last step is valid."""
    invalid = takewhile(lambda entry: not_numbers(entry, OF_WEIGHTS), reversed(steps_of(log)))
    return min((entry["step"] for entry in invalid), default=None)


def _all_finite(trainer: Any, tensors: Iterable[Any]) -> bool:
    """Whether all tensors are finite, in all processes. Each process checks its own shards."""
    import torch

    parts = [each.to_local() if hasattr(each, "to_local") else each for each in tensors if each is not None]
    total = torch.nn.utils.get_total_norm([part.detach() for part in parts if part.is_floating_point()])
    if trainer.accelerator.num_processes > 1:
        total = trainer.accelerator.reduce(total.to(trainer.accelerator.device), reduction="sum")
    return math.isfinite(total.item())
