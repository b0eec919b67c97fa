"""Deploys a recipe: `apprentice deploy RECIPE`.

In: a recipe, a pool, optionally a cron schedule. Out: the deployment retrain/NAME, with the same tags and limit as the
recipes in prefect.yaml, and a trigger for its Space, or improve/NAME, which only a schedule or a person starts. Paused
schedules and triggers stay paused.
"""

from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import ConcurrencyLimitConfig
from prefect.events.schemas.deployment_triggers import DeploymentEventTrigger
from prefect.exceptions import ObjectNotFound
from prefect.flows import EntrypointType

from apprentice.deployments.schedules import cron_schedule
from apprentice.deployments.steps import as_deployed
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.permanent_server import shared


def paused_triggers(deployment: str) -> set[str]:
    """Return the deployment's automations that a person disabled; Prefect creates them again on every deploy."""
    if not shared():
        return set()
    with get_client(sync_client=True) as client:
        try:
            resource = f"prefect.deployment.{client.read_deployment_by_name(deployment).id}"
        except ObjectNotFound:
            return set()
        return {each.name for each in client.read_resource_related_automations(resource) if not each.enabled}


SLUG = "schedule"
"""Identifies the schedule, so that a redeployment changes its time but not whether it is active."""


def deploy(recipe: Recipe, pool: str, gpu: str, schedule: str | None, timezone: str, rounds: int | None = None) -> UUID:
    """Create or update the deployment; without `schedule` its schedules do not change. Raises Stop.

    Args:
        rounds: How many rounds improve/NAME runs at a time; if None, it is retrain/NAME.
    """
    timetable = [] if schedule is None else [{"schedule": cron_schedule(schedule, timezone), "slug": SLUG}]
    with get_client(sync_client=True) as client:
        try:
            client.read_work_pool(pool)
        except ObjectNotFound:
            raise Stop(
                f"There is no work pool {pool} on Prefect's server.",
                "Create the pools (apprentice setup), or choose another with --pool.",
            ) from None
    from apprentice.flows.improve import improve  # importing a flow takes seconds
    from apprentice.flows.retrain import retrain

    flow: Any = retrain if rounds is None else improve
    deployment: Any = flow.to_deployment(
        name=recipe.name,
        parameters=as_deployed(recipe) | {"gpu": gpu} | ({} if rounds is None else {"rounds": rounds}),
        tags=["apprentice", "retrain", recipe.name],
        work_pool_name=pool,
        concurrency_limit=ConcurrencyLimitConfig(limit=1, collision_strategy="ENQUEUE"),  # type: ignore[arg-type]
        triggers=[DeploymentEventTrigger.model_validate(each) for each in triggers_of(recipe.name, recipe.server.space)]
        if rounds is None
        else [],
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    return deployment.apply(schedules=timetable)


def triggers_of(name: str, space: str | None) -> list[dict[str, Any]]:
    """Return what starts a deployment of the recipe beside schedules and people: a new revision of its Space.

    None where it plays on no Space: a dataset and a student are named by their commit, so a new one changes no run. A
    trigger that a person has paused is disabled.
    """
    if space is None:
        return []
    called = f"{name}: a new revision of {space}"
    return [
        {
            "name": called,
            "description": f"Runs retrain/{name} once the deployment watch/upstream sees a new revision.",
            "type": "event",
            "enabled": called not in paused_triggers(f"retrain/{name}"),
            "expect": ["apprentice.revision.new"],
            "match": {"prefect.resource.id": f"apprentice.space.{space}"},
            "parameters": {"environment_revision": "{{ event.payload.repository }}@{{ event.payload.revision }}"},
        }
    ]


def on_a_schedule(name: str, space: str | None, rounds: int | None) -> str:
    """Return what the runs of a schedule will do, where nothing of the recipe changes between them; else empty."""
    if rounds is not None or space:
        return ""
    return (
        f"Nothing that {name} reads changes between two runs, so the second one of this schedule ends as "
        "Cached, and so do all after it. For new questions each time deploy rounds: add --rounds 1. A run on a Space "
        "(server.space) follows its revisions."
    )
