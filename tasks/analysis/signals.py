"""Reads a training's log for what is wrong with it: every kind once, at the first log that shows it.

In: the trainer's log history, the rules. Out: signals, each one a sentence with the number behind it. They follow from
the log alone, so a training that is resumed knows what it has said. `diagnose.py` reads the finished curves by the same
rules.
"""

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from apprentice.tasks.settings.signals import GrpoSignals, Signals

Entry = dict[str, Any]
SIGNALS = "signals.json"
OF_WEIGHTS = ("loss", "grad_norm")
"""What is no number where the weights give none."""
ADVICE = {
    "nan": "Lower the learning rate, or lengthen warmup_steps; where bf16 is on, see whether it happens without.",
    "saturated": "Most groups score the same and teach nothing more: stop earlier or make the task harder.",
    "no_signal": "Nearly every group scored the same, near zero: check format compliance, train SFT longer, "
    "make the task easier, or raise grpo.num_generations.",
    "length": "Read completions.jsonl: where the model gives up early, lower the learning rate, or train SFT longer.",
    "entropy": "Lower the learning rate, or stop earlier; grpo.beta above 0 holds the policy back.",
}


class Signal(NamedTuple):
    """What was seen, and what became of it."""

    kind: str
    step: int
    found: str
    """A sentence with the number behind it."""
    advice: str
    stopped: bool
    """The training ended there."""

    def told(self) -> str:
        """For a person: what was seen, what became of it, what to do."""
        return " ".join([self.found, *(["The training ends there."] if self.stopped else []), self.advice])


def signals_in(log: Iterable[Entry], rules: Signals) -> dict[str, Signal]:
    """Every signal of a log history, by its kind."""
    entries = steps_of(log)
    seen: dict[str, Signal] = {}
    for place in range(1, len(entries) + 1):
        seen |= new_signals(entries[:place], rules, seen)
    return seen


def new_signals(entries: list[Entry], rules: Signals, known: Iterable[str]) -> dict[str, Signal]:
    """What the last one of these entries shows, but for the kinds that are known."""
    seen = {}
    for kind, found_in in KINDS.items():
        act = getattr(rules, kind, "off")
        if act != "off" and kind not in known and (found := found_in(entries, rules)):
            step = entries[-1]["step"]
            seen[kind] = Signal(kind, step, f"Step {step}: {found}.", ADVICE[kind], act == "stop")
    return seen


def reward_of(entry: Entry) -> Any:
    """The mean of the environments' own rewards, which is what GRPO sums up where it has one stream."""
    return entry.get("own_reward", entry.get("reward"))


def steps_of(log: Iterable[Entry]) -> list[Entry]:
    """The entries on steps of training: neither evaluations nor the summary at the end."""
    return [entry for entry in log if "loss" in entry]


def not_numbers(entry: Entry, of: Iterable[str] = (*OF_WEIGHTS, "reward")) -> list[str]:
    """What of an entry is no number, such as "loss is nan"."""
    read = {name: entry.get(name) for name in of}
    return [f"{name} is {value}" for name, value in read.items() if value is not None and not math.isfinite(value)]


def are_dead(groups: float, rules: GrpoSignals) -> bool:
    """Whether most groups teach nothing, by their share without a difference in reward."""
    return groups >= rules.dead_groups


def have_no_signal(groups: float, reward: float, rules: GrpoSignals) -> bool:
    """Whether nothing can be learned from where the model is."""
    return are_dead(groups, rules) and reward <= rules.low


def write_signals(out: Path, rules: Signals, seen: Iterable[Signal], about: dict[str, Any]) -> None:
    """Keeps them beside the weights, with the rules; `about`: what else is to be told of the training."""
    kept = about | {"signals": [signal._asdict() for signal in seen], "rules": rules.model_dump()}
    (out / SIGNALS).write_text(json.dumps(kept, indent=2) + "\n")


def read_signals(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint keeps of them; no signals for one that was trained before there were any."""
    path = checkpoint / SIGNALS
    return json.loads(path.read_text()) if path.exists() else {"signals": [], "rules": {}}


def as_lines(kept: dict[str, Any]) -> list[str]:
    """What a checkpoint keeps of its training, as sentences: each signal, and which step's weights these are."""
    lines = [Signal(**signal).told() for signal in kept["signals"]]
    if kept.get("published_step") != kept.get("trained_steps"):
        score = kept["held_out_reward"]
        why = f", whose held-out reward was the best: {score:.3g}" if score is not None else ", the last good ones"
        lines.append(f"Of {kept['trained_steps']} steps the weights of step {kept['published_step']} are kept{why}.")
    return lines


def _nan(entries: list[Entry], rules: Signals) -> str | None:
    return ", ".join(not_numbers(entries[-1])) or None


def _saturated(entries: list[Entry], rules: GrpoSignals) -> str | None:
    groups, reward = _dead_groups(entries, rules)
    if groups is None or reward is None or have_no_signal(groups, reward, rules) or not are_dead(groups, rules):
        return None
    return _said_of(groups, reward, rules)


def _no_signal(entries: list[Entry], rules: GrpoSignals) -> str | None:
    groups, reward = _dead_groups(entries, rules)
    if groups is None or reward is None or not have_no_signal(groups, reward, rules):
        return None
    return _said_of(groups, reward, rules)


def _length(entries: list[Entry], rules: GrpoSignals) -> str | None:
    first, last = _ends(entries, "completions/mean_length", rules.window)
    before, now = _ends(entries, "reward", rules.window)
    if first is None or last is None or before is None or now is None:
        return None
    if last > rules.length_left * first or now > before:
        return None
    return (
        f"completions shrank from {first:.3g} to {last:.3g} tokens (means of {rules.window} logs), and the reward did "
        f"not rise ({before:.3g}, now {now:.3g})"
    )


def _entropy(entries: list[Entry], rules: GrpoSignals) -> str | None:
    first, last = _ends(entries, "entropy", rules.window)
    _, reward = _ends(entries, "reward", rules.window)
    if first is None or last is None or reward is None:
        return None
    if last > rules.entropy_left * first or reward >= rules.high:
        return None
    return (
        f"entropy fell from {first:.3g} to {last:.3g} (means of {rules.window} logs), at a mean reward of {reward:.3g}"
    )


KINDS: dict[str, Callable[[list[Entry], Any], str | None]] = {
    "nan": _nan,
    "saturated": _saturated,
    "no_signal": _no_signal,
    "length": _length,
    "entropy": _entropy,
}


def _dead_groups(entries: list[Entry], rules: GrpoSignals) -> tuple[float | None, float | None]:
    """The share of dead groups and the reward in the last window."""
    recent = entries[-rules.window :]
    groups, rewards = _numbers(recent, "frac_reward_zero_std"), _numbers(recent, "reward")
    if len(groups) < rules.window or not rewards:
        return None, None
    return mean(groups), mean(rewards)


def _said_of(groups: float, reward: float, rules: GrpoSignals) -> str:
    return (
        f"{groups:.0%} of the groups scored all the same in the last {rules.window} logs, "
        f"at a mean reward of {reward:.3g}"
    )


def _ends(entries: list[Entry], name: str, window: int) -> tuple[float | None, float | None]:
    """The means of the first window and of the last; None while they overlap."""
    if len(entries) < 2 * window:
        return None, None
    first, last = _numbers(entries[:window], name), _numbers(entries[-window:], name)
    return (mean(first), mean(last)) if first and last else (None, None)


def _numbers(entries: list[Entry], name: str) -> list[float]:
    values = (reward_of(entry) if name == "reward" else entry.get(name) for entry in entries)
    return [value for value in values if value is not None and math.isfinite(value)]
