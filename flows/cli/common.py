"""What all commands share: their common options, a process readied for a flow, errors told as sentences."""

import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from apprentice.envs.defaults import debugging
from apprentice.flows.cli.interruption import EXIT_CODE, say_interrupted

if TYPE_CHECKING:
    from apprentice.flows.recipe.recipe import Recipe

QUIET = {
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",  # the run speaks for itself; Prefect's interface has its logs
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}

LOUD = ("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "TRANSFORMERS_VERBOSITY")
"""What `--debug` leaves as it is."""

RECIPE = Annotated[Path, typer.Argument(help="A YAML file, such as deployments/recipes/laptop.yaml.")]
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
        help="A key, a revision or a tag as `apprentice run` and its report show it, or its first 6 characters; "
        "with namespace/repository@ before it where several have the same."
    ),
]
STORE = Annotated[Path, typer.Option(help="The folder of artifacts.")]
HUB = Annotated[
    str | None,
    typer.Option(metavar="NAMESPACE", help="Look on the Hub, too; the folder is then a cache in front of it."),
]
JSON = Annotated[bool, typer.Option("--json", help="One line for machines.")]


def prepared(recipe: Path, overrides: list[str] | None) -> "Recipe":
    """The recipe, with everything set that libraries read when they are imported. Raises Stop."""
    ready()
    from apprentice.flows.recipe.loading import load_recipe

    chosen = load_recipe(recipe, overrides or [])
    # Prefect reads its settings when it is imported; its results belong beside the artifacts that they name
    os.environ.setdefault("PREFECT_LOCAL_STORAGE_PATH", str(chosen.store.path.absolute() / ".prefect"))
    return chosen


def ready_for_flows() -> None:
    """Prefect's server is there from now on. Raises Stop."""
    from apprentice.flows.runtime.prefect_server import start_prefect_server

    start_prefect_server()


def ready() -> None:
    """Readies the process for a flow: before Prefect is imported, which makes its folder then."""
    quiet()
    warnings.filterwarnings("ignore", category=FutureWarning)
    if "PREFECT_HOME" not in os.environ and not _can_be_written(Path("~/.prefect")):
        os.environ["PREFECT_HOME"] = tempfile.mkdtemp(prefix="apprentice-prefect-")
        print(f"~/.prefect cannot be written: Prefect keeps its records in {os.environ['PREFECT_HOME']}.")


def _can_be_written(folder: Path) -> bool:
    try:
        there = folder.expanduser()
        there.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=there):
            return True
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return False


def quiet() -> None:
    """Sets what libraries read when they are imported, where it is not set."""
    for name, value in QUIET.items():
        if not (debugging() and name in LOUD):
            os.environ.setdefault(name, value)


@contextmanager
def exit_with_message(
    interrupted: str = "Run the same command again: it goes on from the last finished stage.",
) -> Iterator[None]:
    """Ends the command with a sentence instead of a traceback, which is shown only under `--debug`."""
    from apprentice.tasks.reporting.errors import Stop

    try:
        yield
    except (SystemExit, typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Stop as stop:
        _fail(*str(stop).split("\n→ ", 1))
    except Exception as error:
        _fail(*_in_words(error))
    except BaseException as signaled:  # KeyboardInterrupt, and what Prefect makes of SIGTERM
        if debugging():
            traceback.print_exception(signaled)
        say_interrupted(interrupted)
        sys.exit(EXIT_CODE)


def _fail(cause: str, remedy: str) -> NoReturn:
    if debugging():
        traceback.print_exc()
    Console(highlight=False, soft_wrap=True).print(f"[bold red]{escape(cause)}[/]\n{escape(remedy)}")
    sys.exit(1)


def _in_words(error: Exception) -> tuple[str, str]:
    """One line of cause and one of remedy for what nobody foresaw, or the Hub's absence."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    from apprentice.tasks.artifacts.hub_client import is_away

    if isinstance(error, OfflineModeIsEnabled):
        return "What the folder lacks is on the Hub, which HF_HUB_OFFLINE says not to ask.", "Unset it, and run again."
    if is_away(error):
        return f"The Hub does not answer ({type(error).__name__}).", "Run again when it is back."
    message = shorten(" ".join(str(error).split()), 300, placeholder=" …")
    cause = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return cause, "Nobody foresaw this: run again with --debug to see where it happened, and report that."
