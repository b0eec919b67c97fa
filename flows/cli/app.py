"""The command line: `apprentice run | improve | serve | chat | evaluate | import | export | publish | …`, `env …`."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from apprentice.envs.defaults import DEBUG, no_collection
from apprentice.flows.cli.champion import champion_app
from apprentice.flows.cli.data import export_anything, import_rows
from apprentice.flows.cli.environments import env_app
from apprentice.flows.cli.error_messages import exit_with_message
from apprentice.flows.cli.options import HUB, JSON, KEY, RECIPE, SET, STORE, looked_at, prepared
from apprentice.flows.cli.runs import compare, evaluate, runs
from apprentice.flows.cli.serving import chat, serve
from apprentice.flows.runtime.environment_variables import check_certificates, quiet, ready
from apprentice.tasks.reporting.errors import Stop

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Trains a small language model to act in an environment, and measures what it learned.",
)


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and the logs of libraries.")] = False,
) -> None:
    if debug:
        os.environ[DEBUG] = "1"


app.add_typer(champion_app, name="champion")
app.add_typer(env_app, name="env")


ON = Annotated[
    str | None,
    typer.Option(metavar="POOL", help="Run on this work pool, as deployed by `apprentice deploy`; print the link."),
]
VERBOSE = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show every stage's tables, and the report's instead of its outcome.")
]


@app.command()
@exit_with_message()
def run(
    recipe: RECIPE,
    set_: SET = None,
    runs: Annotated[Path, typer.Option(help="Folder for the run's folder with its report.")] = Path("runs"),
    on: ON = None,
    verbose: VERBOSE = False,
    follow: Annotated[
        int, typer.Option(metavar="N", min=0, help="Follow the closing advice in up to N further runs.")
    ] = 0,
    minutes: Annotated[
        float | None, typer.Option(min=0.0, help="With --follow: begin no further run after so many minutes.")
    ] = None,
    usd: Annotated[
        float | None, typer.Option(min=0.0, help="With --follow: begin no further run once so much is spent.")
    ] = None,
) -> None:
    """Run a recipe from its first unfinished stage, and show the report.

    Finished stages are cache hits in the store; an interrupted collection resumes from its last finished episode.
    """
    if not follow and (minutes is not None or usd is not None):
        raise Stop("--minutes and --usd bound a chain of runs.", "Add --follow N.")
    if follow and on is not None:
        raise Stop("--follow runs on this machine, and --on schedules one run.", "Leave one of them out.")
    if on is not None:
        _schedule(on, recipe, set_)
    elif follow:
        _follow_and_show(recipe, set_, runs, follow, minutes, usd)
    else:
        _run_and_show(recipe, set_, runs, verbose)


@app.command()
@exit_with_message()
def rescore(
    recipe: RECIPE,
    set_: SET = None,
    runs: Annotated[Path, typer.Option(help="Folder for the run's folder with its report.")] = Path("runs"),
    verbose: VERBOSE = False,
) -> None:
    """Run a recipe on its newest rollouts, scored again by its environment; no teacher is asked.

    For rewards that changed: plays the recorded actions again, and continues with the filter and all after it.
    `apprentice run` does so by itself where only the second number of the environment's version was raised.
    """
    _run_and_show(recipe, set_, runs, verbose, rescore=True)


def _run_and_show(recipe: Path, overrides: list[str] | None, runs: Path, verbose: bool, rescore: bool = False) -> None:
    chosen = prepared(recipe, overrides)
    from apprentice.flows.runtime.prefect_server import begin_prefect_server, start_prefect_server
    from apprentice.flows.runtime.servers import check_runs

    check_runs(runs)
    with no_collection():
        from apprentice.flows.retrain import nothing_to_do, retrain
        from apprentice.tasks.reporting.announce import be_verbose, say, show_cached
        from apprentice.tasks.reporting.permanent_server import shared

    if verbose:
        be_verbose()

    # a server that others look at is told of every run, and a Hub that is away is waited for once
    looks_first = not (rescore or shared() or chosen.store.hub)
    done = nothing_to_do(chosen, runs) if looks_first else None
    if done is None:
        begin_prefect_server()
        start_prefect_server()
    folder = done.folder if done else retrain(recipe=chosen, runs=runs, rescore=rescore)
    from apprentice.flows.pages.report_view import closing_lines

    report = json.loads((folder / "report.json").read_text())
    stages = [each["state"] for each in report["stages"]]
    show_cached()
    if verbose:
        say((folder / "report.md").read_text())
    if set(stages) == {"cached"}:
        print(f"Nothing to do: all {len(stages)} stages are cached.")
    say(closing_lines(report), "green" if report["ending"]["state"] == "promoted" else "yellow")
    print(folder)


def _follow_and_show(
    recipe: Path, overrides: list[str] | None, runs: Path, times: int, minutes: float | None, usd: float | None
) -> None:
    """Run a recipe and follow its advice; print the last report's closing lines, and the best run's folder last."""
    chosen = prepared(recipe, overrides, runs_flow=True)
    from apprentice.flows.runtime.prefect_server import start_prefect_server
    from apprentice.flows.runtime.servers import check_runs

    check_runs(runs)
    with no_collection():
        from apprentice.flows.follow import FollowBudget, as_sentence, best_of, follow
        from apprentice.flows.pages.report_view import closing_lines
        from apprentice.flows.recipe.loading import with_overrides
        from apprentice.flows.retrain import retrain
        from apprentice.tasks.reporting.announce import say, table
    start_prefect_server()
    budget = FollowBudget(times, minutes, usd)
    chain = follow(chosen, lambda each: retrain(recipe=each, runs=runs), with_overrides, budget)
    first, best = chain[0], best_of(chain)
    say(closing_lines(best.report), "green" if best.reached else "yellow")
    table("followed", "Runs that followed the advice", [each.row(number) for number, each in enumerate(chain, 1)])
    if best is not first:
        from apprentice.flows.compare_models import compare_models
        from apprentice.tasks.settings.spec import Window

        evaluation = best.recipe.evaluate
        fresh = Window(start=best.recipe.long_run_window().start, size=2 * evaluation.questions)
        found = compare_models(best.recipe, [first.model, best.model], evaluation, fresh, None)
        say(as_sentence(first, best, evaluation.questions, found))
    print(best.folder)


@app.command()
@exit_with_message()
def improve(
    recipe: RECIPE,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to run, the first training included.")] = 1,
    set_: SET = None,
    runs: Annotated[Path, typer.Option(help="Folder for the rounds' folders with their reports.")] = Path("runs"),
    on: ON = None,
) -> None:
    """Run rounds that each begin from the champion, ask new questions, and must pass the gate.

    An interrupted round is resumed by the next command; a round that was rejected leaves the champion as it is.
    """
    if on is not None:
        _schedule(on, recipe, set_, rounds)
        return
    chosen = prepared(recipe, set_, runs_flow=True)
    from apprentice.flows.improve import improve as improve_rounds
    from apprentice.flows.runtime.prefect_server import start_prefect_server
    from apprentice.flows.runtime.servers import check_runs

    check_runs(runs)

    start_prefect_server()
    for folder in improve_rounds(rounds=rounds, runs=runs, recipe=chosen):
        print(folder)


def _schedule(pool: str, recipe: Path, overrides: list[str] | None, rounds: int | None = None) -> None:
    quiet()
    check_certificates()
    from prefect.utilities.urls import url_for

    from apprentice.flows.runtime.deployed_runs import start_on

    started = start_on(pool, recipe, overrides or [], rounds)
    print(f"Scheduled on {pool}: {started.name}\n{url_for(started) or started.id}")


app.command(name="import")(import_rows)
app.command(name="export")(export_anything)
app.command()(serve)
app.command()(chat)
app.command()(evaluate)
app.command()(runs)
app.command()(compare)


@app.command()
@exit_with_message("Nothing was changed.")
def view(
    what: Annotated[
        str,
        typer.Argument(
            metavar="KEY|RECIPE",
            help="A recipe, by file or name, for the newest run of it; or the key, revision or tag of rollouts, an "
            "evaluation, a verdict, a decision or a release.",
        ),
    ],
    store: Annotated[Path, typer.Option(help="The folder of artifacts, where a key is given.")] = Path("artifacts"),
    hub: HUB = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open it in a browser.")] = True,
    set_: SET = None,
) -> None:
    """Show episodes as a table with filters, each beside the other models' on its question; until Ctrl-C.

    The table is that of the report's page; here it is as large as the files are. Serves 127.0.0.1 only.
    """
    quiet()
    from apprentice.flows.recipe.location import find_recipe

    is_recipe = what.endswith((".yaml", ".yml")) or find_recipe(Path(what))
    chosen = looked_at(Path(what), set_) if is_recipe else None
    from apprentice.flows.view import serve, shown_of_key, shown_of_recipe

    serve(shown_of_recipe(chosen) if chosen else shown_of_key(what, store, hub), port, browser)


@app.command()
@exit_with_message()
def status(
    hours: Annotated[float, typer.Option(min=0.0, help="Show failures of the last HOURS.")] = 24.0,
    json_: JSON = False,
) -> None:
    """Show the running, waiting and failed runs on Prefect's server, and why."""
    quiet()
    check_certificates()
    from apprentice.flows.runtime.deployed_runs import check_server
    from apprentice.flows.runtime.prefect_server import check_answers, server_url
    from apprentice.flows.status import show
    from apprentice.flows.status import status as look

    check_server()
    check_answers(server_url())
    found = look(hours)
    if json_:
        print(json.dumps(found))
    else:
        show(found, hours)


@app.command()
@exit_with_message()
def dashboard(
    recipe: Annotated[
        Path | None, typer.Argument(help="Show the curves of this recipe, a file or a name. Default: all.")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="Folder of artifacts. Default: the recipe's, or artifacts.")
    ] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Default: the first free port from 7860.")] = None,
    browser: Annotated[bool, typer.Option(help="Open it in a browser.")] = True,
    set_: SET = None,
) -> None:
    """Serve the live training curves on 127.0.0.1 until Ctrl-C."""
    ready()
    chosen = prepared(recipe, set_) if recipe else None
    from apprentice.flows.dashboard import show_dashboard

    if chosen and chosen.trackio.space_id:
        print(f"The Space has the curves too: https://huggingface.co/spaces/{chosen.trackio.space_id}.")
    folder = store or (chosen.store.path if chosen else Path("artifacts"))
    show_dashboard(folder, chosen.name if chosen else None, port, browser)


@app.command()
@exit_with_message()
def publish(recipe: RECIPE, set_: SET = None) -> None:
    """Upload to the Hub the artifacts that were made while it was out of reach, the oldest first."""
    chosen = prepared(recipe, set_)
    from apprentice.flows.runtime.servers import open_store
    from apprentice.tasks.artifacts.hub import HubStore
    from apprentice.tasks.reporting.announce import table

    store = open_store(chosen)
    if not isinstance(store, HubStore):
        raise Stop(f"{recipe} does not use the Hub.", "Set where to publish: --set store.hub.namespace=….")
    sent = store.send_waiting()
    if not sent:
        print("Nothing waits to be published.")
        return
    rows = [
        {"repository": artifact.repository, "key": artifact.key, "": "" if is_first else "beside another machine's"}
        for artifact, is_first in sent
    ]
    table("published", "Published", rows)
    print("Run the recipe again to decide on the champion.")


@app.command()
@exit_with_message()
def lineage(key: KEY, store: STORE = Path("artifacts"), hub: HUB = None, json_: JSON = False) -> None:
    """Show what an artifact was made from: its inputs back to every training episode, the code, the recipe."""
    quiet()
    from apprentice.tasks.lineage.lineage import lineage_of
    from apprentice.tasks.lineage.lineage_tree import as_tree
    from apprentice.tasks.reporting.announce import console

    found = lineage_of(key, store, hub)
    if json_:
        print(json.dumps(found.as_json(), ensure_ascii=False))
    else:
        console.print(as_tree(found))


@app.command()
@exit_with_message("Nothing was saved; the command starts from the beginning next time.")
def reproduce(
    key: KEY,
    store: STORE = Path("artifacts"),
    hub: HUB = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Where a server runs: server.url=…, teacher.base_url=…."),
    ] = None,
    yes: Annotated[
        bool, typer.Option(help="Allow spending money and running code from a student's repository.")
    ] = False,
    json_: JSON = False,
) -> None:
    """Run an artifact's recipe again in an empty store, and compare it and all that it was made from.

    Exit code 0 if the artifact is the same, 3 if not. Needs the records alone, not the files.
    """
    ready()
    from apprentice.flows.reproduce import reproduce as make_again
    from apprentice.flows.reproduce import rows
    from apprentice.tasks.lineage.lineage import lineage_of
    from apprentice.tasks.reporting.announce import table, warn

    outcomes = make_again(lineage_of(key, store, hub), set_ or [], yes)
    for difference in dict.fromkeys(each for outcome in outcomes for each in outcome.differences):
        warn(difference)
    table("reproduced", "Reproduced", rows(outcomes))
    if json_:
        print(json.dumps({"same": outcomes[-1].same, "artifacts": [each._asdict() for each in outcomes]}))
    if not outcomes[-1].same:
        raise typer.Exit(3)
