"""Mixes the rollouts of several players: what the student learns from beside a teacher, or without one.

In: `Rollouts` of the teacher, an `Evaluation` in which the student played each question several times, earlier
`KeptRollouts`. Out: `KeptRollouts`, of which every row names its player; new rows are dropped as by the filter.
Keeping the model's own right answers is rejection sampling: RAFT (Dong et al., 2023), expert iteration, best-of-k.
"""

import difflib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.tools import tools_text
from apprentice.tasks.analysis.outcomes import why_dropped
from apprentice.tasks.analysis.thought_faults import Check, check_of
from apprentice.tasks.artifacts.types import (
    Checkpoint,
    Evaluation,
    KeptRollouts,
    Questions,
    Rollouts,
)
from apprentice.tasks.engine.stage import Drawn, StageContext, stage
from apprentice.tasks.episodes.record import DATASET, EvaluatedEpisode, Record, read_episodes
from apprentice.tasks.episodes.texts import same_text
from apprentice.tasks.files.json_lines import read_rows
from apprentice.tasks.files.question_lists import used_questions
from apprentice.tasks.filter import Dropped, as_samples
from apprentice.tasks.judgement.contamination import held_out_texts
from apprentice.tasks.judgement.samples import text_of_turns
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.questions import publish_exam
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import MixSpec, Purpose

NEAR = 0.9
"""Similarity of two answers, 0.0 to 1.0 by difflib, from which one of them is dropped."""


@stage(produces=Questions, version=1, title="Questions for the student to try", drawn=Drawn("Questions"))
def tried_questions(context: StageContext, questions: Questions) -> dict[str, Any]:
    """The questions of the collect window, each once, as an evaluation takes them. Raises Stop when none is left."""
    used = used_questions(context.fetch(questions), Purpose.COLLECT)
    if not used:
        raise Stop("No question of windows.collect is left to try.", "Widen the task or the window.")
    return publish_exam(context, used)


@stage(produces=KeptRollouts, version=1, title="Rollouts to learn from", drawn=Drawn("Mix", "episodes", "episodes"))
def mix_rollouts(
    context: StageContext,
    spec: MixSpec,
    environment: EnvironmentSpec,
    questions: Questions,
    rollouts: Rollouts | None,
    tries: Evaluation | None,
    earlier: dict[str, KeptRollouts],
    teacher: str,
    seed: int,
) -> dict[str, Any]:
    """Mixes the rows. Raises Stop when no new one is right, whoever played it.

    Args:
        earlier: Kept rollouts of earlier rounds, the first one first.
        teacher: The teacher's display name, for its rows; empty where the rollouts are of a dataset.
    """
    return _mix(context, spec, environment, questions, rollouts, tries, earlier, teacher, seed)


@stage(produces=KeptRollouts, version=3, title="Rollouts to learn from", drawn=Drawn("Mix", "episodes", "episodes"))
def mix_thoughts(
    context: StageContext,
    spec: MixSpec,
    environment: EnvironmentSpec,
    questions: Questions,
    rollouts: Rollouts | None,
    tries: Evaluation | None,
    earlier: dict[str, KeptRollouts],
    teacher: str,
    seed: int,
    student: Checkpoint,
) -> dict[str, Any]:
    """Like `mix_rollouts`, for a student that thinks: the same filter of thoughts for whoever played."""
    thoughts = check_of(load_tokenizer(context.fetch(student), context.run.trusted))
    return _mix(context, spec, environment, questions, rollouts, tries, earlier, teacher, seed, thoughts)


def _mix(
    context: StageContext,
    spec: MixSpec,
    environment: EnvironmentSpec,
    questions: Questions,
    rollouts: Rollouts | None,
    tries: Evaluation | None,
    earlier: dict[str, KeptRollouts],
    teacher: str,
    seed: int,
    thoughts: Check | None = None,
) -> dict[str, Any]:
    evaluation_texts = held_out_texts(context.fetch(questions))
    dropped = Dropped()
    rows: list[dict[str, Any]] = []
    for row in read_rows(context.fetch(rollouts) / "rollouts.jsonl") if rollouts else []:
        if (cause := why_dropped(row, evaluation_texts, thoughts)) is None:
            rows.append({"player": teacher or DATASET} | row)
        else:
            dropped.note(cause, row)
    if tries is not None:
        own, player = read_episodes(context.fetch(tries)), f"the student ({tries.model})"
        why = partial(why_dropped, evaluation_texts=evaluation_texts, thoughts=thoughts)
        rows += [each.model_dump() for each in _right(own, environment, spec.keep, player, why, dropped)]
    if not rows:
        worst = ", ".join(f"{count} × {cause}" for cause, count in dropped.counts.most_common(3)) or "none was played"
        raise Stop(
            f"No rollout was right ({worst}), so SFT has nothing to learn from.",
            "Make the task easier (environment.settings), raise collect.students, or name a teacher.",
        )
    wanted = round(len(rows) * spec.replay / (1 - spec.replay))
    rows += _replayed(context, earlier, evaluation_texts, wanted, seed, thoughts)
    random.Random(seed).shuffle(rows)  # SFT holds out the last ones
    (context.out / "kept.jsonl").write_bytes(b"".join(Record.model_validate(row).line() for row in rows))
    (context.out / "samples.md").write_text(as_samples(rows))
    counted = Counter(row["player"] for row in rows)
    announce.rows("players", "Who played what SFT learns from", [{"player": n, "rows": c} for n, c in counted.items()])
    if thoughts is not None:
        dropped.write(context.out)
    return {"episodes": len(rows) + dropped.counts.total(), "kept": len(rows), "dropped": dict(dropped.counts)}


def for_the_teacher(seeds: list[int], tries: list[EvaluatedEpisode], most: int | None) -> list[int]:
    """The questions that a teacher is paid for, in their order: none that every try got right, and at most so many,
    those that the fewest tries got right."""
    right = Counter(record.seed for record in tries if record.is_right)
    mastered = {record.seed for record in tries} - {record.seed for record in tries if not record.is_right}
    ahead = [seed for seed in seeds if seed not in mastered]
    chosen = set(sorted(ahead, key=lambda seed: right[seed])[:most])
    return [seed for seed in ahead if seed in chosen]


def _right(
    tries: list[EvaluatedEpisode],
    environment: EnvironmentSpec,
    most: int,
    player: str,
    why: Callable[[dict[str, Any]], str | None],
    dropped: Dropped,
) -> Iterator[Record]:
    """Yields the right tries, at most so many a question: the shortest first, and none that nearly repeats another."""
    instance = environment.make()
    by_question: dict[int, list[EvaluatedEpisode]] = {}
    for each in tries:
        by_question.setdefault(each.seed, []).append(each)
    for seed, episodes in by_question.items():
        part = instance.part(seed)
        taken: list[str] = []
        for each in sorted(episodes, key=lambda episode: (len(text_of_turns(episode)), episode.sample)):
            record = Record(
                seed=seed,
                environment=environment.played_by(part),
                messages=each.messages,
                tools=tools_text(part.tools),
                takes_text=part.takes_text,
                reward=each.reward,
                failed_at="question" if each.broken else "",
                correct=each.correct,
                player=player,
            )
            text = text_of_turns(each)
            cause = why(row := record.model_dump())
            if cause is None and any(difflib.SequenceMatcher(None, text, other).ratio() >= NEAR for other in taken):
                cause = "nearly repeats another try"
            if cause is None and len(taken) == most:
                cause = "the question has enough tries"
            if cause is not None:
                dropped.note(cause, row)
                continue
            taken.append(text)
            yield record


def _replayed(
    context: StageContext,
    earlier: dict[str, KeptRollouts],
    evaluation_texts: set[str],
    wanted: int,
    seed: int,
    thoughts: Check | None,
) -> list[dict[str, Any]]:
    """Draws rows of earlier rounds, each at most once, none that this evaluation asks or whose thoughts are unsound."""
    found: dict[str, dict[str, Any]] = {}
    for kept in earlier.values():
        for row in read_rows(context.fetch(kept) / "kept.jsonl"):
            asked = same_text(row["messages"][1]["content"]) in evaluation_texts
            if not asked and (thoughts is None or why_dropped(row, set(), thoughts) is None):
                found.setdefault(json.dumps([row["seed"], row["messages"]]), {"player": "an earlier round"} | row)
    pool = list(found.values())
    return random.Random(seed).sample(pool, min(wanted, len(pool)))
