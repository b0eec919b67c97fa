"""What SFT learns from: the rollouts of a teacher, of a dataset or of the student itself, kept and measured.

In: the recipe, the questions, the student. Out: `Lessons`. Rollouts that only the environment's
rewards have outdated are scored again in place of a new collection.
"""

from collections.abc import Sequence
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.artifacts.alike import first_alike, newest_first
from apprentice.tasks.artifacts.types import Checkpoint, Evaluation, KeptRollouts, Questions, Rollouts
from apprentice.tasks.collect import collect
from apprentice.tasks.dataset import take_rollouts
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import Stage
from apprentice.tasks.episodes.record import read_episodes
from apprentice.tasks.evaluate import evaluate
from apprentice.tasks.files.json_lines import read_rows
from apprentice.tasks.files.question_lists import used_questions
from apprentice.tasks.filter import filter_rollouts, filter_thoughts
from apprentice.tasks.lengths import lengths
from apprentice.tasks.mix import for_the_teacher, mix_rollouts, mix_thoughts, tried_questions
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.relabel import relabel
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.rescore import rescore
from apprentice.tasks.rollouts.thought_length import tokens_of_thoughts
from apprentice.tasks.scale import scale_rollouts
from apprentice.tasks.settings.endpoint import TeacherSpec
from apprentice.tasks.settings.spec import (
    CollectSpec,
    DatasetSpec,
    EvaluateSpec,
    MixSpec,
    Purpose,
    Seeds,
    ThinkingSpec,
    Window,
)
from apprentice.tasks.settings.training import TrainerSpec
from apprentice.tasks.training.method import Lessons
from apprentice.tasks.training.task_texts import Texts

LOOKED_AT = 64
"""Kept episodes whose turns are measured against the limits of the stages that follow."""
ROUNDED_TO = 16
"""Tokens: a limit that is proposed is a multiple of it."""


def made_or_rescored(run: RunContext, make: Stage[..., Rollouts], given: tuple[Any, ...], always: bool) -> Rollouts:
    """Return the rollouts of the stage `make` for `given`, or the same episodes under the present rewards.

    Where no reward changed, these are the existing rollouts: later stages are then cached.
    """
    found = to_rescore(run, make, given, always)
    if found is None:
        return make(run, *given)
    announce.say("These rollouts exist: they are scored again, and no teacher is asked.")
    rescored = rescore(run, found, _environment(given))
    return rescored if rescored.changed or rescored.left_out else found


def to_rescore(run: RunContext, make: Stage[..., Rollouts], given: tuple[Any, ...], always: bool) -> Rollouts | None:
    """Return the newest rollouts to rescore: made by the same stage, teacher and seeds under other rewards.

    Args:
        always: Rescore whatever changed in the environment, and nothing too. If not, only what differs in the version
            of the rewards, or was rescored before, and only where the stage would have to make it.

    Raises Stop with `always` if there are none.
    """
    if not always and make.find(run, *given) is not None:
        return None
    environment = _environment(given)
    settings, _ = make.key_contents(given, {})
    teacher = settings.get("teacher")
    name = next(name for name, value in settings.items() if value == environment.in_key())
    for found, record in newest_first(run.store, Rollouts, run.store.tags(Rollouts, "")):
        then = record.made_by.get("settings", {})
        earlier = then.get(name)
        if isinstance(teacher, dict) and isinstance(then.get("teacher"), dict):  # wherever its endpoint is
            then = then | {"teacher": then["teacher"] | {"base_url": None}}
        if record.made_by.get("stage") != make.name or then | {name: None} != settings | {name: None}:
            continue
        if not isinstance(earlier, dict) or not environment.is_task_of(earlier):
            continue
        if always or environment.differs_in_rewards_only(earlier) or rescore.find(run, found, environment):
            return found
    if always:
        raise Stop(
            f"{run.store.root} has no rollouts of this teacher, these seeds and these settings to rescore.",
            "`apprentice run` collects them; `apprentice lineage` shows what older ones were made of.",
        )
    return None


def _environment(given: tuple[Any, ...]) -> EnvironmentSpec:
    return next(each for each in given if isinstance(each, EnvironmentSpec))


def lessons_of(
    run: RunContext, recipe: Recipe, questions: Questions, model: Checkpoint, rescore: bool = False
) -> Lessons:
    """Collect, take or rescore rollouts, keep the right ones, and measure them.

    Args:
        model: The student, which plays as well with `collect.students`.
    """
    tries = None
    if recipe.collect.students:
        questions_tried = tried_questions(run, questions)
        stage = evaluate.titled("Tries of the student in {environment}")
        plays = EvaluateSpec(
            questions=questions_tried.evaluate,
            decoding="sampled",
            temperature=recipe.temperature_of_rollouts,
            max_new_tokens=recipe.evaluate.max_new_tokens,
            batch_size=recipe.evaluate.batch_size,
            bf16=recipe.evaluate.bf16,
            samples=recipe.collect.students,
        )
        tries = stage(run, plays, model, recipe.environment, questions_tried, recipe.seed)
    rollouts = rollouts_of(run, recipe, questions, tries, rescore)
    before = recipe.round.kept if recipe.round else []
    if rollouts is not None and tries is None and not before:
        kept = first_alike(run.store, filtered(run, rollouts, questions, model, thinks=bool(recipe.student.thinking)))
    else:
        earlier = {str(number): run.store.at(KeptRollouts, revision) for number, revision in enumerate(before)}
        spec = MixSpec(keep=recipe.collect.keep, replay=recipe.improve.replay if before else 0.0)
        teacher = taught_by(recipe.teacher, recipe.collects, rollouts)
        mixed = spec, recipe.environment, questions, rollouts, tries, earlier, teacher, recipe.seed
        kept = mix_thoughts(run, *mixed, model) if recipe.student.thinking else mix_rollouts(run, *mixed)
    return Lessons(rollouts, kept, lengths(run, recipe.lengths, kept, model))


def taught_by(teacher: TeacherSpec | None, plays: bool, rollouts: Rollouts | None) -> str:
    """Return the teacher who played the rollouts; empty for rows of a dataset, also where it judged them: each row that
    it replaced names it."""
    return teacher.called if teacher and plays and rollouts else ""


def warn_of_limits(
    run: RunContext,
    evaluation: EvaluateSpec,
    trainings: Sequence[TrainerSpec],
    thinking: ThinkingSpec | None,
    lessons: Lessons,
    student: Checkpoint,
) -> None:
    """Warn of limits that cut off a student which learned to write what the kept episodes say, before it learns it."""
    folder, thought = run.store.fetch(lessons.kept), tokens_of_thoughts(thinking, 1)
    tokenizer = load_tokenizer(run.store.fetch(student), run.trusted)
    written = Texts.of_rows(tokenizer, read_rows(folder / "kept.jsonl")[:LOOKED_AT], thought).written
    turns = [turn - thought for turn, *_ in written]
    episodes = [episode - thought * count for _, episode, count in written]
    limits = [("evaluate.max_new_tokens", evaluation.max_new_tokens, turns, "answer")]
    limits += [(*each.longest_episode, episodes, "episode") for each in trainings if each.longest_episode]
    for field, limit, lengths_now, what in limits:
        if beyond := sum(length > limit for length in lengths_now):
            wanted = -(-max(lengths_now) // ROUNDED_TO) * ROUNDED_TO
            announce.warn(
                f"{beyond} of {len(written)} kept episodes have an {what} of more than {field} ({limit} tokens): a "
                f"student that learned to write it is cut off. {field}: {wanted} has room for each of them."
            )


def filtered(
    run: RunContext, rollouts: Rollouts, questions: Questions, model: Checkpoint, thinks: bool
) -> KeptRollouts:
    """Keep the right rollouts; for a student that thinks, those with sound thoughts in its own tokens."""
    if thinks:
        return filter_thoughts(run, rollouts, questions, model)
    return filter_rollouts(run, rollouts, questions)


def rollouts_of(
    run: RunContext, recipe: Recipe, questions: Questions, tries: Evaluation | None = None, rescore: bool = False
) -> Rollouts | None:
    """Return the rollouts of the teacher, or those that exist; None without either, or with no question left to ask.

    A round after the first training takes no dataset: its rows were learned, and answer no question of this round.
    """
    if recipe.collect.dataset is not None:
        if recipe.round is not None:
            return None
        judges = recipe.collect, recipe.teacher, recipe.environment
        return taken_rows(run, *judges, recipe.collect.dataset, questions, rescore)
    if recipe.teacher is None:
        return None
    window: Window | Seeds = recipe.seed_windows().collect
    if recipe.chooses_seeds:
        played = read_episodes(run.store.fetch(tries)) if tries else []
        used = [row["seed"] for row in used_questions(run.store.fetch(questions), Purpose.COLLECT)]
        ahead = for_the_teacher(used, played, recipe.collect.teacher_questions)
        if not ahead:
            return None
        window = Seeds(chosen=tuple(ahead))
    given = recipe.collect.by_teacher(), recipe.teacher, recipe.environment.unscaled(), window
    return scaled(run, made_or_rescored(run, collect, given, rescore), recipe.environment)


def taken_rows(
    run: RunContext,
    spec: CollectSpec,
    teacher: TeacherSpec | None,
    environment: EnvironmentSpec,
    dataset: DatasetSpec,
    questions: Questions,
    rescore: bool = False,
) -> Rollouts:
    """Return the rows of a dataset that are taken, with a teacher's verdicts where it is asked for them."""
    unverified = "keep" if spec.relabels else spec.unverified
    rollouts = made_or_rescored(run, take_rollouts, (dataset, environment, questions, unverified), rescore)
    return relabel(run, *_judging(spec, teacher, environment), rollouts) if spec.relabels else rollouts


def judged_rows(
    run: RunContext, spec: CollectSpec, teacher: TeacherSpec, environment: EnvironmentSpec, questions: Questions
) -> Rollouts | None:
    """Return the rows of the dataset as the teacher has judged them; None where it is still to be asked."""
    if spec.dataset is None:
        return None
    taken = take_rollouts.find(run, spec.dataset, environment, questions, "keep")
    return relabel.find(run, *_judging(spec, teacher, environment), taken) if taken else None


def _judging(
    spec: CollectSpec, teacher: TeacherSpec | None, environment: EnvironmentSpec
) -> tuple[CollectSpec, TeacherSpec, EnvironmentSpec]:
    """Return what a teacher judges by, on which nothing else of the recipe has a bearing."""
    assert teacher is not None  # without one the recipe is refused
    return spec.by_teacher(), teacher, environment.unscaled()


def scaled(run: RunContext, rollouts: Rollouts, environment: EnvironmentSpec) -> Rollouts:
    """Return rollouts under the scale of the environment's rewards, which no collection depends on."""
    return rollouts if environment == environment.unscaled() else scale_rollouts(run, rollouts, environment)
