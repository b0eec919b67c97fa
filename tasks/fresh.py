"""Reads the questions of one round, without those that an earlier round has asked.

In: the task, the round's windows, the earlier rounds' `Questions`. Out: `Questions`, as `questions` makes them.
Why by text: seeds of different rounds differ by construction, but a small space repeats a question under another seed,
and a champion must not be examined on what it has learned. Space is told from the repeats before anything is bought.
"""

import hashlib
import math
from collections import Counter
from typing import Any

from apprentice.envs.base import traits_of
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.engine.stage import StageContext, stage
from apprentice.tasks.episodes.jsonl import read_rows, same_text, write_questions
from apprentice.tasks.questions import LEAST_FRESH, ask, least_fresh
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.stages import SeedWindows, Shares

SOON = 20
"""Rounds; a space that lasts for no more of them is warned of."""


@stage(produces=Questions, version=2, title="Questions of the round")
def fresh_questions(
    context: StageContext,
    environment: EnvironmentSpec,
    windows: SeedWindows,
    examined: int,
    earlier: dict[str, Questions],
    shares: Shares | None,
) -> dict[str, Any]:
    """Records all questions; `used` are those to ask. Raises Stop like `questions`, or when too few are new.

    Args:
        earlier: Questions of the rounds before and of the long-run window; the names are not read.
        shares: How many of the training questions of each kind are asked.
    """
    texts = ask(context, environment, [seed for _, window in windows for seed in window.seeds()])
    asked = {same_text(row["question"]) for each in earlier.values() for row in _rows(context, each)}
    chosen: dict[str, int] = {}
    for seed in windows.evaluate.seeds():
        if len(chosen) < examined and same_text(texts[seed]) not in asked:
            chosen.setdefault(same_text(texts[seed]), seed)
    instance = environment.make()
    rows: list[dict[str, Any]] = []
    new: Counter[str] = Counter()
    for purpose, window in windows:
        for seed in window.seeds():
            text = same_text(texts[seed])
            used = chosen.get(text) == seed
            if purpose != "evaluate" and (used := text not in asked and text not in chosen):
                new[purpose] += 1
                used = shares is None or _is_drawn(shares, traits_of(instance, seed, texts[seed]), seed)
            rows.append({"purpose": purpose, "seed": seed, "question": texts[seed], "used": used})
    a_round = windows.collect.size + windows.grpo.size + examined
    rounds = lasts([row["question"] for row in rows], a_round)
    least = {purpose: least_fresh(window.size) for purpose, window in windows}
    if len(chosen) < examined or any(new[purpose] < least[purpose] for purpose in ("collect", "grpo")):
        raise Stop(
            f"The questions of {environment} are used up: the evaluation has {len(chosen)} new ones of {examined}, "
            f"training {new['collect']} of {windows.collect.size} and {new['grpo']} of {windows.grpo.size}. At this "
            f"size they last about {rounds} rounds.",
            "Widen the task (environment.settings), add a rung (improve.ladder), or make the windows smaller, under "
            "another recipe name.",
        )
    if rounds <= SOON:
        announce.warn(f"The space of questions lasts about {rounds} rounds of this size, by the repeats in this one.")
    write_questions(context.out, rows)
    used_by = Counter(row["purpose"] for row in rows if row["used"])
    dropped = windows.grpo.size - used_by["grpo"]
    return {**{purpose: used_by[purpose] for purpose, _ in windows}, "dropped_from_grpo": dropped}


def lasts(asked: list[str], a_round: int) -> int:
    """About how many rounds of `a_round` questions each a space lasts, estimated from the repeats among random ones.

    The number of distinct questions N is Chao's lower bound (A. Chao, Scand. J. Stat. 11, 1984) from those `asked` once
    and twice; of n random ones in round r a share of exp(-r n / N) is new, and half of them must be.
    """
    times = Counter(Counter(map(same_text, asked)).values())
    once, twice = times[1], times[2]
    distinct = sum(times.values()) + (once * once / (2 * twice) if twice else once * (once - 1) / 2)
    return 1 + int(math.log(1 / LEAST_FRESH) * distinct / a_round)


def _is_drawn(shares: Shares, traits: dict[str, int | str], seed: int) -> bool:
    """Whether a question is among the share of its kind; decided by its seed alone."""
    share = shares.of.get(str(traits.get(shares.trait)), 1.0)
    drawn = int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=6).digest()) / 2**48
    return drawn < share


def _rows(context: StageContext, questions: Questions) -> list[dict[str, Any]]:
    return [row for row in read_rows(context.fetch(questions) / "questions.jsonl") if row["used"]]
