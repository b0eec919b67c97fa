"""The command line: `apprentice run RECIPE`."""

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Trains a small language model to act in an environment, and proves what it learned.",
)

QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",  # the run speaks for itself; Prefect's interface has its logs
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


@app.callback()
def apprentice() -> None:
    """Keeps `run` a command of its own."""


@app.command()
def run(
    recipe: Annotated[Path, typer.Argument(help="A YAML file, such as deployments/recipes/laptop.yaml.")],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Override one field, e.g. --set grpo.max_steps=50. Repeatable.",
        ),
    ] = None,
    runs: Annotated[Path, typer.Option(help="Where the run's folder with its report is made.")] = Path("runs"),
) -> None:
    """Run a recipe from the first stage that is not done yet, and show the report.

    Finished stages are found in the store by what made them and are not run again; an interrupted collection goes on
    from its last finished episode.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore", category=FutureWarning)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that Prefect's server and ours are stopped, too
    from apprentice.flows.recipe import load_recipe
    from apprentice.tasks.errors import Stop

    try:
        chosen = load_recipe(recipe, set_ or [])
        # Prefect reads its settings when it is imported; its results belong beside the artifacts that they name
        os.environ.setdefault("PREFECT_LOCAL_STORAGE_PATH", str(chosen.store.path.absolute() / ".prefect"))
        from apprentice.flows.retrain import retrain

        folder = retrain(chosen, runs)
    except Stop as stop:
        what, _, do = str(stop).partition("\n→ ")
        _console().print(f"[bold red]{escape(what)}[/]\n{escape(do)}")
        sys.exit(1)
    except KeyboardInterrupt:
        _console().print("[bold]Interrupted.[/] Run the same command again: it goes on from the last finished stage.")
        sys.exit(130)
    from apprentice.flows.page import BRIEF_ENDS
    from apprentice.tasks.announce import say

    say((folder / "report.md").read_text().split(BRIEF_ENDS)[0])
    print(folder)


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True)


def main() -> None:
    app()
