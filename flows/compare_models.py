"""Evaluates and compares models on a recipe's environment: checkpoints, the champion, endpoints, the teacher.

In: a recipe, the models' names. Out: rates with intervals, differences from the first model, overlap with training.
Trains nothing; earlier evaluations are cache hits.

Evaluates models with Inspect AI on a recipe's environment: `apprentice evaluate --protocol inspect`.
"""

from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prefect import flow
from pydantic import ValidationError

from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.wire.server import without_secrets
from apprentice.flows.compare import differences, show_differences
from apprentice.flows.pipeline import Pipeline
from apprentice.flows.preflight import EvaluationPreflight
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime.servers import RunServers, open_store, with_discovered_settings
from apprentice.tasks.analysis.history import Champions
from apprentice.tasks.artifacts.foreign import is_repository
from apprentice.tasks.artifacts.locate import checkpoint_named
from apprentice.tasks.artifacts.types import Checkpoint, Evaluation, Questions
from apprentice.tasks.engine.limits import leases
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.episodes.record import EvaluatedEpisode, read_episodes, read_questions
from apprentice.tasks.evaluate import endpoint_as_of, evaluate, evaluate_endpoint
from apprentice.tasks.files.forms import require_inspect
from apprentice.tasks.judgement.contamination import count_seen
from apprentice.tasks.models.student_model import as_its_template_says, pinned
from apprentice.tasks.players.protocols import CANNOT_SEE
from apprentice.tasks.questions import exam
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.endpoint import EndpointSpec, TeacherSpec
from apprentice.tasks.settings.spec import EvaluateSpec, Purpose, StudentSpec, Window
from apprentice.tasks.student import student


@flow(name="compare", flow_run_name="{recipe.name}-compare", result_serializer="json")
def compare_models(
    recipe: Recipe,
    models: list[str],
    spec: EvaluateSpec,
    window: Window,
    as_of: str | None,
    serves_student: bool = False,
    trust_code: list[str] | None = None,
) -> dict[str, Any]:
    """Evaluate each model on the first questions of the window. Raises Stop for an unknown model.

    Args:
        models: For each a key, revision or tag (or a prefix of it) of the recipe's artifacts, `champion`, `teacher`, a
            folder, `owner/name@revision` on the Hub, or `https://host/v1#model` for an endpoint.
        as_of: Identifies the state of the models behind endpoints; another value evaluates them again. None: today's
            date, or that of an unfinished evaluation, which is then resumed.
        serves_student: Whether the endpoints serve students trained by this project.
        trust_code: Folders, or `owner/name@revision` on the Hub, whose Python code may run, in addition to the
            recipe's student if it allows that.
    """
    recipe = with_discovered_settings(recipe)
    trusted = trusted_with(recipe.student, trust_code or [])
    store = open_store(recipe, hub_needed=False)
    task, written = recipe.environment, recipe.for_record()
    found: dict[str, tuple[Evaluation, Checkpoint | None]] = {}
    with RunServers(recipe) as servers:
        run = RunContext(store, servers, recipe=written)
        run.preflight = preflight = EvaluationPreflight(recipe, window)
        questions = exam(run, task, window, spec.questions)
        for name in models:
            endpoint = _endpoint(recipe.teacher, name, serves_student)
            endpoint = endpoint and endpoint.teaching(recipe.student.thinking)
            if endpoint is None:
                run = RunContext(store, servers, recipe=written, trusted=trusted)
                run.preflight = preflight
                checkpoint = checkpoint_of(Pipeline(run, recipe), name, questions)
                found[name] = evaluate(run, spec, checkpoint, task, questions, recipe.seed), checkpoint
            else:
                with RunServers(recipe.model_copy(update={"teacher": endpoint})) as others:
                    run = RunContext(store, others, recipe=written)
                    run.preflight = preflight
                    given = spec, endpoint, task, questions
                    state = as_of or endpoint_as_of(run, *given, date.today())
                    found[name] = evaluate_endpoint(run, *given, state), None
    episodes = {name: read_episodes(store.fetch(evaluation)) for name, (evaluation, _) in found.items()}
    seen = {
        name: count_seen(store.fetch(checkpoint), episodes[name]) if checkpoint else None
        for name, (_, checkpoint) in found.items()
    }
    return compared(episodes, seen, spec.protocol)


def check_addresses(names: list[str]) -> None:
    """Raise Stop if an endpoint's URL holds a secret: models' names appear in logs and in Prefect's database."""
    for name in names:
        url, _, _ = name.partition("#")
        if "://" in url:
            try:
                without_secrets(url, "its key comes from ENDPOINT_API_KEY, or from the recipe's teacher.key_variable")
            except ValueError as error:
                raise Stop(f"A model's URL cannot be used: {error}.", "Write https://host/v1#model.") from None


def _endpoint(given: TeacherSpec | None, name: str, serves_student: bool) -> EndpointSpec | None:
    if name == "teacher":
        if given is None:
            raise Stop("The recipe has no teacher.", "Name another model.")
        return EndpointSpec.model_validate(given.model_dump())
    if not name.startswith(("http://", "https://")):
        return None
    url, _, model = name.partition("#")
    if not model:
        raise Stop(f"{name} does not name a model of the endpoint.", f"Write {url}#MODEL.")
    teacher = given or TeacherSpec()
    on_teachers_host = teacher.scripted_error_rate is None and _host(url) == _host(teacher.base_url)
    own = {"base_url": url, "model": model, "serves_student": serves_student}
    if not on_teachers_host:  # never send the teacher's key to another host
        own |= {"key_block": None, "key_variable": "ENDPOINT_API_KEY"}
    excluded = {*own, "scripted_error_rate", "budget_usd", "prices"}
    try:
        return EndpointSpec(**own, **teacher.model_dump(exclude=excluded))
    except ValidationError as error:
        mistakes = "; ".join(mistake["msg"] for mistake in error.errors())
        raise Stop(f"{_host(url)} cannot be used: {mistakes}.", "Set the key as ENDPOINT_API_KEY.") from None


def _host(url: str | None) -> str | None:
    return urlsplit(url or "https://api.openai.com").hostname


def checkpoint_of(stages: Pipeline, name: str, questions: Questions | None = None) -> Checkpoint:
    """Return the model of that name, as in `compare_models`, without endpoints. Raises Stop if there is none.

    Args:
        questions: From which a student's tokenizer is built; default: those of the run.
    """
    run, recipe = stages.run, stages.recipe
    if name == "champion":
        champion = Champions(run.store).current()
        if champion is None:
            raise Stop(
                f"{recipe.name} has no champion.", "Run the recipe; the gate promotes a model that is good enough."
            )
        return champion
    if (found := checkpoint_named(run.store, name)) is not None:
        return found
    if (spec := model_named(name)) is None:
        raise Stop(
            f"{name} is not a checkpoint of {recipe.name}, a folder, or a revision of a model on the Hub.",
            "Write a key, a revision or a tag from the report's lineage, champion, teacher, a folder, "
            "owner/name@revision or https://host/v1#model.",
        )
    granted = [each for each in run.trusted if each.model == spec.model and each.content]
    if not granted:
        spec = pinned(spec)
        granted = [each for each in run.trusted if (each.model, each.revision) == (spec.model, spec.revision)]
    named = as_its_template_says((granted or [spec])[0])
    return student(run, named, recipe.environment, questions or stages.questions, recipe.seed)


def model_named(name: str, **settings: Any) -> StudentSpec | None:
    """Return the spec of a folder, or of `owner/name@revision` on the Hub; None if `name` is neither."""
    model, _, revision = name.partition("@")
    if Path(name).is_dir():
        return StudentSpec(model=str(Path(name).absolute()), **settings)
    return StudentSpec(model=model, revision=revision, **settings) if revision and is_repository(model) else None


def trusted_with(own: StudentSpec, names: list[str]) -> list[StudentSpec]:
    """Return the students whose Python code may run: the recipe's if it allows that, and `names`. Raises Stop."""
    others = []
    for name in names:
        spec = model_named(name, trust_remote_code=True)
        if spec is None:
            raise Stop(f"--trust-code {name} is not a model.", "Write a folder, or owner/name@revision.")
        others.append(pinned(spec))
    return [*([pinned(own)] if own.trust_remote_code or not own.safetensors_only else []), *others]


TITLES = {
    "parity": "Held-out evaluation",
    "tutorial": "The tutorial's protocol",
    "inspect": "Held-out evaluation with Inspect AI",
}


def compared(episodes: dict[str, list[EvaluatedEpisode]], seen: dict[str, int | None], protocol: str) -> dict[str, Any]:
    """Return what `differences` does, each model after the first with the first, and show it as tables.

    Args:
        seen: How many of the questions each model was trained on; None if unknown.
    """
    first, *others = episodes
    found = differences(episodes, [(first, other) for other in others], protocol)
    for name, model in found["models"].items():
        model["seen_in_training"] = seen[name]
    known = {name: "unknown" if number is None else str(number) for name, number in seen.items()}
    show_differences(found, TITLES[protocol], seen_in_training=known)
    if protocol == "tutorial":
        announce.warn(CANNOT_SEE)
    return found


@flow(name="inspect", flow_run_name="{recipe.name}-inspect", result_serializer="json")
def inspect_models(
    recipe: Recipe,
    models: list[str],
    spec: EvaluateSpec,
    window: Window,
    serves_student: bool = False,
    base_url: str | None = None,
) -> dict[str, Any]:
    """Evaluate each model, by Inspect's name, on the first questions of the window. Raises Stop."""
    require_inspect("This evaluation needs Inspect AI")
    from apprentice.tasks.players.inspect_task import episodes_task, run_inspect

    recipe = with_discovered_settings(recipe)
    store, task = open_store(recipe), recipe.environment
    logs, episodes = {}, {}
    with RunServers(recipe) as servers:
        run = RunContext(store, servers)
        EvaluationPreflight(recipe, window)(run, "exam")
        rows = read_questions(store.fetch(exam(run, task, window, spec.questions)), Purpose.EVALUATE)
        tokens = spec.max_new_tokens if serves_student or recipe.teacher is None else recipe.teacher.max_tokens
        temperature = spec.temperature if spec.decoding == "sampled" else 0.0
        for model in models:
            with EnvironmentPool(task, servers.environment(task.name), say=announce.warn, lease=leases) as pool:
                episodes_of_model = episodes_task(pool, task, rows, tokens, temperature, spec.samples, serves_student)
                logs[model], episodes[model] = run_inspect(
                    episodes_of_model, model, store.root / "inspect" / recipe.name, base_url
                )
    report = compared(episodes, dict.fromkeys(models), "inspect")
    for model, log in logs.items():
        report["models"][model]["log"] = str(log)
        announce.console.print(f"  Inspect's log of {model}: {log}")
    return report
