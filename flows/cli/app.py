"""The command line: `apprentice run | evaluate | dashboard | publish | champion RECIPE`, `apprentice env`, `status`."""

import json
import os
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from apprentice.envs.defaults import DEBUG
from apprentice.flows.cli.champion import champion_app
from apprentice.flows.cli.common import (
    HUB,
    JSON,
    KEY,
    RECIPE,
    SET,
    STORE,
    exit_with_message,
    prepared,
    quiet,
    ready,
    ready_for_flows,
)
from apprentice.flows.cli.env import env_app

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Trains a small language model to act in an environment, and proves what it learned.",
)


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and what libraries log.")] = False,
) -> None:
    if debug:
        os.environ[DEBUG] = "1"


app.add_typer(champion_app, name="champion")
app.add_typer(env_app, name="env")


class Protocol(StrEnum):
    """How models are examined."""

    parity = "parity"
    tutorial = "tutorial"
    inspect = "inspect"


@app.command()
def run(
    recipe: RECIPE,
    set_: SET = None,
    runs: Annotated[Path, typer.Option(help="Where the run's folder with its report is made.")] = Path("runs"),
    on: Annotated[
        str | None,
        typer.Option(metavar="POOL", help="Run it there, as deployed by `apprentice deploy`; print the run's link."),
    ] = None,
) -> None:
    """Run a recipe from the first stage that is not done yet, and show the report.

    Finished stages are found in the store by what made them and are not run again; an interrupted collection goes on
    from its last finished episode.
    """
    with exit_with_message():
        if on is not None:
            quiet()
            from prefect.utilities.urls import url_for

            from apprentice.flows.runtime.remote import start_on

            started = start_on(on, recipe, set_ or [])
            print(f"Scheduled on {on}: {started.name}\n{url_for(started) or started.id}")
            return
        chosen = prepared(recipe, set_)
        from apprentice.flows.retrain import retrain
        from apprentice.flows.runtime.run_folder import check_runs

        check_runs(runs)
        ready_for_flows()
        folder = retrain(chosen, runs)
        from apprentice.flows.pages.report_page import BRIEF_ENDS
        from apprentice.tasks.reporting.announce import say

        say((folder / "report.md").read_text().split(BRIEF_ENDS)[0])
        print(folder)


@app.command()
def evaluate(
    recipe: RECIPE,
    model: Annotated[
        list[str],
        typer.Option(
            help="A key, a revision or a tag as the report's lineage shows it, or its first 6 characters or more; "
            "champion, teacher, a folder, owner/name@revision of the Hub, or https://host/v1#model for an endpoint. "
            "Repeatable: each is compared with the first."
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
    served_student: Annotated[
        bool, typer.Option(help="The endpoints serve students that were trained current_location.")
    ] = False,
    trust_code: Annotated[
        list[str] | None,
        typer.Option(help="A folder, or owner/name@commit of the Hub, whose Python code you have read and let run."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="End with one line for machines.")] = False,
    set_: SET = None,
) -> None:
    """Examine models on a recipe's environment, and compare them."""
    with exit_with_message():
        chosen = prepared(recipe, set_)
        from apprentice.flows.compare import check_addresses
        from apprentice.tasks.reporting.errors import Stop
        from apprentice.tasks.settings.stages import Window

        check_addresses([*model, *([base_url] if base_url else [])])
        spec = chosen.evaluate.model_copy(update={"questions": questions or chosen.evaluate.questions})
        window = chosen.seed_windows().evaluate
        if seed is None and spec.questions > window.size:
            raise Stop(
                f"windows.evaluate has {window.size} seeds, and {spec.questions} questions were asked for.",
                "Ask for fewer, or name the first seed of others with --seed.",
            )
        if seed is not None:
            window = Window(start=seed, size=spec.questions)
        ready_for_flows()
        if protocol is Protocol.inspect:
            from apprentice.flows.inspection import inspect_models

            report = inspect_models(chosen, model, spec, window, served_student, base_url)
        else:
            from apprentice.flows.compare import compare_models

            spec = spec.model_copy(update={"protocol": protocol.value})
            report = compare_models(chosen, model, spec, window, as_of or str(date.today()), served_student, trust_code)
        if json_:
            only = next(iter(report["models"].values())) if len(model) == 1 else None
            print(json.dumps({"model": model[0], **only} if only else report))


@app.command()
def status(
    hours: Annotated[float, typer.Option(min=0.0, help="How far back failures are shown.")] = 24.0,
    json_: Annotated[bool, typer.Option("--json", help="One line for machines.")] = False,
) -> None:
    """Say what runs, waits or failed on Prefect's server, and why."""
    with exit_with_message():
        quiet()
        from apprentice.tasks.reporting.errors import Stop
        from apprentice.tasks.reporting.shared_server import shared

        if not shared():
            raise Stop(
                "No Prefect server is named: a run without one is a process, and says itself how it does.",
                "Set PREFECT_API_URL to the server's, such as http://127.0.0.1:4200/api.",
            )
        from apprentice.flows.cli.status import status as look
        from apprentice.flows.cli.status_page import show
        from apprentice.flows.runtime.prefect_server import check_answers, server_url

        check_answers(server_url())
        found = look(hours)
        if json_:
            print(json.dumps(found))
        else:
            show(found, hours)


@app.command()
def dashboard(
    recipe: Annotated[Path | None, typer.Argument(help="Whose curves are shown; those of all when left out.")] = None,
    store: Annotated[Path | None, typer.Option(help="The folder of artifacts; the recipe's, or artifacts.")] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The first free one from 7860 on when left out.")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open it in a browser.")] = True,
    set_: SET = None,
) -> None:
    """Show the curves of trainings as they grow, on 127.0.0.1, until Ctrl-C."""
    with exit_with_message():
        ready()
        chosen = prepared(recipe, set_) if recipe else None
        from apprentice.flows.cli.dashboard import show_dashboard

        if chosen and chosen.trackio.space_id:
            print(f"What could be sent to the Space is at https://huggingface.co/spaces/{chosen.trackio.space_id}.")
        folder = store or (chosen.store.path if chosen else Path("artifacts"))
        show_dashboard(folder, chosen.name if chosen else None, port, browser)


@app.command()
def publish(recipe: RECIPE, set_: SET = None) -> None:
    """Send to the Hub what was made while it was out of reach, the oldest first."""
    with exit_with_message():
        chosen = prepared(recipe, set_)
        from apprentice.flows.runtime.store import open_store
        from apprentice.tasks.artifacts.hub import HubStore
        from apprentice.tasks.reporting.announce import table
        from apprentice.tasks.reporting.errors import Stop

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
    with exit_with_message():
        quiet()
        from apprentice.flows.pages.lineage_tree import as_tree
        from apprentice.tasks.artifacts.lineage import lineage_of
        from apprentice.tasks.reporting.announce import console

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
    with exit_with_message("Nothing was kept: it begins anew."):
        ready()
        from apprentice.flows.reproduce import reproduce as make_again
        from apprentice.flows.reproduce import rows
        from apprentice.tasks.artifacts.lineage import lineage_of
        from apprentice.tasks.reporting.announce import table

        found = lineage_of(key, store, hub)
        ready_for_flows()
        outcomes = make_again(found, set_ or [], deep, yes)
        same = all(each.same for each in outcomes)
        table("reproduced", "Made again", rows(outcomes))
        if json_:
            print(json.dumps({"same": same, "artifacts": [each._asdict() for each in outcomes]}))
        if not same:
            raise typer.Exit(3)
