"""Diagnoses a GRPO run from its curves and gives advice in one sentence.

In: the trainer's log history, and the rules of its signals. Out: the reward delta as the walkthrough defines it, with
its interval, and a diagnosis.
With beta = 0 there is no reference model, so no KL term explains a fall. Saturation is the share of groups with equal
rewards (`frac_reward_zero_std`), not `reward_std`, which is computed over the batch: groups [1, 1] and [0, 0] show 0.58
there and teach nothing. The delta compares different questions and is noisy; the held-out evaluation decides. With a
curriculum it compares easier with harder ones, and says nothing of progress.

Detects problems in a training's log: each kind of signal once, at the first log that shows it.
"""

import json
import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from apprentice.tasks.analysis.comparison import Interval, welch_interval
from apprentice.tasks.analysis.kinds import kinds_over_time
from apprentice.tasks.judgement.contents import Curves, Diagnosis
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
        return f"{self.told()} {self.advice}"

    def told(self) -> str:
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
    lines = [Signal(**signal).told() for signal in kept["signals"]]
    if kept.get("published_step") != kept.get("trained_steps"):
        measure = "loss" if "held_out_loss" in kept else "reward"
        score = kept[f"held_out_{measure}"]
        why = f", which had the best held-out {measure}: {score:.3g}" if score is not None else ", the last good ones"
        lines.append(f"Of {kept['trained_steps']} steps the weights of step {kept['published_step']} are kept{why}.")
    return lines


def _dead(entries: list[Entry], rules: RewardSignals, near_zero: bool) -> str | None:
    """Whether most groups of the last window are dead, at rewards near zero or above."""
    recent = entries[-rules.window :]
    groups, rewards = _dead_groups(recent), _numbers(recent, "reward")
    if len(groups) < rules.window or not rewards or not are_dead(mean(groups), rules):
        return None
    if have_no_signal(mean(groups), mean(rewards), rules) != near_zero:
        return None
    return (
        f"{mean(groups):.0%} of the groups scored all the same in the last {rules.window} logs, "
        f"at a mean reward of {mean(rewards):.3g}"
    )


def _dead_groups(entries: list[Entry]) -> list[float]:
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


KINDS: dict[str, Callable[[list[Entry], Any], str | None]] = {
    "nan": lambda entries, _: ", ".join(not_numbers(entries[-1])) or None,
    "saturated": partial(_dead, near_zero=False),
    "no_signal": partial(_dead, near_zero=True),
    "length": _length,
    "entropy": _entropy,
    "engine": _engine,
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


RULES = RewardSignals()
"""The default rules."""
STILL = 0.9
"""The share of its first loss above which SFT has learned next to nothing."""
ENDS = 5
"""Logged rewards to average at the start and at the end (walkthrough, section 10)."""

OF_THE_REWARD = (Diagnosis.FELL, Diagnosis.FLAT, Diagnosis.LEARNING)
"""Diagnoses of the reward's course."""
HELD_OUT_DECIDES = {
    Diagnosis.LEARNING: "The logged rewards do not show it, since each log asks other questions; the held-out ones do.",
    Diagnosis.FLAT: "The reward moved on the training's questions; on the held-out ones the difference is within its "
    "noise.",
    Diagnosis.FELL: "The logged rewards do not show it; on the held-out questions the model is worse than before.",
}
CHOSEN_BY_SUCCESS = (
    "The questions were chosen by what the model can do, harder ones as it learned, so the rewards of different steps "
    "do not compare: read the success of each kind."
)


def read_curves(log: list[dict[str, Any]], beta: float, rules: RewardSignals = RULES) -> Curves:
    """Applies the rules to a log history with `reward` and `frac_reward_zero_std`. Raises ValueError without any."""
    rewards = [reward for entry in log if (reward := value_of(entry, "reward")) is not None]
    if not rewards:
        raise ValueError("the log has no rewards; lower grpo.logging_steps")
    first, last = rewards[:ENDS], rewards[-ENDS:]
    dead = _dead_groups(log)
    delta = mean(last) - mean(first)
    ci = welch_interval(first, last) if len(rewards) >= 2 * ENDS else None
    judged = _judge(mean(first), ci, len(rewards), mean(dead[:ENDS]), mean(dead[-ENDS:]), beta, rules)
    if judged[0] in OF_THE_REWARD and kinds_over_time(log):
        judged = Diagnosis.FOLLOWS_THE_CURRICULUM, CHOSEN_BY_SUCCESS
    diagnosis, advice = judged
    return Curves(
        reward_initial=mean(first),
        reward_final=mean(last),
        delta=delta,
        ci=ci,
        logs=len(rewards),
        dead_groups=mean(dead[-ENDS:]),
        diagnosis=diagnosis,
        advice=advice,
    )


def has_rewards(log: list[dict[str, Any]]) -> bool:
    """Whether a log is of a training by reward."""
    return any(value_of(entry, "reward") is not None for entry in log)


def learned_nothing(log: list[dict[str, Any]]) -> str:
    """A warning where SFT's loss fell by less than a tenth: GRPO would begin from nothing. Else empty."""
    losses = [entry["loss"] for entry in log if entry.get("loss") is not None]
    ends = min(ENDS, len(losses) // 2)
    if not ends or (last := mean(losses[-ends:])) < STILL * (first := mean(losses[:ends])):
        return ""
    return (
        f"SFT has learned next to nothing: its loss was {first:.3g} at first and is {last:.3g} at the end. GRPO cannot "
        "mend that: raise sft.epochs or sft.learning_rate, or look at what was kept of the rollouts."
    )


def settled(reading: Curves, gain: Interval | None) -> Curves:
    """The reading with its course as the held-out questions have it: they decide where the two differ.

    `gain`: the 95% interval of GRPO's gain on the held-out questions; None where nothing was compared.
    """
    if gain is None or reading.diagnosis not in OF_THE_REWARD:
        return reading
    course = Diagnosis.LEARNING if gain[0] > 0 else Diagnosis.FELL if gain[1] < 0 else Diagnosis.FLAT
    if course == reading.diagnosis:
        return reading
    return reading.model_copy(update={"diagnosis": course, "advice": HELD_OUT_DECIDES[course]})


def _judge(
    first: float, ci: Interval | None, logs: int, dead_first: float, dead_last: float, beta: float, rules: RewardSignals
) -> tuple[Diagnosis, str]:
    if ci is None and logs < 2 * ENDS:
        return Diagnosis.TOO_SHORT, f"Only {logs} rewards were logged; the two ends overlap. Log at least {2 * ENDS}."
    if first >= rules.high:
        return (
            Diagnosis.TOO_EASY,
            f"The reward was at {first:.0%} before GRPO began; make the task harder (environment.settings).",
        )
    if have_no_signal(dead_first, first, rules):
        return Diagnosis.NO_SIGNAL, ADVICE["no_signal"]
    if ci is not None and ci[1] < 0:
        cause = (
            "With beta = 0 no KL term pulls the policy back; look at the learning rate and the number of steps."
            if beta == 0
            else "Look at the learning rate, at beta, and stop earlier."
        )
        return Diagnosis.FELL, f"The reward fell during training. {cause}"
    if are_dead(dead_last, rules):
        return Diagnosis.SATURATED, ADVICE["saturated"]
    if ci is None or ci[0] <= 0:
        return (
            Diagnosis.FLAT,
            "The reward's rise is within its noise: more steps, a larger batch, or a higher learning rate.",
        )
    return Diagnosis.LEARNING, "The reward rose and groups still differ: more steps may give more."
