"""The command line: `apprentice run | evaluate | dashboard | publish | champion RECIPE`, `apprentice status`."""

import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from apprentice.flows.recipe import Recipe
    from apprentice.tasks.champion import Champions
    from apprentice.tasks.store import LocalStore

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
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",  # 20 are too few on a machine that does something else
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",  # the run speaks for itself; Prefect's interface has its logs
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


class Protocol(StrEnum):
    """How models are examined."""

    parity = "parity"
    tutorial = "tutorial"
    inspect = "inspect"


champion_app = typer.Typer(no_args_is_help=True, help="See, and take back, what the gate promoted.")
app.add_typer(champion_app, name="champion")

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
        help="As `apprentice run` prints it, or its first 6 characters or more; or namespace/repository@key."
    ),
]
STORE = Annotated[Path, typer.Option(help="The folder of artifacts.")]
HUB = Annotated[
    str | None,
    typer.Option(metavar="NAMESPACE", help="Look on the Hub, too; the folder is then a cache in front of it."),
]
JSON = Annotated[bool, typer.Option("--json", help="One line for machines.")]


@app.command()
def run(
    recipe: RECIPE,
    set_: SET = None,
    runs: Annotated[Path, typer.Option(help="Where the run's folder with its report is made.")] = Path("runs"),
) -> None:
    """Run a recipe from the first stage that is not done yet, and show the report.

    Finished stages are found in the store by what made them and are not run again; an interrupted collection goes on
    from its last finished episode.
    """
    with told_in_words():
        chosen = prepared(recipe, set_)
        from apprentice.flows.retrain import retrain

        folder = retrain(chosen, runs)
        from apprentice.flows.page import BRIEF_ENDS
        from apprentice.tasks.announce import say

        say((folder / "report.md").read_text().split(BRIEF_ENDS)[0])
        print(folder)


@app.command()
def evaluate(
    recipe: RECIPE,
    model: Annotated[
        list[str],
        typer.Option(
            help="A key as `apprentice run` prints it, champion, teacher, a folder, owner/name@revision of the Hub, or "
            "https://host/v1#model for an endpoint. Repeatable: each is compared with the first."
        ),
    ],
    protocol: Annotated[
        Protocol,
        typer.Option(
            help="parity: as in training. tutorial: as the tutorial prints it, for comparison with its figures. "
            "inspect: as an Inspect AI task; the models are Inspect's, such as openai/gpt-5-mini."
        ),
    ] = Protocol.parity,
    questions: Annotated[int | None, typer.Option(min=1, help="How many; the recipe's evaluate.questions.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The first question's seed; the recipe's window.")] = None,
    as_of: Annotated[
        str | None, typer.Option(help="Names the state of what answers at an endpoint; today's date.")
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="With inspect: the endpoint, if not the provider's.")] = None,
    served_student: Annotated[bool, typer.Option(help="The endpoints serve students that were trained here.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="End with one line for machines.")] = False,
    set_: SET = None,
) -> None:
    """Examine models on a recipe's environment, and compare them."""
    with told_in_words():
        chosen = prepared(recipe, set_)
        from apprentice.tasks.errors import Stop
        from apprentice.tasks.specs import Window

        spec = chosen.evaluate.model_copy(update={"questions": questions or chosen.evaluate.questions})
        window = chosen.seed_windows().evaluate
        if seed is None and spec.questions > window.size:
            raise Stop(
                f"windows.evaluate has {window.size} seeds, and {spec.questions} questions were asked for.",
                "Ask for fewer, or name the first seed of others with --seed.",
            )
        if seed is not None:
            window = Window(start=seed, size=spec.questions)
        if protocol is Protocol.inspect:
            from apprentice.flows.inspect import inspect_models

            report = inspect_models(chosen, model, spec, window, served_student, base_url)
        else:
            from apprentice.flows.compare import compare_models

            spec = spec.model_copy(update={"protocol": protocol.value})
            report = compare_models(chosen, model, spec, window, as_of or str(date.today()), served_student)
        if json_:
            only = next(iter(report["models"].values())) if len(model) == 1 else None
            print(json.dumps({"model": model[0], **only} if only else report))


@app.command()
def status(
    hours: Annotated[float, typer.Option(min=0.0, help="How far back failures are shown.")] = 24.0,
    json_: Annotated[bool, typer.Option("--json", help="One line for machines.")] = False,
) -> None:
    """Say what runs, waits or failed on Prefect's server, and why."""
    with told_in_words():
        quiet()
        from apprentice.tasks.errors import Stop
        from apprentice.tasks.limits import shared

        if not shared():
            raise Stop(
                "No Prefect server is named: a run without one is a process, and says itself how it does.",
                "Set PREFECT_API_URL to the server's, such as http://127.0.0.1:4200/api.",
            )
        from apprentice.flows.status import status as look
        from apprentice.tasks.announce import table

        found = look(hours)
        if json_:
            print(json.dumps(found))
            return
        for key, title in (
            ("runs", "Running or waiting"),
            ("failed", f"Failed in {hours:g} h"),
            ("workers", "Workers"),
        ):
            if found[key]:
                table(key, title, found[key])
            else:
                print(f"{title}: none")


@app.command()
def dashboard(
    recipe: Annotated[Path | None, typer.Argument(help="Whose curves are shown; those of all when left out.")] = None,
    store: Annotated[Path | None, typer.Option(help="The folder of artifacts; the recipe's, or artifacts.")] = None,
    port: Annotated[int | None, typer.Option(help="The first free one from 7860 on when left out.")] = None,
    browser: Annotated[bool, typer.Option(help="Open it in a browser.")] = True,
    set_: SET = None,
) -> None:
    """Show the curves of trainings as they grow, on 127.0.0.1, until Ctrl-C."""
    with told_in_words():
        ready()
        chosen = prepared(recipe, set_) if recipe else None
        from apprentice.flows.dashboard import show_dashboard

        if chosen and chosen.trackio.space_id:
            print(f"What could be sent to the Space is at https://huggingface.co/spaces/{chosen.trackio.space_id}.")
        folder = store or (chosen.store.path if chosen else Path("artifacts"))
        show_dashboard(folder, chosen.name if chosen else None, port, browser)


@app.command()
def publish(recipe: RECIPE, set_: SET = None) -> None:
    """Send to the Hub what was made while it was out of reach, the oldest first."""
    with told_in_words():
        chosen = prepared(recipe, set_)
        from apprentice.flows.stores import open_store
        from apprentice.tasks.announce import table
        from apprentice.tasks.errors import Stop
        from apprentice.tasks.hub import HubStore

        store = open_store(chosen)
        if not isinstance(store, HubStore):
            raise Stop(f"{recipe} names no Hub.", "Say where to publish: --set store.hub.namespace=….")
        sent = store.send_waiting()
        if not sent:
            print("Nothing waits to be published.")
            return
        rows = [
            {"repository": artifact.repository, "key": artifact.key, "": "" if is_first else "beside another machine's"}
            for artifact, is_first in sent
        ]
        table("published", "Published", rows)
        print("Run the recipe again: who is champion is settled then.")


@app.command()
def lineage(key: KEY, store: STORE = Path("artifacts"), hub: HUB = None, json_: JSON = False) -> None:
    """Show what an artifact was made from, back to every episode it learned from, the code, the recipe."""
    with told_in_words():
        quiet()
        from apprentice.flows.lineage import as_tree
        from apprentice.tasks.announce import console
        from apprentice.tasks.lineage import lineage_of

        found = lineage_of(key, store, hub)
        if json_:
            print(json.dumps(found.as_json(), ensure_ascii=False))
        else:
            console.print(as_tree(found))


@app.command()
def reproduce(
    key: KEY,
    store: STORE = Path("artifacts"),
    hub: HUB = None,
    deep: Annotated[bool, typer.Option(help="All that it was made from, too, the oldest first.")] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Where a server is: server.url=…, teacher.base_url=…."),
    ] = None,
    yes: Annotated[
        bool, typer.Option(help="Do also what costs money, or runs code of a student's repository.")
    ] = False,
    json_: JSON = False,
) -> None:
    """Make an artifact again from its record, and say whether it is the same: exit code 0, or 3 when it is not."""
    with told_in_words("Nothing was kept: it begins anew."):
        ready()
        from apprentice.flows.reproduce import reproduce as make_again
        from apprentice.flows.reproduce import told
        from apprentice.tasks.announce import table
        from apprentice.tasks.lineage import lineage_of

        outcomes = make_again(lineage_of(key, store, hub), set_ or [], deep, yes)
        same = all(each.same for each in outcomes)
        table("reproduced", "Made again", told(outcomes))
        if json_:
            print(json.dumps({"same": same, "artifacts": [each._asdict() for each in outcomes]}))
        if not same:
            raise typer.Exit(3)


@champion_app.command()
def show(recipe: RECIPE, set_: SET = None) -> None:
    """Say which model is the champion, and what the gate found."""
    with told_in_words():
        champion, store = champions_of(recipe, set_)
        current = champion.current()
        if current is None:
            print("There is no champion yet: the gate has let no model through.")
            return
        from apprentice.tasks.announce import say
        from apprentice.tasks.gate import as_markdown, read_decision

        folder = store.fetch(current)
        say(as_markdown(read_decision(folder)))
        print(f"{current.repository}@{current.revision}")
        print(folder)


@champion_app.command()
def history(recipe: RECIPE, set_: SET = None) -> None:
    """List every change of champion, the first one first."""
    with told_in_words():
        champion, store = champions_of(recipe, set_)
        current = champion.current()
        rows = [
            {
                "": "→" if current is not None and change.revision == current.revision else "",
                "number": str(change.number),
                "at": change.at,
                "how": change.how,
                "revision": change.revision[:12],
            }
            for change in champion.history()
        ]
        if not rows:
            print("There was no champion yet.")
            return
        from apprentice.tasks.announce import table

        table("champions", f"Champions of {store.project}", rows)


@champion_app.command()
def rollback(
    recipe: RECIPE,
    to: Annotated[int | None, typer.Option(help="The change to go back to; the one before when left out.")] = None,
    set_: SET = None,
) -> None:
    """Make an earlier champion the champion again. What is taken back is not promoted again by itself."""
    with told_in_words():
        release = champions_of(recipe, set_)[0].roll_back(to)
        print(f"The champion is {release.repository}@{release.revision} again.")


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


def champions_of(recipe: Path, overrides: list[str] | None) -> "tuple[Champions, LocalStore]":
    """The champions of a recipe's project, and its store."""
    chosen = prepared(recipe, overrides)
    from apprentice.flows.stores import open_store
    from apprentice.tasks.champion import Champions

    store = open_store(chosen)
    return Champions(store), store


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
