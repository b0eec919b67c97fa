"""Selects a run's questions: of the three seed windows, a regression evaluation, a rung, the probe, a round.

In: the task, the windows, what is asked elsewhere. Out: `Questions`: questions.jsonl (purpose, seed, question, used).
Why: small problem spaces repeat questions under different seeds. Knowing the texts in advance keeps evaluation
questions out of training and rejects a task with too few questions before anything is bought or trained.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.engine.stage import Drawn, StageContext, stage
from apprentice.tasks.episodes.texts import same_text
from apprentice.tasks.files.json_lines import read_rows
from apprentice.tasks.files.question_lists import used_questions, write_questions
from apprentice.tasks.judgement.contamination import held_out_texts
from apprentice.tasks.question_space import LEAST_FRESH, check_space, lasts, least_fresh
from apprentice.tasks.question_texts import ask
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import TRAINED_ON, Purpose, SeedWindows, Shares, Window

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
        check_space(windows, chosen, rows, examined)
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


def _is_drawn(shares: Shares, slices: dict[str, int | str], seed: int) -> bool:
    """Whether a question is among the share of its kind; decided by its seed alone."""
    share = shares.of.get(str(slices.get(shares.trait)), 1.0)
    drawn = int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=6).digest()) / 2**48
    return drawn < share
