"""Reads the text of every question in the three seed windows from the environment.

In: the task and the windows. Out: `Questions`: questions.jsonl (purpose, seed, question, used).
Why: small problem spaces repeat questions under different seeds. Knowing the texts in advance keeps evaluation
questions out of training and rejects a task with too few questions before anything is bought or trained.

Reads the questions of one round, without those that an earlier round has asked.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.wire.session import Refused, SessionLost
from apprentice.tasks.artifacts.alike import made_alike
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.engine.stage import Drawn, StageContext, stage
from apprentice.tasks.episodes.record import held_out_texts, read_rows, same_text, used_questions, write_questions
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop, as_stop
from apprentice.tasks.settings.spec import TRAINED_ON, Purpose, SeedWindows, Shares, Window

LEAST_FRESH = 0.5
"""Minimum share of a training window that must remain after evaluation questions are removed."""


QUESTIONS_BOX = Drawn("Questions", is_aside=True)
PROBED = Drawn("Probe", is_aside=True)


@stage(produces=Questions, version=2, title="Questions of the seed windows", drawn=QUESTIONS_BOX)
def questions(
    context: StageContext, environment: EnvironmentSpec, windows: SeedWindows, examined: int
) -> dict[str, Any]:
    """Records all questions and selects `examined` distinct ones from the evaluation window as the evaluation set.

    Raises Stop when the environment rejects the configuration, cannot be reached, or has too few questions. Where there
    are so few that the windows repeat them (`tasks`, `one_task`), every seed is another try of one, in all windows.
    """
    texts = ask(context, environment, [seed for _, window in windows for seed in window.seeds()])
    repeats = environment.repeats(seed for _, window in windows for seed in window.seeds())
    by = {seed: str(seed) if repeats else same_text(text) for seed, text in texts.items()}
    chosen: dict[str, int] = {}
    for seed in windows.evaluate.seeds():
        if len(chosen) < examined:
            chosen.setdefault(by[seed], seed)
    rows = []
    for purpose, window in windows:
        for seed in window.seeds():
            evaluated_seed = chosen.get(by[seed])
            used = evaluated_seed == seed if purpose == Purpose.EVALUATE else evaluated_seed is None
            rows.append({"purpose": purpose, "seed": seed, "question": texts[seed], "used": used})
    if not repeats:
        _check_space(windows, chosen, rows, examined)
    write_questions(context.out, rows)
    used_by = {purpose: sum(row["used"] for row in rows if row["purpose"] == purpose) for purpose, _ in windows}
    return {
        **used_by,
        Purpose.COLLECT: windows.collect.size,
        "dropped_from_grpo": windows.of(Purpose.TRAIN).size - used_by[Purpose.TRAIN],
    }


@stage(produces=Questions, version=1, title="Questions of a regression evaluation", drawn=QUESTIONS_BOX)
def exam(context: StageContext, environment: EnvironmentSpec, window: Window, examined: int) -> dict[str, Any]:
    """The first `examined` distinct questions of one window, or all if fewer. Raises Stop like `questions`."""
    texts = sorted(ask(context, environment, window.seeds()).items())
    return publish_exam(context, ({"seed": seed, "question": text} for seed, text in texts), examined)


def publish_exam(
    context: StageContext, rows: Iterable[dict[str, Any]], most: int | None = None, repeats: bool = False
) -> dict[str, Any]:
    """Writes the first `most` distinct questions as those of an evaluation; returns the fields of the `Questions`.

    Args:
        repeats: Whether every row counts, also where it repeats a question.
    """
    chosen: dict[str, dict[str, Any]] = {}
    for row in rows:
        if len(chosen) != most:
            named = {"purpose": Purpose.EVALUATE, "seed": row["seed"], "question": row["question"], "used": True}
            chosen.setdefault(str(row["seed"]) if repeats else same_text(row["question"]), named)
    write_questions(context.out, chosen.values())
    return _counted(Purpose.EVALUATE, len(chosen))


def _counted(purpose: Purpose, used: int, dropped: int = 0) -> dict[str, Any]:
    """The fields of `Questions` of one purpose."""
    return {each.value: 0 for each in Purpose} | {purpose.value: used, "dropped_from_grpo": dropped}


def ask(
    context: StageContext, environment: EnvironmentSpec, seeds: Sequence[int], named: str = "environment.settings"
) -> dict[int, str]:
    """The question of each seed. Raises Stop when the environment rejects the task or cannot be reached.

    Of a window that has grown only the new seeds are asked, and the first one again: a server that asks something else
    now is asked for all of them.

    `named`: the recipe field that holds the task's settings, for the error message.
    """
    known = _known(context, environment, seeds)
    texts = _asked(context, environment, [*list(known)[:1], *(seed for seed in seeds if seed not in known)], named)
    if any(texts[seed] != known[seed] for seed in texts.keys() & known.keys()):
        return _asked(context, environment, seeds, named)
    return known | texts


def _known(context: StageContext, environment: EnvironmentSpec, seeds: Sequence[int]) -> dict[int, str]:
    """The questions of these seeds that the store's folder has, of the same environment."""
    found: dict[int, str] = {}
    for _, folder in made_alike(context.run.store, Questions, {"environment": environment.in_key()}):
        found = {row["seed"]: row["question"] for row in read_rows(folder / "questions.jsonl")} | found
    return {seed: found[seed] for seed in seeds if seed in found}


def _asked(context: StageContext, environment: EnvironmentSpec, seeds: Sequence[int], named: str) -> dict[int, str]:
    texts = {}
    server = context.run.servers.environment(environment.name)
    with (
        as_stop(Refused, "The environment refused the task: {}", f"Correct {named} in the recipe."),
        as_stop(
            SessionLost,
            "The environment's server gave no question: {}",
            "Check with `apprentice env check` that it runs and serves this environment, then run again.",
        ),
        announce.progress("questions", len(seeds)) as advance,
        EnvironmentPool(environment, server, say=announce.warn) as pool,
    ):
        for seed, text in pool.map(lambda instance, seed: instance.ask(seed), seeds):
            texts[seed] = text
            advance(1)
    return texts


def least_fresh(size: int) -> int:
    """Questions of a training window that must be new: half of them, so none of a window of one, as without GRPO."""
    return int(LEAST_FRESH * size)


def _check_space(windows: SeedWindows, chosen: dict[str, int], rows: list[dict[str, Any]], needed: int) -> None:
    distinct = len({same_text(row["question"]) for row in rows})
    advice = "Widen the task (environment.settings) or reduce evaluate.questions."
    if len(chosen) < needed:
        raise Stop(
            f"The problem space is too small: {windows.evaluate.size} seeds gave only {len(chosen)} distinct "
            f"questions, and the evaluation needs {needed} ({distinct} distinct questions in all windows).",
            advice,
        )
    for purpose in TRAINED_ON:
        window = [row for row in rows if row["purpose"] == purpose]
        fresh = sum(row["used"] for row in window)
        if fresh < least_fresh(len(window)):
            raise Stop(
                f"The problem space is too small: {len(window) - fresh} of the {len(window)} {purpose} seeds repeat "
                f"evaluation questions ({distinct} distinct questions in all windows).",
                advice,
            )


@stage(produces=Questions, version=1, title="Questions of a rung", drawn=QUESTIONS_BOX)
def rung_questions(
    context: StageContext, environment: EnvironmentSpec, window: Window, kept_out: dict[str, Questions]
) -> dict[str, Any]:
    """GRPO's questions under the settings of one level. Raises Stop like `questions`, or when too few remain.

    Args:
        kept_out: Question sets whose evaluation questions are excluded from training; the names are not read.
    """
    held_out = (used_questions(context.fetch(each), Purpose.EVALUATE) for each in kept_out.values())
    evaluation_texts = {same_text(row["question"]) for rows in held_out for row in rows}
    rows = [
        {"purpose": Purpose.TRAIN, "seed": seed, "question": text, "used": same_text(text) not in evaluation_texts}
        for seed, text in sorted(ask(context, environment, window.seeds(), "grpo.auto_difficulty").items())
    ]
    left = sum(row["used"] for row in rows)
    if left < LEAST_FRESH * len(rows):
        raise Stop(
            f"A level of grpo.auto_difficulty is too small: {len(rows) - left} of its {len(rows)} seeds repeat "
            f"questions of an evaluation. Its settings: {environment.settings}.",
            "Widen it, remove it, or reduce evaluate.questions.",
        )
    write_questions(context.out, rows)
    return _counted(Purpose.TRAIN, left, len(rows) - left)


@stage(produces=Questions, version=1, title="Questions of the probe", drawn=PROBED)
def probe_questions(context: StageContext, questions: Questions, examined: int) -> dict[str, Any]:
    """The first `examined` distinct questions that GRPO would train on, or all if there are fewer; tries of the same
    ones where the evaluation repeats them as well."""
    folder = context.fetch(questions)
    repeats = bool(used_questions(folder, Purpose.EVALUATE)) and not held_out_texts(folder)
    return publish_exam(context, used_questions(folder, Purpose.TRAIN), examined, repeats)


SOON = 20
"""Rounds; a space that lasts for no more of them is warned of."""


@stage(produces=Questions, version=2, title="Questions of the round", drawn=QUESTIONS_BOX)
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
    earlier_rows = (row for each in earlier.values() for row in read_rows(context.fetch(each) / "questions.jsonl"))
    known = {same_text(row["question"]) for row in earlier_rows if row["used"]}
    chosen: dict[str, int] = {}
    for seed in windows.evaluate.seeds():
        if len(chosen) < examined and same_text(texts[seed]) not in known:
            chosen.setdefault(same_text(texts[seed]), seed)
    instance = environment.make()
    rows: list[dict[str, Any]] = []
    new: Counter[str] = Counter()
    for purpose, window in windows:
        for seed in window.seeds():
            text = same_text(texts[seed])
            used = chosen.get(text) == seed
            if purpose != Purpose.EVALUATE and (used := text not in known and text not in chosen):
                new[purpose] += 1
                used = shares is None or _is_drawn(shares, instance.slices(seed, texts[seed]), seed)
            rows.append({"purpose": purpose, "seed": seed, "question": texts[seed], "used": used})
    a_round = windows.collect.size + windows.of(Purpose.TRAIN).size + examined
    rounds = lasts([row["question"] for row in rows], a_round)
    least = {purpose: least_fresh(window.size) for purpose, window in windows}
    if len(chosen) < examined or any(new[purpose] < least[purpose] for purpose in TRAINED_ON):
        raise Stop(
            f"The questions of {environment} are used up: the evaluation has {len(chosen)} new ones of {examined}, "
            f"training {new[Purpose.COLLECT]} of {windows.collect.size} and {new[Purpose.TRAIN]} of "
            f"{windows.of(Purpose.TRAIN).size}."
            f" At this size they last about {rounds} rounds.",
            "Widen the task (environment.settings), add a level (improve.ladder), or make the windows smaller, under "
            "another recipe name.",
        )
    if rounds <= SOON:
        announce.warn(f"The space of questions lasts about {rounds} rounds of this size, by the repeats in this one.")
    write_questions(context.out, rows)
    used_by = Counter(row["purpose"] for row in rows if row["used"])
    dropped = windows.of(Purpose.TRAIN).size - used_by[Purpose.TRAIN]
    return {**{purpose: used_by[purpose] for purpose, _ in windows}, "dropped_from_grpo": dropped}


def lasts(texts: list[str], a_round: int) -> int:
    """About how many rounds of `a_round` questions each a space lasts, estimated from the repeats among random ones.

    The number of distinct questions N is Chao's lower bound (A. Chao, Scand. J. Stat. 11, 1984) from the `texts` that
    occur once and twice; of n random ones in round r a share of exp(-r n / N) is new, and half of them must be.
    """
    times = Counter(Counter(map(same_text, texts)).values())
    once, twice = times[1], times[2]
    distinct = sum(times.values()) + (once * once / (2 * twice) if twice else once * (once - 1) / 2)
    return 1 + int(math.log(1 / LEAST_FRESH) * distinct / a_round)


def _is_drawn(shares: Shares, slices: dict[str, int | str], seed: int) -> bool:
    """Whether a question is among the share of its kind; decided by its seed alone."""
    share = shares.of.get(str(slices.get(shares.trait)), 1.0)
    drawn = int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=6).digest()) / 2**48
    return drawn < share
