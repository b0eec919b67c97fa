"""Evaluates models with Inspect AI on a recipe's environment: `apprentice evaluate --protocol inspect`.

In: a recipe, Inspect's names of models. Out: what `compare_models` returns, and the log of each model.
"""

from typing import Any

from prefect import flow

from apprentice.envs.pool import EnvironmentPool
from apprentice.flows.compare_models import compared
from apprentice.flows.preflight import EvaluationPreflight
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime.servers import RunServers, open_store, with_discovered_settings
from apprentice.tasks.engine.limits import leases
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.episodes.thinking import turn_tokens
from apprentice.tasks.files.forms import require_inspect
from apprentice.tasks.files.question_lists import read_questions
from apprentice.tasks.questions import exam
from apprentice.tasks.reporting import announce
from apprentice.tasks.settings.endpoint import TeacherSpec
from apprentice.tasks.settings.spec import EvaluateSpec, Purpose, ThinkingSpec, Window


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
        temperature = spec.temperature if spec.decoding == "sampled" else 0.0
        thinking = recipe.student.thinking
        tokens = _tokens(spec, recipe.teacher, serves_student, thinking)
        asked = rows, tokens, temperature, spec.samples, serves_student, thinking is not None
        for model in models:
            with EnvironmentPool(task, servers.environment(task.name), say=announce.warn, lease=leases) as pool:
                episodes_of_model = episodes_task(pool, task, *asked)
                logs[model], episodes[model] = run_inspect(
                    episodes_of_model, model, store.root / "inspect" / recipe.name, base_url
                )
    report = compared(episodes, dict.fromkeys(models), "inspect")
    for model, log in logs.items():
        report["models"][model]["log"] = str(log)
        announce.console.print(f"  Inspect's log of {model}: {log}")
    return report


def _tokens(
    spec: EvaluateSpec, teacher: TeacherSpec | None, serves_student: bool, thinking: ThinkingSpec | None
) -> int:
    """Return the most tokens of a turn: a student's answer and its thought, or what another model is asked as."""
    if serves_student:
        return turn_tokens(spec.max_new_tokens, thinking)
    return spec.max_new_tokens if teacher is None else teacher.max_tokens
