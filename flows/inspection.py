"""Evaluates models with Inspect AI on a recipe's environment: `apprentice evaluate --protocol inspect`.

In: a recipe, models by Inspect's names. Out: the same report as that of `compare`; Inspect's logs stay in the store.
"""

from typing import Any

from prefect import flow

from apprentice.envs.pool import EnvironmentPool
from apprentice.flows.compare_models import compared
from apprentice.flows.preflight import EvaluationPreflight
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime.servers import RunServers, open_store, with_discovered_settings
from apprentice.tasks.engine.run import RunContext, leases
from apprentice.tasks.episodes.jsonl import read_questions
from apprentice.tasks.players.inspect_task import episodes_task, records_of, run_inspect
from apprentice.tasks.questions import exam
from apprentice.tasks.reporting import announce
from apprentice.tasks.settings.stages import EvaluateSpec, Window


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
    recipe = with_discovered_settings(recipe)
    store = open_store(recipe)
    logs = store.root / "inspect" / recipe.name
    episodes, kept = {}, {}
    with RunServers(recipe) as servers:
        run = RunContext(store, servers)
        EvaluationPreflight(recipe, window)(run, "exam")
        questions = exam(run, recipe.environment, window, spec.questions)
        rows = read_questions(store.fetch(questions), "evaluate")
        server = servers.environment(recipe.environment.name)
        tokens = spec.max_new_tokens if serves_student or recipe.teacher is None else recipe.teacher.max_tokens
        temperature = spec.temperature if spec.decoding == "sampled" else 0.0
        for model in models:
            with EnvironmentPool(recipe.environment, server, say=announce.warn, lease=leases) as pool:
                task = episodes_task(pool, recipe.environment, rows, tokens, temperature, spec.samples, serves_student)
                kept[model] = run_inspect(task, model, logs, base_url)["log"]
            episodes[model] = records_of(kept[model])
    report = compared(episodes, dict.fromkeys(models), "inspect")
    for model in models:
        report["models"][model]["log"] = str(kept[model])
        announce.console.print(f"  Inspect's log of {model}: {kept[model]}")
    return report
