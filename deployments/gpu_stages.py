"""Deploys the GPU stages on a work pool: one deployment for each training, and one for the evaluation.

In: the server's client, a pool that prefect.yaml lists with `stages: true`. Out: a line for each, such as sft/a100.
They come from the list of trainings, so that a new one is deployed where a run looks for it.
"""

from collections.abc import Iterator
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.deployments.runner import EntrypointType
from prefect.exceptions import ObjectNotFound

from apprentice.flows.stages import STAGES


def deploy_stages(client: SyncPrefectClient, pool: str) -> Iterator[str]:
    """Create the deployments; of those that exist update what the code decides, and leave what a person set."""
    for name, flow in STAGES.items():
        made: Any = flow.to_deployment(
            name=pool, tags=["apprentice", "stage"], work_pool_name=pool, entrypoint_type=EntrypointType.MODULE_PATH
        )
        try:
            there = client.read_deployment_by_name(f"{name}/{pool}")
        except ObjectNotFound:
            made.apply()
            yield f"deployment {name}/{pool}: created"
            continue
        decided = {
            "entrypoint": made.entrypoint,
            "description": made.description,
            "parameter_openapi_schema": flow.parameters.model_dump_for_openapi(),
        }
        pool_of_it = {} if there.work_pool_name else {"work_pool_name": pool}  # it loses a pool that is deleted
        client.update_deployment(there.id, DeploymentUpdate.model_validate(decided | pool_of_it))
        yield f"deployment {name}/{pool}: up to date"
