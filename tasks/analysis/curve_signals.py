"""Signals in the curves of a training: what warns while it runs, and what stops it.

In: a log, the rules of the section. Out: `Signal`s, and signals.json in the checkpoint. Training and report use the
same rules.
"""

import json
import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from apprentice.tasks.settings.signals import RewardSignals, Signals

Entry = dict[str, Any]
SIGNALS = "signals.json"
OF_WEIGHTS = ("loss", "grad_norm")
"""The metrics that become NaN when the weights are."""
ENTROPY_WITH_SIGNAL = "with_signal/entropy"
"""The metric of GRPO's entropy where it skips dead groups."""
ADVICE = {
    "nan": "Lower the learning rate, or lengthen warmup_steps; where bf16 is on, see whether it happens without.",
    "saturated": "Most groups score the same and teach nothing more: stop earlier, make the task harder, or have "
    "further questions asked in their place (grpo.oversample).",
    "no_signal": "Nearly every group scored the same, near zero: check format compliance, train SFT longer, "
    "make the task easier, raise grpo.num_generations, or have further questions asked (grpo.oversample).",
    "length": "Read completions.jsonl: where the model gives up early, lower the learning rate, or train SFT longer.",
    "engine": "Let both compute in the same type (grpo.bf16), and update vLLM; TRL's importance sampling masks what "
    "differs too much.",
    "cut_off": "Raise student.thinking.max_tokens, have the teacher write less (teacher.thoughts), or set "
    "grpo.soft_overlong.",
    "longer": "Set grpo.thought_cost, or stop earlier; completions.jsonl shows what the longer thoughts say.",
    "stopped": "Often the better policy: compare with the thought forced empty (evaluate.thinking). If that is as "
    "good, train a student that answers at once.",
    "entropy": "Lower the learning rate, or stop earlier; grpo.beta above 0 holds the policy back.",
}


class Signal(NamedTuple):
    kind: str
    step: int
    found: str
    """A sentence with its number."""
    advice: str
    stopped: bool
    """Whether the training ended there."""

    def message(self) -> str:
        """The finding, whether the training ends, and the advice, while something can be done about it."""
        return f"{self.summary()} {self.advice}"

    def summary(self) -> str:
        """The finding, and whether the training ends."""
        return self.found + (" The training ends there." if self.stopped else "")


def signals_in(log: Iterable[Entry], rules: Signals) -> dict[str, Signal]:
    """All signals of a log history, by kind."""
    entries = steps_of(log)
    seen: dict[str, Signal] = {}
    for end in range(1, len(entries) + 1):
        seen |= new_signals(entries[:end], rules, seen)
    return seen


def new_signals(entries: list[Entry], rules: Signals, known: Iterable[str]) -> dict[str, Signal]:
    """The signals that the last of these entries shows, except `known` kinds."""
    seen = {}
    for kind, found_in in KINDS.items():
        act = getattr(rules, kind, "off")
        if act != "off" and kind not in known and (found := found_in(entries, rules)):
            step = entries[-1]["step"]
            seen[kind] = Signal(kind, step, f"Step {step}: {found}.", ADVICE[kind], act == "stop")
    return seen


def value_of(entry: Entry, metric: str) -> Any:
    """A metric of a log's entry, or None. `reward` is the environment's mean reward, also where GRPO weights several
    streams; `entropy` is that of the completions that were learned from, where GRPO skips the others."""
    own = {"reward": "own_reward", "entropy": ENTROPY_WITH_SIGNAL}.get(metric, metric)
    return entry.get(own, entry.get(metric))


def steps_of(log: Iterable[Entry]) -> list[Entry]:
    """The entries of training steps, without evaluations and the final summary."""
    return [entry for entry in log if "loss" in entry]


def not_numbers(entry: Entry, of: Iterable[str] = (*OF_WEIGHTS, "reward")) -> list[str]:
    """The metrics of an entry that are NaN or infinite, such as "loss is nan"."""
    read = {name: entry.get(name) for name in of}
    return [f"{name} is {value}" for name, value in read.items() if value is not None and not math.isfinite(value)]


def are_dead(groups: float, rules: RewardSignals) -> bool:
    """Whether most groups teach nothing, by the share of groups with equal rewards."""
    return groups >= rules.dead_groups


def have_no_signal(groups: float, reward: float, rules: RewardSignals) -> bool:
    """Whether most groups have equal rewards near zero."""
    return are_dead(groups, rules) and reward <= rules.low


def write_signals(out: Path, rules: Signals, seen: Iterable[Signal], about: dict[str, Any]) -> None:
    """Writes signals.json: the signals, the rules, and `about`, further facts about the training."""
    kept = about | {"signals": [signal._asdict() for signal in seen], "rules": rules.model_dump()}
    (out / SIGNALS).write_text(json.dumps(kept, indent=2) + "\n")


def read_signals(checkpoint: Path) -> dict[str, Any]:
    """The contents of a checkpoint's signals.json; without signals for checkpoints that have none."""
    path = checkpoint / SIGNALS
    return json.loads(path.read_text()) if path.exists() else {"signals": [], "rules": {}}


def as_lines(kept: dict[str, Any]) -> list[str]:
    """A checkpoint's signals as sentences, and which step's weights it has if not the last one's."""
    lines = [Signal(**signal).summary() for signal in kept["signals"]]
    if kept.get("published_step") != kept.get("trained_steps"):
        measure = "loss" if "held_out_loss" in kept else "reward"
        score = kept[f"held_out_{measure}"]
        why = f", which had the best held-out {measure}: {score:.3g}" if score is not None else ", the last good ones"
        lines.append(f"Of {kept['trained_steps']} steps the weights of step {kept['published_step']} are kept{why}.")
    return lines


def _dead(entries: list[Entry], rules: RewardSignals, near_zero: bool) -> str | None:
    """Whether most groups of the last window are dead, at rewards near zero or above."""
    recent = entries[-rules.window :]
    groups, rewards = dead_groups(recent), _numbers(recent, "reward")
    if len(groups) < rules.window or not rewards or not are_dead(mean(groups), rules):
        return None
    if have_no_signal(mean(groups), mean(rewards), rules) != near_zero:
        return None
    return (
        f"{mean(groups):.0%} of the groups scored all the same in the last {rules.window} logs, "
        f"at a mean reward of {mean(rewards):.3g}"
    )


def dead_groups(entries: list[Entry]) -> list[float]:
    """The share of groups with equal rewards in each log: of those that the step learned from, where it refills."""
    both = (_numbers([each], "refill/dead_after") or _numbers([each], "frac_reward_zero_std") for each in entries)
    return [share for of_log in both for share in of_log]


def _length(entries: list[Entry], rules: RewardSignals) -> str | None:
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


def _entropy(entries: list[Entry], rules: RewardSignals) -> str | None:
    first, last = _ends(entries, "entropy", rules.window)
    _, reward = _ends(entries, "reward", rules.window)
    if first is None or last is None or reward is None:
        return None
    if last > rules.entropy_left * first or reward >= rules.high:
        return None
    return (
        f"entropy fell from {first:.3g} to {last:.3g} (means of {rules.window} logs), at a mean reward of {reward:.3g}"
    )


def _engine(entries: list[Entry], rules: RewardSignals) -> str | None:
    gap = entries[-1].get("sampling/sampling_logp_difference/mean")
    if gap is None or gap <= rules.engine_gap:
        return None
    return f"the engine's log-probabilities differ from the trainer's by {gap:.3g} a token on average"


THOUGHT = "thought/tokens"
LONGER = 1.5
"""Of the initial tokens of thought, from which they count as longer."""


def _cut_off(entries: list[Entry], rules: RewardSignals) -> str | None:
    shares = _numbers(entries[-rules.window :], "thought/cut_off")
    if len(shares) < rules.window or mean(shares) <= rules.most_cut_off:
        return None
    return f"{mean(shares):.0%} of the rollouts had a thought that was cut off, in the last {rules.window} logs"


def _thoughts(entries: list[Entry], rules: RewardSignals, grow: bool) -> str | None:
    """Whether thoughts became longer without a higher reward, or shorter with one."""
    first, last = _ends(entries, THOUGHT, rules.window)
    before, now = _ends(entries, "reward", rules.window)
    if not first or last is None or before is None or now is None:
        return None
    if (now > before) == grow or (last < LONGER * first if grow else last > rules.length_left * first):
        return None
    course = "grew, and the reward did not rise" if grow else "shrank while the reward rose"
    return f"thoughts {course}: {first:.3g} tokens, now {last:.3g}; reward {before:.3g}, now {now:.3g}"


KINDS: dict[str, Callable[[list[Entry], Any], str | None]] = {
    "nan": lambda entries, _: ", ".join(not_numbers(entries[-1])) or None,
    "saturated": partial(_dead, near_zero=False),
    "no_signal": partial(_dead, near_zero=True),
    "length": _length,
    "entropy": _entropy,
    "engine": _engine,
    "cut_off": _cut_off,
    "longer": partial(_thoughts, grow=True),
    "stopped": partial(_thoughts, grow=False),
}


def _ends(entries: list[Entry], name: str, window: int) -> tuple[float | None, float | None]:
    """The means over the first and the last window; None while they overlap."""
    if len(entries) < 2 * window:
        return None, None
    first, last = _numbers(entries[:window], name), _numbers(entries[-window:], name)
    return (mean(first), mean(last)) if first and last else (None, None)


def _numbers(entries: list[Entry], name: str) -> list[float]:
    values = (value_of(entry, name) for entry in entries)
    return [value for value in values if value is not None and math.isfinite(value)]
