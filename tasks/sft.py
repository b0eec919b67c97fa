"""What SFT is given: the rollouts that it learns from, filtered or mixed, and their lengths in tokens.

`filter_rollouts`, of `Rollouts` and the evaluation's `Questions`, makes `KeptRollouts`: kept.jsonl and samples.md. An
episode is kept when its reward is 1.0, every call is valid, no reasoning leaked into the text, and its question is not
in the evaluation set.

`mix_rollouts` makes them of several players: `Rollouts` of the teacher, an `Evaluation` in which the student played
each question several times, earlier `KeptRollouts`. Every row names its player; new rows are dropped as by the filter.
Keeping the model's own right answers is rejection sampling: RAFT (Dong et al., 2023), expert iteration, best-of-k.

`lengths`, of `KeptRollouts` and the student's tokenizer, makes `LengthStats`: lengths.json, histogram.png.
Why: a max_length at the 99th percentile truncates fewer than one row in a hundred and keeps padding small.

Supervised fine-tuning on the kept rollouts: the student learns the form of an episode from the teacher.

In: the base student, `KeptRollouts`, `LengthStats`. Out: `SftCheckpoint`: weights, tokenizer, log.json, curves.png.
TRL's SFTTrainer computes the loss on what the student would have to generate of whole trajectories. This includes a
short closing turn after the last tool reply: a student that never saw one generates up to the length limit there.
"""

import difflib
import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.tools import tools_text
from apprentice.tasks.analysis.kinds import text_of_turns, why_dropped
from apprentice.tasks.artifacts.types import (
    Checkpoint,
    Evaluation,
    KeptRollouts,
    LengthStats,
    Questions,
    Rollouts,
    SftCheckpoint,
)
from apprentice.tasks.engine.processes import on_processes
from apprentice.tasks.engine.stage import Drawn, StageContext, stage
from apprentice.tasks.episodes.record import (
    DATASET,
    EvaluatedEpisode,
    Record,
    read_episodes,
    read_questions,
    read_rows,
    same_text,
    used_questions,
)
from apprentice.tasks.episodes.rendering import row_ids, training_row
from apprentice.tasks.models.checkpoints import adapter_arguments, context_length, model_to_train
from apprentice.tasks.models.memory import check_training, explained_oom, this_machine
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.questions import publish_exam
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.pictures import histogram
from apprentice.tasks.settings.spec import LengthsSpec, MixSpec, Purpose
from apprentice.tasks.settings.training import SftSpec
from apprentice.tasks.settings.trl_arguments import config_of
from apprentice.tasks.training.dry_pass import check_scheduler, check_sft_arguments
from apprentice.tasks.training.shared_prompts import sharing_rows
from apprentice.tasks.training.trainer import Learned, arguments, finish, on_one_gpu, train, training_dataset
from apprentice.tasks.training.watcher import select_weights, watch

SAMPLES = 3


@stage(produces=KeptRollouts, version=2, title="Filter by reward", drawn=Drawn("Filter", "kept", "kept"))
def filter_rollouts(context: StageContext, rollouts: Rollouts, questions: Questions) -> dict[str, Any]:
    """Keeps the episodes that SFT trains on. Raises Stop when none is left."""
    examined = {same_text(row["question"]) for row in used_questions(context.fetch(questions), Purpose.EVALUATE)}
    dropped: Counter[str] = Counter()
    mixed: dict[str, Counter[bool]] = {}
    samples: list[dict[str, Any]] = []
    kept = 0
    with (
        (context.fetch(rollouts) / "rollouts.jsonl").open() as episodes,
        (context.out / "kept.jsonl").open("w") as out,
    ):
        for line in episodes:
            episode = json.loads(line)
            cause = why_dropped(episode, examined)
            mixed.setdefault(episode["environment"], Counter())[cause is None] += 1
            if cause is not None:
                dropped[cause] += 1
                continue
            kept += 1
            out.write(line)
            samples += [episode] if len(samples) < SAMPLES else []
    _announce(rollouts.episodes, kept, dropped, mixed)
    if not kept:
        worst = ", ".join(f"{count} × {cause}" for cause, count in dropped.most_common(3))
        raise Stop(
            f"The filter kept none of the {rollouts.episodes} episodes ({worst}).",
            "Make the task easier (environment.settings), choose a stronger teacher, or inspect the rollouts: "
            f"{context.fetch(rollouts) / 'rollouts.jsonl'}",
        )
    text = as_samples(samples)
    (context.out / "samples.md").write_text(text)
    announce.detail(text)
    announce.markdown("kept-samples", text.strip(), "Three of the kept rollouts, as the student will see them")
    return {"episodes": rollouts.episodes, "kept": kept, "dropped": dict(sorted(dropped.items()))}


def _announce(episodes: int, kept: int, dropped: Counter[str], mixed: dict[str, Counter[bool]]) -> None:
    rows = [{"rollouts": "kept", "count": kept, "share": f"{kept / episodes:.1%}"}]
    rows += [
        {"rollouts": f"dropped: {cause}", "count": count, "share": f"{count / episodes:.1%}"}
        for cause, count in dropped.most_common()
    ]
    for name, own in mixed.items() if len(mixed) > 1 else ():
        rows.append({"rollouts": f"of {name}: kept", "count": own[True], "share": f"{own[True] / own.total():.1%}"})
    announce.rows("filter-rates", f"Filter: {kept} of {episodes} episodes kept", rows)


def as_samples(episodes: list[dict[str, Any]]) -> str:
    """The first episodes as Markdown."""
    return "\n\n".join(_as_markdown(episode) for episode in episodes[:SAMPLES]) + "\n"


def _as_markdown(episode: dict[str, Any]) -> str:
    lines = [f"**Seed {episode['seed']}, reward {episode['reward']}**", ""]
    for message in episode["messages"]:
        content = message.get("content") or ""
        calls = [
            f"`{call['function']['name']}({call['function']['arguments']})`" for call in message.get("tool_calls") or []
        ]
        lines.append(f"- *{message['role']}*: {' '.join([content, *calls]).strip()}")
    return "\n".join(lines)


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
    asked = read_questions(context.fetch(questions), Purpose.EVALUATE)
    examined = {same_text(row["question"]) for row in asked if row["used"]}
    dropped: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    for row in read_rows(context.fetch(rollouts) / "rollouts.jsonl") if rollouts else []:
        if (cause := why_dropped(row, examined)) is None:
            rows.append({"player": teacher or DATASET} | row)
        else:
            dropped[cause] += 1
    if tries is not None:
        own, player = read_episodes(context.fetch(tries)), f"the student ({tries.model})"
        rows += [each.model_dump() for each in _right(own, environment, spec.keep, player, examined, dropped)]
    if not rows:
        worst = ", ".join(f"{count} × {cause}" for cause, count in dropped.most_common(3)) or "none was played"
        raise Stop(
            f"No rollout was right ({worst}), so SFT has nothing to learn from.",
            "Make the task easier (environment.settings), raise collect.students, or name a teacher.",
        )
    wanted = round(len(rows) * spec.replay / (1 - spec.replay))
    rows += _replayed(context, earlier, examined, wanted, seed)
    random.Random(seed).shuffle(rows)  # SFT holds out the last ones
    (context.out / "kept.jsonl").write_bytes(b"".join(Record.model_validate(row).line() for row in rows))
    (context.out / "samples.md").write_text(as_samples(rows))
    counted = Counter(row["player"] for row in rows)
    announce.rows("players", "Who played what SFT learns from", [{"player": n, "rows": c} for n, c in counted.items()])
    return {"episodes": len(rows) + dropped.total(), "kept": len(rows), "dropped": dict(dropped)}


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
    examined: set[str],
    dropped: Counter[str],
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
                reward=each.reward,
                failed_at="question" if each.broken else "",
                correct=each.correct,
                player=player,
            )
            text = text_of_turns(each)
            cause = why_dropped(record.model_dump(), examined)
            if cause is None and any(difflib.SequenceMatcher(None, text, other).ratio() >= NEAR for other in taken):
                cause = "nearly repeats another try"
            if cause is None and len(taken) == most:
                cause = "the question has enough tries"
            if cause is not None:
                dropped[cause] += 1
                continue
            taken.append(text)
            yield record


def _replayed(
    context: StageContext, earlier: dict[str, KeptRollouts], examined: set[str], wanted: int, seed: int
) -> list[dict[str, Any]]:
    """Draws rows of earlier rounds, each at most once, none that this evaluation asks."""
    found: dict[str, dict[str, Any]] = {}
    for kept in earlier.values():
        for row in read_rows(context.fetch(kept) / "kept.jsonl"):
            if same_text(row["messages"][1]["content"]) not in examined:
                found.setdefault(json.dumps([row["seed"], row["messages"]]), {"player": "an earlier round"} | row)
    pool = list(found.values())
    return random.Random(seed).sample(pool, min(wanted, len(pool)))


@stage(produces=LengthStats, version=2, title="Token lengths", drawn=Drawn("Lengths"))
def lengths(context: StageContext, spec: LengthsSpec, kept: KeptRollouts, student: Checkpoint) -> dict[str, Any]:
    """p50, p95, p99 and maximum length in tokens; max_length = p99 + margin, rounded up, at most the model's limit."""
    folder = context.fetch(student)
    tokenizer = load_tokenizer(folder, context.run.trusted)
    measured = []
    with (
        (context.fetch(kept) / "kept.jsonl").open() as episodes,
        announce.progress("lengths", kept.kept) as advance,
    ):
        for line in episodes:
            episode = json.loads(line)
            measured.append(len(row_ids(tokenizer, training_row(episode["messages"], json.loads(episode["tools"])))))
            advance(1)
    positions = context_length(json.loads((folder / "config.json").read_text()))
    stats = summarise(measured, spec, positions)
    (context.out / "lengths.json").write_text(json.dumps(stats | {"lengths": measured}))
    picture = histogram(measured, stats["max_length"], context.out / "histogram.png")
    announce.rows("token-lengths", "Tokens of a training text", [stats])
    announce.picture("lengths-histogram", picture, "Tokens of the training texts; the line is max_length")
    return stats


def summarise(measured: list[int], spec: LengthsSpec, positions: int) -> dict[str, int]:
    """Percentiles in tokens; max_length is a multiple of `spec.multiple_of` and at most `positions`."""
    import numpy as np

    p50, p95, p99 = (int(np.percentile(measured, q)) for q in (50, 95, 99))
    wanted = -(-(p99 + spec.margin) // spec.multiple_of) * spec.multiple_of
    max_length = min(wanted, positions)
    return {
        "p50": p50,
        "p95": p95,
        "p99": p99,
        "longest": max(measured),
        "max_length": max_length,
        "truncated": sum(length > max_length for length in measured),
    }


Episode = dict[str, Any]

HELD_OUT = "held_out"
"""The evaluation set that chooses the epoch, beside those of a mixture's environments."""
MIXTURE_HELD_OUT = 0.05
"""Share of each environment's rows in its evaluation set, where the recipe gives none."""
SHOWN = {"loss": "loss", "mean_token_accuracy": "token accuracy", "grad_norm": "gradient norm"}


@stage(produces=SftCheckpoint, version=4, title="SFT", drawn=Drawn("SFT"), gpu=True)
def sft(
    context: StageContext, spec: SftSpec, student: Checkpoint, kept: KeptRollouts, lengths: LengthStats, seed: int
) -> dict[str, Any]:
    """Trains for `spec.epochs` epochs, or until token accuracy reaches `spec.stop_at_token_accuracy`.

    With `spec.held_out` it publishes the epoch with the lowest loss on held-out rows. Raises Stop for too few rows.
    """
    check_training(spec, this_machine())
    check_scheduler(spec)
    if spec.args:  # here and not in train_sft: its processes share a world, and its seed is set
        with (context.fetch(kept) / "kept.jsonl").open() as episodes:
            tools = json.loads(json.loads(next(episodes))["tools"])
        check_sft_arguments(spec, load_tokenizer(context.fetch(student), context.run.trusted), tools)
    with explained_oom(spec):
        return on_processes(spec, train_sft, context, spec, student, kept, lengths, seed)


def train_sft(
    context: StageContext, spec: SftSpec, student: Checkpoint, kept: KeptRollouts, lengths: LengthStats, seed: int
) -> dict[str, Any]:
    """The stage's body, in each of its processes."""
    from transformers import set_seed
    from trl import SFTTrainer

    set_seed(seed)
    folder = context.fetch(student)
    tokenizer = load_tokenizer(folder, context.run.trusted)
    with (context.fetch(kept) / "kept.jsonl").open() as episodes:
        read = list(map(json.loads, itertools.islice(episodes, spec.max_rows)))
    played, apart = train_eval_split(read, spec.held_out)
    rows = _rows(played)
    an_epoch = _steps(len(rows), spec)
    own = sft_arguments(context, spec, seed, lengths.max_length) | (_evaluation(an_epoch, spec) if apart else {})
    trainer = sharing_rows(SFTTrainer, spec)(
        model=model_to_train(folder, spec, context.run.trusted),
        processing_class=tokenizer,
        train_dataset=training_dataset(tokenizer, rows),
        eval_dataset={label: training_dataset(tokenizer, _rows(each)) for label, each in apart.items()} or None,
        args=on_one_gpu(config_of(spec.section, own, spec.args)),
        **adapter_arguments(spec.lora),
    )
    if spec.stop_at_token_accuracy is not None:
        trainer.add_callback(_stopper(spec.stop_at_token_accuracy))
    watch(trainer, spec.signals)
    most = trainer.args.max_steps  # of sft.args, in place of epochs
    rows_left: Any = trainer.train_dataset  # fewer where TRL packs them
    train(context, "SFT steps", trainer, most if most > 0 else math.ceil(spec.epochs * _steps(len(rows_left), spec)))
    select_weights(context, trainer, spec.signals)
    asked = [(episode["seed"], episode["messages"][1]["content"]) for episode in played]
    of_each = {f"eval_{label}_mean_token_accuracy": f"{label}: token accuracy" for label in apart}
    loss = {f"eval_{HELD_OUT}_loss": "held-out loss"} if spec.held_out else {}
    return finish(context, trainer, spec, SHOWN | of_each | loss, Learned(asked, before=folder))


def _steps(rows: int, spec: SftSpec) -> int:
    """The steps of an epoch."""
    return math.ceil(math.ceil(rows / spec.batch_size / spec.processes) / spec.gradient_accumulation)


def sft_arguments(context: StageContext, spec: SftSpec, seed: int, max_length: int) -> dict[str, Any]:
    """The arguments of SFTConfig, without the recipe's `args` and the evaluation settings."""
    return {
        **arguments(context, spec, seed),
        "num_train_epochs": spec.epochs,
        "max_length": max_length,
    }


def arguments_ahead(context: StageContext, spec: SftSpec, seed: int) -> dict[str, Any]:
    """What SFTConfig is given, with lengths and steps of an epoch that are known later."""
    own = sft_arguments(context, spec, seed, max_length=1024)
    return own | (_evaluation(spec.checkpoint_steps, spec) if spec.held_out else {})


def train_eval_split(episodes: list[Episode], held_out: float = 0.0) -> tuple[list[Episode], dict[str, list[Episode]]]:
    """Splits the episodes into those to train on and evaluation sets, on which loss and accuracy are measured.

    Of a mixture, each environment has a set with that share of its episodes, 5% by default; `held_out` adds one that
    joins them, or one of the only environment. Questions of a set are excluded from training by text, under any seed.
    Raises Stop if `held_out` leaves nothing to hold out or to train on.
    """
    by_label: dict[str, list[Episode]] = {}
    for episode in episodes:
        label, is_labelled, _ = episode.get("environment", "").partition(": ")
        if is_labelled or held_out:
            by_label.setdefault(label if is_labelled else HELD_OUT, []).append(episode)
    share = held_out or MIXTURE_HELD_OUT
    apart = {label: own[-max(1, int(len(own) * share)) :] for label, own in by_label.items() if len(own) > 1}
    if held_out:
        apart[HELD_OUT] = [episode for own in apart.values() for episode in own]
    texts = {_asked(episode) for own in apart.values() for episode in own}
    left = [episode for episode in episodes if _asked(episode) not in texts]
    if held_out and not (left and texts):
        raise Stop(
            f"sft.held_out holds {len(texts)} questions out of {len(episodes)} rows and leaves {len(left)} rows.",
            "Collect more episodes, or lower sft.held_out.",
        )
    return left, apart


def _asked(episode: Episode) -> str:
    return same_text(episode["messages"][1]["content"])


def _evaluation(an_epoch: int, spec: SftSpec) -> dict[str, Any]:
    """Evaluates by steps: at an epoch's end TRL evaluates after the checkpoint, so a resumed training would skip it."""
    best = {"metric_for_best_model": f"eval_{HELD_OUT}_loss", "greater_is_better": False} if spec.held_out else {}
    return {"eval_strategy": "steps", "eval_steps": an_epoch, "per_device_eval_batch_size": spec.batch_size} | best


def _rows(episodes: list[Episode]) -> list[dict[str, Any]]:
    return [training_row(episode["messages"], json.loads(episode["tools"])) for episode in episodes]


def _stopper(enough: float) -> Any:
    from transformers import TrainerCallback

    class Stopper(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            control.should_training_stop |= float((logs or {}).get("mean_token_accuracy", 0.0)) >= enough

    return Stopper()
