"""The whole command line: that of the flows, `env build`, and for a Prefect server `setup` and `deploy`."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from apprentice.flows.cli.app import app
from apprentice.flows.cli.common import RECIPE, SET, exit_with_message, quiet
from apprentice.flows.cli.env import env_app
from apprentice.flows.cli.interruption import handle_signals
from apprentice.flows.cli.streams import prepare_streams, use_utf8, write_errors_told


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
    with exit_with_message():
        from prefect.client.orchestration import get_client

        from apprentice.deployments.server import set_up
        from apprentice.flows.runtime.remote import check_server

        check_server()
        with get_client(sync_client=True) as client:
            for line in set_up(client, infrastructure.value, notify, outage_minutes):
                print(line)


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
    with exit_with_message():
        quiet()
        from prefect.utilities.urls import url_for

        from apprentice.deployments.deploy import deploy as deploy_it
        from apprentice.flows.recipe.loading import load_recipe
        from apprentice.flows.runtime.remote import check_server

        check_server()
        chosen = load_recipe(recipe, set_ or [])
        made = deploy_it(chosen, pool, gpu, schedule, timezone)
        print(f"deployment retrain/{chosen.name}\n{url_for('deployment', made) or made}")
        print(f"Run it: apprentice run --on {pool} {recipe}, or in Prefect's interface: `overrides` changes fields.")


@env_app.command()
def build(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="All when left out.")] = None,
    out: Annotated[Path, typer.Option(help="Where the folders are written.")] = Path("build/spaces"),
) -> None:
    """Write the folder that `openenv validate` accepts and `openenv push` publishes as a Space."""
    with exit_with_message("Nothing else was written."):
        from apprentice.deployments import spaces
        from apprentice.flows.cli.environments.choice import settings_class

        for name in names or []:
            settings_class(name)  # names the nearest one
        if (uv := spaces.find_uv()) is None:
            print("uv is not installed, so no uv.lock is written; `openenv validate` asks for one: pip install uv")
        for name in names or spaces.served():
            print(spaces.build(name, out, uv))


def main() -> None:
    """The command `apprentice`; `--debug` may stand anywhere in it."""
    use_utf8()
    prepare_streams()
    handle_signals()
    given = [each for each in sys.argv[1:] if each != "--debug"]
    with write_errors_told():
        app(args=given if len(given) == len(sys.argv) - 1 else ["--debug", *given])
