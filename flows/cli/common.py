"""Shared by all commands: common options, the process's environment, error messages instead of tracebacks."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from apprentice.envs.defaults import debugging, no_collection
from apprentice.flows.cli.interruption import EXIT_CODE, say_interrupted
from apprentice.flows.runtime.prefect_settings import ready, refused

if TYPE_CHECKING:
    from apprentice.flows.recipe.recipe import Recipe

RECIPE = Annotated[Path, typer.Argument(help="A YAML file, or the name of a recipe of the package, such as laptop.")]
SET = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Override one field, e.g. --set grpo.max_steps=50. Repeatable.",
    ),
]

KEY = Annotated[
    str,
    typer.Argument(
        help="A key, a revision or a tag from `apprentice run` or its report, or its first 6 characters; "
        "prefix it with namespace/repository@ if it is ambiguous."
    ),
]
STORE = Annotated[Path, typer.Option(help="The folder of artifacts.")]
HUB = Annotated[
    str | None,
    typer.Option(metavar="NAMESPACE", help="Also search this namespace on the Hub; the folder is then its cache."),
]
JSON = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]


def prepared(recipe: Path, overrides: list[str] | None, runs_flow: bool = False) -> "Recipe":
    """Set the variables that libraries read, and return the recipe. Raises Stop.

    Args:
        runs_flow: Begin to start the temporary server that a flow needs: checking a recipe takes as long, since TRL is
            imported for the arguments that it names.
    """
    ready()
    if runs_flow:
        from apprentice.flows.runtime.prefect_server import begin_prefect_server

        begin_prefect_server()
    with no_collection():
        from prefect.context import refresh_global_settings_context

        from apprentice.flows.recipe.loading import load_recipe

        chosen = load_recipe(recipe, overrides or [])
    if chosen.environment.path is not None:
        from apprentice.tasks.reporting.announce import say

        say(f"This runs the Python code in `{chosen.environment.path}`, which the recipe names.")
    # Prefect's results belong next to the artifacts that they name
    os.environ.setdefault("PREFECT_LOCAL_STORAGE_PATH", str(chosen.store.path.absolute() / ".prefect"))
    refresh_global_settings_context()
    return chosen


@contextmanager
def exit_with_message(
    interrupted: str = "Run the same command again: it resumes from the last finished stage.",
) -> Iterator[None]:
    """End the command with an error message; `--debug` also shows the traceback."""
    from apprentice.tasks.reporting.errors import Stop

    try:
        yield
    except (SystemExit, typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Stop as stop:
        _fail(*str(stop).split("\n→ ", 1))
    except Exception as error:
        _fail(*_cause_and_remedy(error))
    except BaseException as signaled:  # KeyboardInterrupt, or Prefect's exception for SIGTERM
        if debugging():
            traceback.print_exception(signaled)
        say_interrupted(interrupted)
        sys.exit(EXIT_CODE)


def _fail(cause: str, remedy: str) -> NoReturn:
    if debugging():
        traceback.print_exc()
    Console(highlight=False, soft_wrap=True).print(f"[bold red]{escape(cause)}[/]\n{escape(remedy)}")
    sys.exit(1)


def _cause_and_remedy(error: Exception) -> tuple[str, str]:
    """Return one line of cause and one of remedy for an unexpected error, or if the Hub is unreachable."""
    from huggingface_hub.errors import OfflineModeIsEnabled
    from prefect.exceptions import PrefectHTTPStatusError

    from apprentice.tasks.artifacts.hub_client import is_away

    if isinstance(error, OfflineModeIsEnabled):
        return "The folder lacks files that are on the Hub, and HF_HUB_OFFLINE is set.", "Unset it and run again."
    if is_away(error):
        return f"The Hub does not answer ({type(error).__name__}).", "Run again when it is back."
    if isinstance(error, PrefectHTTPStatusError) and error.response.status_code in (401, 403):
        stop = refused(error.response.status_code)
        return stop.cause, stop.remedy
    message = shorten(" ".join(str(error).split()), 300, placeholder=" …")
    cause = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return cause, "This is unexpected: run again with --debug for the traceback, and report it."
