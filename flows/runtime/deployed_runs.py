"""Runs on a work pool: starts a recipe's deployment, once the recipe is the one that was deployed.

In: a recipe's file, a pool. Out: the scheduled flow run; Stop where there is no server or no such deployment, or where
the recipe differs from it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound

from apprentice.flows.recipe.elsewhere import elsewhere, overrides_elsewhere
from apprentice.flows.recipe.loading import load_recipe, with_overrides
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.permanent_server import shared

MISSING = object()


def start_on(pool: str, path: Path, overrides: Sequence[str], rounds: int | None = None) -> FlowRun:
    """Schedule a run, or that many rounds, and return immediately. Raises Stop."""
    check_server()
    wanted = load_recipe(path, list(overrides))
    kind = "retrain" if rounds is None else "improve"
    deploy = f"apprentice deploy {path} --pool {pool}" + ("" if rounds is None else " --rounds 1")
    deployment = _deployment_of(f"{kind}/{wanted.name}", pool, deploy)
    overrides = overrides_elsewhere(wanted, overrides)
    deployed = with_overrides(Recipe.model_validate(deployment.parameters["recipe"]), overrides)
    wanted_fields, deployed_fields = (each | {"store": None} for each in (elsewhere(wanted), deployed.as_parameters()))
    if changed := next(_differences(wanted_fields, deployed_fields), None):
        raise Stop(
            f"{path} differs from the deployment {kind}/{wanted.name}: {changed}.",
            f"Deploy it again ({deploy}), with or without this run's --set options.",
        )
    named = f"{wanted.name}-seed{wanted.seed}" if rounds is None else f"{wanted.name}-improve"
    changed_here = {"overrides": list(overrides)} | ({} if rounds is None else {"rounds": rounds})
    run = run_deployment(deployment.id, parameters=changed_here, flow_run_name=named, timeout=0)
    assert isinstance(run, FlowRun)
    return run


def check_server() -> None:
    """Raise Stop if no Prefect server is configured."""
    if not shared():
        raise Stop(
            "No Prefect server is configured: a run without one shows its progress in its own terminal.",
            "Start one (prefect server start) and set PREFECT_API_URL to it, such as http://127.0.0.1:4200/api.",
        )


def _deployment_of(name: str, pool: str, deploy: str) -> DeploymentResponse:
    with get_client(sync_client=True) as client:
        try:
            found = client.read_deployment_by_name(name)
        except ObjectNotFound:
            raise Stop(f"There is no deployment {name} on Prefect's server.", f"Create it: {deploy}") from None
    if found.work_pool_name != pool:
        raise Stop(
            f"{name} is deployed on the pool {found.work_pool_name}, not on {pool}.",
            f"Use --on {found.work_pool_name}, or deploy it there: {deploy}",
        )
    return found


def _differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for name in {**one, **other}:
            yield from _differences(one.get(name, MISSING), other.get(name, MISSING), f"{path}.{name}".lstrip("."))
    elif one != other:
        yield path
