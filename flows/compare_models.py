"""Evaluates and compares models on a recipe's environment: checkpoints, the champion, endpoints, the teacher.

In: a recipe, the models' names. Out: rates with intervals, differences from the first model, overlap with training.
Trains nothing; earlier evaluations are cache hits.
"""

from datetime import date
from typing import Any

from prefect import flow

from apprentice.flows.compare import differences, show_differences
from apprentice.flows.named_models import checkpoint_of, endpoint_named, trusted_with
from apprentice.flows.pipeline import Pipeline
from apprentice.flows.preflight import EvaluationPreflight
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime.servers import RunServers, open_store, with_discovered_settings
from apprentice.tasks.artifacts.types import Checkpoint, Evaluation
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.episodes.record import EvaluatedEpisode, read_episodes
from apprentice.tasks.evaluate import endpoint_as_of, evaluate, evaluate_endpoint
from apprentice.tasks.judgement.contamination import count_seen
from apprentice.tasks.players.protocols import CANNOT_SEE
from apprentice.tasks.questions import exam
from apprentice.tasks.reporting import announce
from apprentice.tasks.settings.spec import EvaluateSpec, Window


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
        run = RunContext(store, servers, recipe=written, trusted=trusted)
        run.preflight = preflight = EvaluationPreflight(recipe, window)
        questions = exam(run, task, window, spec.questions)
        for name in models:
            endpoint = endpoint_named(recipe.teacher, name, serves_student)
            if endpoint is None:
                checkpoint = checkpoint_of(Pipeline(run, recipe), name, questions)
                found[name] = evaluate(run, spec, checkpoint, task, questions, recipe.seed), checkpoint
                continue
            endpoint = endpoint.teaching(recipe.student.thinking)
            with RunServers(recipe.model_copy(update={"teacher": endpoint})) as others:
                asking = RunContext(store, others, recipe=written)
                asking.preflight = preflight
                given = spec, endpoint, task, questions
                state = as_of or endpoint_as_of(asking, *given, date.today())
                found[name] = evaluate_endpoint(asking, *given, state), None
    episodes = {name: read_episodes(store.fetch(evaluation)) for name, (evaluation, _) in found.items()}
    seen = {
        name: count_seen(store.fetch(checkpoint), episodes[name]) if checkpoint else None
        for name, (_, checkpoint) in found.items()
    }
    return compared(episodes, seen, spec.protocol)


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
