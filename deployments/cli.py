"""The command `apprentice`: those of the flows, `init`, `env build`, and `setup` and `deploy` for a Prefect server."""

import gc
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from apprentice.envs.serving.child import OURS, SAFE_PATH
from apprentice.flows.cli.app import app
from apprentice.flows.cli.environments import env_app
from apprentice.flows.cli.error_messages import exit_with_message
from apprentice.flows.cli.options import RECIPE, SET
from apprentice.flows.runtime.environment_variables import check_certificates, quiet
from apprentice.flows.runtime.interruption import handle_signals
from apprentice.tasks.reporting.standard_streams import prepare_streams, report_write_errors, use_utf8

Infrastructure = Literal["process", "kubernetes"]
"""The infrastructure on which workers run flows."""


@app.command(name="init")
@exit_with_message("Not all files were written.")
def init_project(
    folder: Annotated[Path, typer.Argument(help="Folder to write to.")] = Path(),
    recipe: Annotated[
        str | None, typer.Option(help="The package's recipe to copy. Default: laptop.", show_default=False)
    ] = None,
    production: Annotated[
        bool, typer.Option("--production", help="Also write prefect.yaml and the work pools' templates.")
    ] = False,
) -> None:
    """Write a recipe: a copy of one of the package's, with an explanation for every field. Overwrites nothing."""
    quiet()
    from apprentice.deployments.new_project import RECIPE, init

    print(*init(folder, recipe, production), sep="\n")
    print("Go on with:")
    commands = [] if folder.resolve() == Path.cwd() else [f"cd {shlex.quote(str(folder))}"]
    if production:
        commands += [
            "apprentice setup --files .",
            "prefect --no-prompt deploy --all",
            "prefect worker start --pool cpu",
            f"apprentice run --on cpu {RECIPE}",
        ]
    else:
        commands += [f"apprentice run {RECIPE}", f"apprentice view {RECIPE}"]
    print(*(f"  {each}" for each in commands), sep="\n")


@app.command()
@exit_with_message()
def setup(
    infrastructure: Annotated[Infrastructure, typer.Option("--type", help="Where workers run flows.")] = "process",
    notify: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE/NAME",
            help="A Prefect notification block, such as slack-webhook/team, for failures, outages and promotions.",
        ),
    ] = None,
    outage_minutes: Annotated[float, typer.Option(min=0.2, help="Notify of outages longer than this.")] = 10.0,
    files: Annotated[
        Path | None,
        typer.Option(
            help="Folder with prefect.yaml and pools, as `init --production` writes it. Default: the package's."
        ),
    ] = None,
) -> None:
    """Create or update the work pools, the GPU stages' deployments and the automations of a Prefect server."""
    check_certificates()
    from prefect.client.orchestration import get_client

    from apprentice.deployments.provisioning import FILES, set_up
    from apprentice.flows.runtime.deployed_runs import check_server

    check_server()
    with get_client(sync_client=True) as client:
        for line in set_up(client, infrastructure, notify, outage_minutes, files or FILES):
            print(line)


@app.command()
@exit_with_message()
def deploy(
    recipe: RECIPE,
    set_: SET = None,
    pool: Annotated[str, typer.Option(help="Work pool of its runs.")] = "cpu",
    gpu: Annotated[
        str, typer.Option(help="Deployments of the GPU stages, such as a100. Default: run them in the run's process.")
    ] = "",
    schedule: Annotated[
        str | None,
        typer.Option(metavar="CRON", help="Schedule, such as '0 3 * * 1'. Default: keep the current schedules."),
    ] = None,
    timezone: Annotated[str, typer.Option(help="Time zone of the schedule, such as Europe/Berlin.")] = "UTC",
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Deploy improve/NAME, which runs this many rounds at a time, and not retrain/NAME."),
    ] = None,
) -> None:
    """Deploy a recipe to a Prefect server as retrain/NAME, or update it. Paused schedules stay paused."""
    quiet()
    check_certificates()
    from prefect.utilities.urls import url_for

    from apprentice.deployments.deployment import deploy as deploy_it
    from apprentice.deployments.deployment import on_a_schedule
    from apprentice.deployments.steps import with_common_store
    from apprentice.flows.recipe.elsewhere import paths_needed
    from apprentice.flows.recipe.loading import load_recipe
    from apprentice.flows.runtime.deployed_runs import check_server

    check_server()
    chosen = load_recipe(recipe, set_ or [])
    made = deploy_it(chosen, pool, gpu, schedule, timezone, rounds)
    flow, command = ("retrain", "run") if rounds is None else ("improve", "improve")
    print(f"deployment {flow}/{chosen.name}\n{url_for('deployment', made) or made}")
    print(f"Run it: apprentice {command} --on {pool} {recipe}, or in Prefect's UI; `overrides` changes fields.")
    if schedule is not None and (note := on_a_schedule(chosen.name, chosen.server.space, rounds)):
        print(note)
    for line in paths_needed(with_common_store(chosen)):
        print(line)


@env_app.command()
@exit_with_message("Nothing else was written.")
def build(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Default: all.")] = None,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("build/spaces"),
) -> None:
    """Write the folder that `openenv validate` accepts and `openenv push` publishes as a Space."""
    from apprentice.deployments import spaces
    from apprentice.flows.cli.choice import name_of, settings_class

    names = [name_of(each) for each in names or []]
    for name in names:
        settings_class(name)  # raises Stop for an unknown name
    if (uv := spaces.find_uv()) is None:
        print("uv is not installed, so no uv.lock is written; `openenv validate` needs one: pip install uv")
    for name in names or spaces.served():
        print(spaces.build(name, out, uv))


@env_app.command()
@exit_with_message("Nothing was written.")
def init(
    name: Annotated[str, typer.Argument(help="Small letters, digits and _: the file's name.")],
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path(),
) -> None:
    """Write a new environment: one file, with a test and a recipe."""
    from apprentice.deployments.new_environment import init_environment as write

    folder = write(name, out)
    here = folder if folder.is_absolute() else f"./{folder}"
    print(f"{folder}\nCheck it: apprentice env check {here}\nPlay it: apprentice env play {here}")
    print(f"Test it: python -m pytest {folder}\nRun it: apprentice run {folder}/recipe.yaml")
    print(f"As a Space: apprentice env build {here}. On other machines: copy the folder to the same path")


def _with_home(argument: str) -> str:
    """Return an argument that is a path, or `--option=PATH`, with the home folder in place of `~`.

    A shell replaces neither what is quoted nor what follows an equals sign. Raises Stop.
    """
    option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    if not value.startswith("~"):
        return argument
    from apprentice.flows.recipe.location import given_path

    return f"{option}{equals}{given_path(value)}"


def main() -> None:
    """Run the command `apprentice`; `--debug` is accepted at any position."""
    use_utf8()
    os.environ.setdefault(SAFE_PATH, OURS)  # a user's random.py here is not for the processes that libraries start
    prepare_streams()
    handle_signals()
    with exit_with_message():
        given = [_with_home(each) for each in sys.argv[1:] if each != "--debug"]
    try:
        with report_write_errors():
            app(args=given if len(given) == len(sys.argv) - 1 else ["--debug", *given])
    finally:
        gc.freeze()  # Python collects once more as it ends, half a second for memory that goes anyway
