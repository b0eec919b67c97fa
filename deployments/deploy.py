"""Deploys any recipe: `apprentice deploy RECIPE`. prefect.yaml deploys the recipes of this folder.

In: a recipe, a pool, optionally a cron schedule. Out: the deployment retrain/NAME, with the same tags, limit and
triggers as the recipes in prefect.yaml, or improve/NAME, which only a schedule or a person starts. Paused schedules and
triggers stay paused.
"""

from pathlib import Path
from typing import Any
from uuid import UUID

import yaml
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import ConcurrencyLimitConfig
from prefect.client.schemas.schedules import CronSchedule
from prefect.events.schemas.deployment_triggers import DeploymentEventTrigger
from prefect.exceptions import ObjectNotFound
from prefect.flows import EntrypointType
from pydantic import ValidationError

from apprentice.deployments.steps import as_deployed, paused_triggers
from apprentice.flows.improve import improve
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.retrain import retrain
from apprentice.tasks.reporting.errors import Stop

SLUG = "schedule"
"""Identifies the schedule, so that a redeployment changes its time but not whether it is active."""


def deploy(recipe: Recipe, pool: str, gpu: str, schedule: str | None, timezone: str, rounds: int | None = None) -> UUID:
    """Create or update the deployment; without `schedule` its schedules do not change. Raises Stop.

    Args:
        rounds: How many rounds improve/NAME runs at a time; if None, it is retrain/NAME.
    """
    timetable = [] if schedule is None else [{"schedule": _cron(schedule, timezone), "slug": SLUG}]
    with get_client(sync_client=True) as client:
        try:
            client.read_work_pool(pool)
        except ObjectNotFound:
            raise Stop(
                f"There is no work pool {pool} on Prefect's server.",
                "Create the pools (apprentice setup), or choose another with --pool.",
            ) from None
    flow: Any = retrain if rounds is None else improve
    deployment: Any = flow.to_deployment(
        name=recipe.name,
        parameters=as_deployed(recipe) | {"gpu": gpu} | ({} if rounds is None else {"rounds": rounds}),
        tags=["apprentice", "retrain", recipe.name],
        work_pool_name=pool,
        concurrency_limit=ConcurrencyLimitConfig(limit=1, collision_strategy="ENQUEUE"),  # type: ignore[arg-type]
        triggers=_triggers(f"retrain/{recipe.name}") if rounds is None else [],
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    return deployment.apply(schedules=timetable)


def _cron(schedule: str, timezone: str) -> CronSchedule:
    try:
        return CronSchedule(cron=schedule, timezone=timezone)
    except ValidationError as error:
        raise Stop(
            f"{schedule!r} in the time zone {timezone} is not a schedule: {error.errors()[0]['msg']}.",
            "Write it in cron syntax, such as --schedule '0 3 * * 1', with --timezone Europe/Berlin.",
        ) from None


def _triggers(deployment: str) -> list[Any]:
    """Return the triggers in prefect.yaml, with those disabled that a person has paused."""
    index = yaml.safe_load((Path(__file__).parent / "prefect.yaml").read_text())
    wanted = next(each["triggers"] for each in index["deployments"] if each.get("triggers"))
    paused = paused_triggers(deployment)
    return [DeploymentEventTrigger.model_validate(each | {"enabled": each["name"] not in paused}) for each in wanted]
