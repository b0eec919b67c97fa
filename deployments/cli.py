"""The whole command line: that of the flows, and for a Prefect server `setup` and `deploy`."""

import json
import sys
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
import yaml

from apprentice.flows.cli import app
from apprentice.flows.cli_parts import RECIPE, SET, quiet, told_in_words
from apprentice.flows.interruption import handle_signals
from apprentice.flows.streams import prepare_streams, use_utf8, write_errors_told

HERE = Path(__file__).parent


class Infrastructure(StrEnum):
    """What the workers start."""

    process = "process"
    kubernetes = "kubernetes"


@app.command()
def setup(
    infrastructure: Annotated[Infrastructure, typer.Option("--type", help="What workers start.")] = (
        Infrastructure.process
    ),
    notify: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE/NAME",
            help="A notification block of Prefect, such as slack-webhook/team, told of failures, outages, promotions.",
        ),
    ] = None,
    outage_minutes: Annotated[float, typer.Option(min=0.2, help="After which an outage is told.")] = 10.0,
) -> None:
    """Ready a Prefect server: work pools and automations. Repeatable; what is there is brought up to date."""
    with told_in_words():
        from prefect.client.orchestration import get_client
        from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
        from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

        from apprentice.deployments.automations import apply, automations
        from apprentice.flows.remote import check_server
        from apprentice.tasks.errors import Stop

        check_server()
        with get_client(sync_client=True) as client:
            block = None
            if notify is not None:
                kind, _, name = notify.partition("/")
                try:
                    block = client.read_block_document_by_name(name, kind).id
                except ObjectNotFound:
                    raise Stop(
                        f"There is no block {notify}.", "Create it in Prefect's interface, under Blocks."
                    ) from None
            for pool, settings in yaml.safe_load((HERE / "prefect.yaml").read_text())["pools"].items():
                template = json.loads(template_of(pool, infrastructure).read_text())
                given = {"base_job_template": template, "concurrency_limit": settings["concurrency_limit"]}
                try:
                    client.create_work_pool(WorkPoolCreate(name=pool, type=infrastructure.value, **given))
                    print(f"pool {pool}: created")
                except ObjectAlreadyExists:
                    kind = client.read_work_pool(pool).type
                    if kind != infrastructure.value:
                        raise Stop(
                            f"The pool {pool} is there already, and of type {kind}: a pool's type cannot be changed.",
                            f"Name it (--type {kind}), or delete the pool in Prefect's interface and set up again.",
                        ) from None
                    client.update_work_pool(pool, WorkPoolUpdate(base_job_template=template))  # its limit may be yours
                    print(f"pool {pool}: up to date")
            wanted = automations(timedelta(minutes=outage_minutes), block)
            apply(client, wanted)
            print(*(f"automation {automation.name.removeprefix('apprentice: ')}" for automation in wanted), sep="\n")


@app.command()
def deploy(
    recipe: RECIPE,
    set_: SET = None,
    pool: Annotated[str, typer.Option(help="The work pool of its runs.")] = "cpu",
    gpu: Annotated[
        str, typer.Option(help="Deployments of the GPU stages, such as a100; left out, they run in the run's process.")
    ] = "",
    schedule: Annotated[
        str | None,
        typer.Option(metavar="CRON", help="When it runs by itself, such as '0 3 * * 1'; else as it was."),
    ] = None,
    timezone: Annotated[str, typer.Option(help="Of the schedule, such as Europe/Berlin.")] = "UTC",
) -> None:
    """Deploy a recipe to a Prefect server as retrain/NAME. Repeatable; what a person paused stays paused."""
    with told_in_words():
        quiet()
        from prefect.utilities.urls import url_for

        from apprentice.deployments.deploy import deploy as deploy_it
        from apprentice.flows.recipe import load_recipe
        from apprentice.flows.remote import check_server

        check_server()
        chosen = load_recipe(recipe, set_ or [])
        made = deploy_it(chosen, pool, gpu, schedule, timezone)
        print(f"deployment retrain/{chosen.name}\n{url_for('deployment', made) or made}")
        print(f"Run it: apprentice run --on {pool} {recipe}, or in Prefect's interface: `overrides` changes fields.")


def template_of(pool: str, infrastructure: Infrastructure) -> Path:
    """The base job template of a pool."""
    if infrastructure is Infrastructure.process:
        return HERE / "pools" / f"{pool}.json"
    return HERE / "kubernetes" / f"{pool}-pool.json"


def main() -> None:
    """The command `apprentice`; `--debug` may stand anywhere in it."""
    use_utf8()
    prepare_streams()
    handle_signals()
    given = [each for each in sys.argv[1:] if each != "--debug"]
    with write_errors_told():
        app(args=given if len(given) == len(sys.argv) - 1 else ["--debug", *given])
