"""Creates or updates on a Prefect server what the files of this folder describe: work pools and automations.

In: the server's client, the pools' type, a notification block. Out: one line per object created or updated.
Keeps what a person changed on the server: a pool's limit, a pause.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import yaml
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

from apprentice.deployments.gpu_stages import deploy_stages
from apprentice.deployments.schedules import check_index
from apprentice.tasks.reporting.errors import Stop

FILES = Path(__file__).parent


def set_up(
    client: SyncPrefectClient, kind: str, notify: str | None, outage_minutes: float, files: Path = FILES
) -> Iterator[str]:
    """Apply pools, with the GPU stages of those that have them, and automations; yield one line each. Raises Stop.

    Args:
        kind: Type of the pools, `process` or `kubernetes`.
        notify: A notification block as TYPE/NAME.
        files: A folder with prefect.yaml, which lists the pools, and their templates; this package has what it lacks.
    """
    block = None if notify is None else block_id(client, notify)
    try:
        pools = yaml.safe_load((files / "prefect.yaml").read_text())["pools"]
        check_index(files / "prefect.yaml")
    except (OSError, KeyError, TypeError, yaml.YAMLError) as error:
        raise Stop(
            f"{files / 'prefect.yaml'} lists no pools: {error}", "See what apprentice init --production writes."
        ) from None
    for pool, settings in pools.items():
        template = json.loads(template_of(pool, kind, files).read_text())
        yield f"pool {pool}: {apply_pool(client, pool, kind, template, settings['concurrency_limit'])}"
        if settings.get("stages"):
            yield from deploy_stages(client, pool)
    for automation in automations(block, outage_minutes):
        if existing := client.read_automations_by_name(automation.name):  # a paused one stays paused
            client.update_automation(existing[0].id, automation.model_copy(update={"enabled": existing[0].enabled}))
        else:
            client.create_automation(automation)
        yield f"automation {automation.name.removeprefix('apprentice: ')}"


def block_id(client: SyncPrefectClient, notify: str) -> UUID:
    """Return the id of a notification block. Raises Stop if it does not exist."""
    kind, _, name = notify.partition("/")
    try:
        return client.read_block_document_by_name(name, kind).id
    except ObjectNotFound:
        raise Stop(f"There is no block {notify}.", "Create it in Prefect's UI, under Blocks.") from None


def apply_pool(client: SyncPrefectClient, pool: str, kind: str, template: dict[str, Any], limit: int) -> str:
    """Create the pool, or update its base job template. Raises Stop if it exists with another type."""
    try:
        client.create_work_pool(
            WorkPoolCreate(name=pool, type=kind, base_job_template=template, concurrency_limit=limit)
        )
        return "created"
    except ObjectAlreadyExists:
        existing = client.read_work_pool(pool).type
    if existing != kind:
        raise Stop(
            f"The pool {pool} already exists with type {existing}, and a pool's type cannot be changed.",
            f"Use --type {existing}, or delete the pool in Prefect's UI and run the command again.",
        )
    client.update_work_pool(pool, WorkPoolUpdate(base_job_template=template))
    return "up to date"


def template_of(pool: str, kind: str, files: Path = FILES) -> Path:
    """Return a pool's base job template, this package's where `files` has none. Raises Stop if there is none."""
    template = Path("pools", f"{pool}.json") if kind == "process" else Path(kind, f"{pool}-pool.json")
    for folder in (files, FILES):
        if (folder / template).exists():
            return folder / template
    raise Stop(
        f"The pool {pool} has no template {files / template}.",
        f"Write one: prefect work-pool get-default-base-job-template --type {kind}.",
    )


def automations(block: UUID | None, outage_minutes: float) -> list[AutomationCore]:
    """Return the automations of automations.yaml, and with a notification block those of notifications.yaml."""
    described: list[dict[str, Any]] = yaml.safe_load((FILES / "automations.yaml").read_text())["automations"]
    if block is not None:
        notifications = yaml.safe_load((FILES / "notifications.yaml").read_text())["automations"]
        for each in notifications:
            each["actions"][0]["block_document_id"] = str(block)
            if "within" in each["trigger"]:
                each["trigger"]["within"] = outage_minutes * 60
        described += notifications
    return [AutomationCore.model_validate(each) for each in described]
