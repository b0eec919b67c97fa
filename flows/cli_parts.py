"""What all commands share: their common options, a process readied for a flow, errors told as sentences."""

import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from apprentice.flows.recipe import Recipe

QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",  # 20 are too few on a machine that does something else
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",  # the run speaks for itself; Prefect's interface has its logs
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}

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
    from apprentice.flows.recipe import load_recipe

    chosen = load_recipe(recipe, overrides or [])
    # Prefect reads its settings when it is imported; its results belong beside the artifacts that they name
    os.environ.setdefault("PREFECT_LOCAL_STORAGE_PATH", str(chosen.store.path.absolute() / ".prefect"))
    return chosen


def ready() -> None:
    """Readies the process for a flow."""
    quiet()
    warnings.filterwarnings("ignore", category=FutureWarning)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that Prefect's server and ours are stopped, too
    sys.unraisablehook = interrupted_once_more


def interrupted_once_more(ignored: Any) -> None:
    """Ctrl-C once more where Python dropped one, because it came while an object was cleaned away (`__del__`).

    https://docs.python.org/3/library/sys.html#sys.unraisablehook
    """
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        # SIGTERM, which is heard as Ctrl-C is: a shell may have had this process ignore SIGINT
        again = signal.pthread_kill, (threading.main_thread().ident, signal.SIGTERM)
        threading.Timer(0.05, *again).start()  # once this hook, too, has returned
    else:
        sys.__unraisablehook__(ignored)


def quiet() -> None:
    """Sets what libraries read when they are imported, where it is not set."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)


@contextmanager
def told_in_words(
    interrupted: str = "Run the same command again: it goes on from the last finished stage.",
) -> Iterator[None]:
    """Ends the command with a sentence instead of a traceback, where there is one."""
    from apprentice.tasks.errors import Stop

    try:
        yield
    except Stop as stop:
        what, _, do = str(stop).partition("\n→ ")
        _console().print(f"[bold red]{escape(what)}[/]\n{escape(do)}")
        sys.exit(1)
    except KeyboardInterrupt:
        _console().print(f"[bold]Interrupted.[/] {interrupted}")
        sys.exit(130)
    except Exception as error:
        if (words := _of_the_hub(error)) is None:
            raise
        _console().print(f"[bold red]{escape(words)}[/]")
        sys.exit(1)


def _of_the_hub(error: Exception) -> str | None:
    """What to say where the Hub is away; None for any other error."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    from apprentice.tasks.hub_client import is_away

    if isinstance(error, OfflineModeIsEnabled):
        return "What the folder lacks is on the Hub, which HF_HUB_OFFLINE says not to ask. Unset it, and run again."
    return f"The Hub does not answer ({type(error).__name__}). Run again when it is back." if is_away(error) else None


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True)
