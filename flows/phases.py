"""The parts of a run that are several stages: its beginning, its SFT model, its evaluations, its promotion.

In: the recipe, the run's work, artifacts of the stages before. Out: artifacts. Rollouts that only the environment's
rewards have outdated are scored again in place of a new collection.
"""

from typing import Any, NamedTuple

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.analysis.comparison import LABELS
from apprentice.tasks.analysis.diagnose import learned_nothing
from apprentice.tasks.analysis.ending import decided_by, read_decision
from apprentice.tasks.analysis.history import Champions
from apprentice.tasks.artifacts.lineage import node_of
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.locate import checkpoint_named
from apprentice.tasks.artifacts.types import (
    Artifact,
    ArtifactRecord,
    BaseStudent,
    Checkpoint,
    Evaluation,
    KeptRollouts,
    LengthStats,
    ModelName,
    Questions,
    Release,
    Rollouts,
    Verdict,
    artifact_of,
    parent,
)
from apprentice.tasks.collect import collect
from apprentice.tasks.dataset import take_rollouts
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import Stage
from apprentice.tasks.episodes.record import read_episodes, used_questions
from apprentice.tasks.evaluate import evaluate
from apprentice.tasks.judge import gate, release, weights_of
from apprentice.tasks.judgement.run_models import Models
from apprentice.tasks.questions import exam, fresh_questions, questions
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.rescore import rescore
from apprentice.tasks.settings.spec import EvaluateSpec, MixSpec, Purpose, Seeds, Window
from apprentice.tasks.sft import filter_rollouts, for_the_teacher, lengths, mix_rollouts, sft, tried_questions
from apprentice.tasks.student import student
from apprentice.tasks.training.trainer import read_log


def asked(run: RunContext, recipe: Recipe) -> Questions:
    """Return the questions of the run; of a round, without those that earlier ones asked."""
    windows, examined = recipe.seed_windows(), recipe.evaluate.questions
    if recipe.round is None:
        return questions(run, recipe.environment, windows, examined)
    earlier = {str(number): run.store.at(Questions, revision) for number, revision in enumerate(recipe.round.asked)}
    return fresh_questions(run, recipe.environment, windows, examined, earlier, recipe.round.shares)


def beginning(run: RunContext, recipe: Recipe, question_set: Questions) -> Checkpoint:
    """Return the model to train. Raises Stop for a checkpoint that does not exist or does not fit the recipe."""
    return begun_from(run.store, recipe) or student(run, recipe.student, recipe.environment, question_set, recipe.seed)


def begun_from(store: LocalStore, recipe: Recipe) -> Checkpoint | None:
    """Return the checkpoint of this project from which the run continues; None for a new student."""
    if recipe.round is not None and recipe.round.champion is not None:
        found: Checkpoint | None = store.at(Release, recipe.round.champion)
    elif recipe.student.champion:
        found = Champions(store).current()
        if found is None:
            raise Stop(
                f"{recipe.name} has no champion to continue from.",
                "Train one first (student.model or student.build), or use `apprentice improve`, which does.",
            )
    elif recipe.student.checkpoint is not None:
        found = checkpoint_named(store, recipe.student.checkpoint)
        if found is None:
            raise Stop(
                f"{recipe.student.checkpoint} is no model of {recipe.name} in {store.root}.",
                "Take a key, a revision or a tag of a model from a report's lineage (student.checkpoint).",
            )
    else:
        return None
    assert found is not None
    _check_fits(store, recipe, found)
    return found


def _check_fits(store: LocalStore, recipe: Recipe, found: Checkpoint) -> None:
    node = node_of(store, parent(found), {})
    environment = (node.environment() or {}).get("name", recipe.environment.name)
    if environment != recipe.environment.name:
        raise Stop(
            f"{node.ref} was trained in {environment}, and this recipe plays {recipe.environment.name}.",
            "Give the recipe another name, or continue from a model of this environment.",
        )
    began = node.nearest(BaseStudent)
    if began is None or recipe.student.goes_on or "spec" not in began.settings:
        return
    if began.settings["spec"] != recipe.student.in_key():
        raise Stop(
            f"{node.ref} descends from another student than this recipe's, with another tokenizer or another size.",
            "Give the recipe another name to begin anew, or restore its student.",
        )


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
    for found, record in _newest_first(run):
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


def _newest_first(run: RunContext) -> list[tuple[Rollouts, ArtifactRecord]]:
    found = {}
    for key, revision in run.store.tags(Rollouts, "").items():
        try:
            record = run.store.record(Rollouts, key, revision)
            found[revision] = artifact_of(Rollouts, run.store.repository(Rollouts), revision, record), record
        except Stop:
            continue
    return sorted(found.values(), key=lambda each: each[1].provenance.made_at, reverse=True)


class Outcome(NamedTuple):
    """The outcome for the trained model. The release holds the gate's decision."""

    release: Release
    is_champion: bool
    by_these_rules: bool = True
    """Whether the decision used the recipe's current rules."""


def control(
    run: RunContext, recipe: Recipe, base: Checkpoint, kept: KeptRollouts, lengths: LengthStats
) -> dict[str, Checkpoint]:
    """Train SFT to its best on the same rollouts, the model that GRPO must beat; empty if the recipe wants none."""
    spec = recipe.sft.to_its_best() if recipe.sft and recipe.grpo else None
    if spec is None:
        return {}
    return {ModelName.CONTROL: sft.titled(LABELS[ModelName.CONTROL])(run, spec, base, kept, lengths, recipe.seed)}


def held_out(
    run: RunContext, recipe: Recipe, questions: Questions, models: dict[str, Checkpoint]
) -> Models[Evaluation]:
    """Evaluate every model on the held-out questions; return the evaluations by model name."""
    evaluations = {
        name: evaluate.titled(f"Evaluation of {name} in {{environment}}")(
            run, recipe.evaluate, model, recipe.environment, questions, recipe.seed
        )
        for name, model in models.items()
    }
    return Models(evaluations)


def guard_rails(run: RunContext, recipe: Recipe, models: dict[str, Checkpoint]) -> dict[str, Evaluation]:
    """Run every regression evaluation with every model; return the evaluations by `<guard>.<model>`."""
    evaluations = {}
    by_guard = guard_questions(run, recipe)
    for guard in recipe.guards:
        tokens = guard.max_new_tokens or recipe.evaluate.max_new_tokens
        spec = recipe.evaluate.model_copy(update={"max_new_tokens": tokens, "questions": guard.questions})
        for name, model in models.items():
            evaluations[f"{guard.name}.{name}"] = evaluate.titled(f"Guard rail {guard.name}: {name}")(
                run, spec, model, guard.environment, by_guard[guard.name], recipe.seed
            )
    return evaluations


def protected(recipe: Recipe, base: Checkpoint, last: str) -> ModelName:
    """Return the baseline of the regression evaluations if there is no champion: the student, or the first trained
    model if the student was built here and was trained further, because random weights have no skill to lose.

    Args:
        last: The name of the model that was trained last: not that of the recipe's last training if it did not start.
    """
    built = base.stage == ModelName.BASE and recipe.student.build is not None
    first = ModelName(recipe.trains_on[0])
    return first if built and last != first else ModelName.BASE


def guard_questions(run: RunContext, recipe: Recipe) -> dict[str, Questions]:
    """Return the questions of every regression evaluation, by its name."""
    return {
        guard.name: exam(run, guard.environment, recipe.guard_window(index), guard.questions)
        for index, guard in enumerate(recipe.guards)
    }


def promotion(
    run: RunContext,
    recipe: Recipe,
    questions: Questions,
    base: Checkpoint,
    trained: Checkpoint,
    evaluations: Models[Evaluation],
    guards: dict[str, Evaluation],
    results: Verdict,
) -> Outcome:
    """Release the trained model with the gate's decision, and move the champion's tag if it passed.

    The gate compares it with the champion, or with the untrained student if there is no champion; in
    regression evaluations then with the student that `protected` names.
    """
    champions = Champions(run.store)
    champion = champions.current()
    challenger = evaluations.last_name
    weights = weights_of(run.store.fetch(trained))
    allowances = {guard.name: guard.may_fall for guard in recipe.guards}
    if champion is not None and champion.weights == weights and recipe.round is None:  # a round always decides
        rules = read_decision(run.store.fetch(champion)).decided_by
        return Outcome(champion, is_champion=True, by_these_rules=rules == decided_by(recipe.gate, allowances))
    if champion is not None:
        evaluations = Models(evaluations | held_out(run, recipe, questions, {ModelName.CHAMPION: champion}))
        guards = guards | guard_rails(run, recipe, {ModelName.CHAMPION: champion})
    rival: Checkpoint = champion or base
    decision = gate(
        run,
        recipe.gate,
        trained,
        rival,
        {
            "challenger": evaluations[challenger],
            "rival": evaluations[ModelName.CHAMPION if champion else ModelName.BASE],
        },
        {
            f"{guard.name}.{role}": guards[f"{guard.name}.{model}"]
            for guard in recipe.guards
            for role, model in (
                ("challenger", challenger),
                ("rival", ModelName.CHAMPION if champion else protected(recipe, base, challenger)),
            )
        },
        allowances,
        results,
        champions.was_rolled_back(weights),
        run.store.in_reach,
    )
    released = release(run, trained, results, decision)
    return Outcome(released, champions.promote(released, champion))


class Taught(NamedTuple):
    rollouts: Rollouts | None
    kept: KeptRollouts
    length_stats: LengthStats
    model: Checkpoint
    controls: dict[str, Checkpoint]

    def artifacts(self) -> list[Artifact]:
        """Return the artifacts, in order."""
        bought = [self.rollouts] if self.rollouts else []
        return [*bought, self.kept, self.length_stats, self.model, *self.controls.values()]


def teach(
    run: RunContext, recipe: Recipe, questions: Questions, base: Checkpoint, rescore: bool = False
) -> Taught | None:
    """Collect, take or rescore rollouts, keep the right ones, and train on them."""
    if recipe.sft is None:
        return None
    rollouts, kept = _lessons(run, recipe, questions, base, rescore)
    length_stats = lengths(run, recipe.lengths, kept, base)
    model = sft(run, recipe.sft, base, kept, length_stats, recipe.seed)
    if idle := learned_nothing(read_log(run.store.fetch(model))):
        announce.warn(idle)
    return Taught(rollouts, kept, length_stats, model, control(run, recipe, base, kept, length_stats))


def _lessons(
    run: RunContext, recipe: Recipe, questions: Questions, base: Checkpoint, rescore: bool
) -> tuple[Rollouts | None, KeptRollouts]:
    """Return the teacher's rollouts, and all rows to learn from: the teacher's, the student's own, earlier rounds'."""
    tries = _tries(run, recipe, questions, base) if recipe.collect.students else None
    rollouts = rollouts_of(run, recipe, questions, tries, rescore)
    before = recipe.round.kept if recipe.round else []
    if rollouts is not None and tries is None and not before:
        return rollouts, filter_rollouts(run, rollouts, questions)
    earlier = {str(number): run.store.at(KeptRollouts, revision) for number, revision in enumerate(before)}
    spec = MixSpec(keep=recipe.collect.keep, replay=recipe.improve.replay if before else 0.0)
    teacher = recipe.teacher.called if recipe.buys and recipe.teacher and rollouts else ""
    given = rollouts, tries, earlier, teacher, recipe.seed
    return rollouts, mix_rollouts(run, spec, recipe.environment, questions, *given)


def _tries(run: RunContext, recipe: Recipe, questions: Questions, base: Checkpoint) -> Evaluation:
    asked = tried_questions(run, questions)
    spec = EvaluateSpec(
        questions=asked.evaluate,
        decoding="sampled",
        temperature=recipe.grpo.temperature if recipe.grpo else 1.0,
        max_new_tokens=recipe.evaluate.max_new_tokens,
        batch_size=recipe.evaluate.batch_size,
        bf16=recipe.evaluate.bf16,
        samples=recipe.collect.students,
    )
    stage = evaluate.titled("Tries of the student in {environment}")
    return stage(run, spec, base, recipe.environment, asked, recipe.seed)


def rollouts_of(
    run: RunContext, recipe: Recipe, questions: Questions, tries: Evaluation | None = None, rescore: bool = False
) -> Rollouts | None:
    """Return the rollouts of the teacher, or those that exist; None without either, or with no question left to ask.

    A round after the first training takes no dataset: its rows were learned, and answer no question of this round.
    """
    if recipe.collect.dataset is not None:
        if recipe.round is not None:
            return None
        taken = recipe.collect.dataset, recipe.environment, questions, recipe.collect.unverified
        return made_or_rescored(run, take_rollouts, taken, rescore)
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
    given = recipe.collect.by_teacher(), recipe.teacher, recipe.environment, window
    return made_or_rescored(run, collect, given, rescore)
