"""Deploys recipes: the steps of `prefect deploy` for those in prefect.yaml, and `apprentice deploy RECIPE` for any.

A step makes a recipe a deployment's default parameters. In: a recipe's file or name. Out: its parameters, with the
store's path for all workers, and which triggers are enabled.

`deploy` makes the deployment. In: a recipe, a pool, optionally a cron schedule. Out: the deployment retrain/NAME, with
the same tags, limit and triggers as the recipes in prefect.yaml, or improve/NAME, which only a schedule or a person
starts. Paused schedules and triggers stay paused.
"""

import os
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

from apprentice.flows.improve import improve
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.retrain import retrain
from apprentice.tasks.reporting.announce import shared
from apprentice.tasks.reporting.errors import Stop


def recipe(recipe: str) -> dict[str, Any]:
    """Return a validated recipe, the folder for its reports, and whether each trigger is enabled. Raises Stop.

    Args:
        recipe: A YAML file, as seen from where `prefect deploy` is run, or the name of a recipe of this package.
    """
    chosen = load_recipe(Path(recipe), [])
    paused = paused_triggers(f"retrain/{chosen.name}")
    return as_deployed(chosen) | {
        "on_environment": "a new environment version" not in paused,
        "on_dataset": "a new dataset revision" not in paused,
    }


def as_deployed(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as a deployment's parameters.

    The store is APPRENTICE_STORE, a folder that all workers see under this path, or else the recipe's store on this
    machine.
    """
    store = Path(os.environ.get("APPRENTICE_STORE") or recipe.store.path).absolute()
    there = recipe.model_copy(update={"store": recipe.store.model_copy(update={"path": store})})
    return {"recipe": there.as_parameters(), "runs": str(store / "runs")}


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
