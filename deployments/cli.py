"""The whole command line: that of the flows, `setup`, which readies a Prefect server, and `env build`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from apprentice.flows.cli import app
from apprentice.flows.cli_parts import told_in_words
from apprentice.flows.env_cli import env_app


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

        from apprentice.deployments.server import set_up
        from apprentice.tasks.errors import Stop
        from apprentice.tasks.limits import shared

        if not shared():
            raise Stop(
                "No Prefect server is named.",
                "Start one (prefect server start) and set PREFECT_API_URL to it, such as http://127.0.0.1:4200/api.",
            )
        with get_client(sync_client=True) as client:
            for line in set_up(client, infrastructure.value, notify, outage_minutes):
                print(line)


@env_app.command()
def build(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="All when left out.")] = None,
    out: Annotated[Path, typer.Option(help="Where the folders are written.")] = Path("build/spaces"),
) -> None:
    """Write the folder that `openenv validate` accepts and `openenv push` publishes as a Space."""
    with told_in_words("Nothing else was written."):
        from apprentice.deployments import spaces
        from apprentice.flows.env_choice import settings_class

        for name in names or []:
            settings_class(name)  # names the nearest one
        if (uv := spaces.find_uv()) is None:
            print("uv is not installed, so no uv.lock is written; `openenv validate` asks for one: pip install uv")
        for name in names or spaces.served():
            print(spaces.build(name, out, uv))


def main() -> None:
    app()
