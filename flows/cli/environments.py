"""`apprentice env list | serve NAME | check URL | play NAME`: the environments and their servers."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from apprentice.flows.cli.common import JSON, SET, exit_with_message
from apprentice.flows.runtime.prefect_settings import ready

env_app = typer.Typer(no_args_is_help=True, help="List, serve, check and play the environments.")

NAME = Annotated[str, typer.Argument(help="A name from `apprentice env list`, or the path of a folder: ./my_env.")]
FROM_RECIPE = Annotated[Path | None, typer.Option("--recipe", help="Take settings and sizes from this recipe.")]
SETTINGS = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="One of the environment's settings. Repeatable."),
]


@env_app.command(name="list")
def list_(json_: JSON = False) -> None:
    """List the environments: tools, turns, rewards, extras, recipes."""
    with exit_with_message():
        from apprentice.flows.cli.choice import catalogue, rows

        _table(rows())
        if json_:
            print(json.dumps({"envs": catalogue()}, ensure_ascii=False))


@env_app.command()
def serve(
    name: NAME,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for a free port.")] = 8000,
    max_sessions: Annotated[int, typer.Option(min=1, help="Maximum concurrent episodes.")] = 64,
) -> None:
    """Serve an environment on 127.0.0.1 until Ctrl-C."""
    with exit_with_message("The server did not start."):
        ready()
        from apprentice.flows.cli.play_by_hand import serve_environment

        serve_environment(name, port, max_sessions)


@env_app.command()
def check(
    url: Annotated[
        str,
        typer.Argument(
            help="http://…, or https://OWNER-NAME.hf.space for a Space; a name or a folder is served here meanwhile."
        ),
    ],
    environment: Annotated[
        str | None, typer.Option(help="The environment it should serve. Default: the server's own answer.")
    ] = None,
    recipe: FROM_RECIPE = None,
    json_: JSON = False,
    set_: SET = None,
) -> None:
    """Check that a server works for an environment or a recipe: exit code 0, or 1 with the fixes."""
    with exit_with_message("Nothing was changed."):
        ready()
        from apprentice.flows.cli.choice import as_json, chosen_for, reachable, verdict
        from apprentice.flows.runtime.environment_check import check as look

        with reachable(url) as (served, name):
            server, spec, needs = chosen_for(served, environment or name, recipe, set_)
            checked = look(server, spec, needs)
        _table([{"": each.what, "is": each.verdict, "found": each.found, "do": each.fix} for each in checked.findings])
        print(verdict(server, spec, checked))
        if json_:
            print(json.dumps(as_json(server, spec, needs, checked), ensure_ascii=False))
        if not checked.ok:
            raise typer.Exit(1)


@env_app.command()
def play(
    name: NAME,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the question. Default: a random one.")] = None,
    set_: SETTINGS = None,
    url: Annotated[str | None, typer.Option(help="A running server. Default: start one here.")] = None,
    recipe: FROM_RECIPE = None,
) -> None:
    """Play an episode yourself. Ctrl-D ends it."""
    with exit_with_message("The episode was abandoned."):
        ready()
        from apprentice.flows.cli.play_by_hand import open_environment

        with open_environment(name, set_, url, recipe) as environment:
            from apprentice.flows.cli.play_by_hand import any_seed
            from apprentice.flows.cli.play_by_hand import play as play_it

            try:
                play_it(environment, any_seed() if seed is None else seed)
            except EOFError:
                print("\nThe episode was abandoned.")


def _table(rows: list[dict[str, Any]]) -> None:
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for index, column in enumerate(rows[0]):
        shown.add_column(column, overflow="fold", no_wrap=index > 0 and column == "recipes")
    for row in rows:
        shown.add_row(*(str(value) for value in row.values()))
    Console(highlight=False, markup=False).print(shown)
