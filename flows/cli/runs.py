"""The commands on stored results and their data.

`apprentice runs` and `compare`: the finished runs of a folder, as a list and side by side. `champion show`, `history`
and `rollback`: the current champion and those before it. `evaluate`: models, each compared with the first.

`apprentice import` and `apprentice export`: conversations of other tools as rollouts, and the other way round.

In: a file, a folder or a dataset of the Hub, and a recipe; or the key of rollouts. Out: an artifact that the printed
command trains on; or files that the other tools read. No teacher and no Prefect server is asked.

`apprentice view`: every episode of an artifact or of a recipe's newest run, in a browser on this machine.
"""

import json
import shlex
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from apprentice.flows.cli.common import HUB, JSON, KEY, RECIPE, SET, STORE, exit_with_message, prepared
from apprentice.flows.runtime.prefect_settings import quiet

if TYPE_CHECKING:
    from apprentice.flows.recipe.recipe import Recipe
    from apprentice.tasks.analysis.history import Champions
    from apprentice.tasks.artifacts.local import LocalStore
    from apprentice.tasks.settings.spec import Window

RUNS = Annotated[Path, typer.Option(help="The folder of the runs' folders.")]
STORE_OF_RUNS = Annotated[
    Path | None, typer.Option(help="The folder of artifacts. Default: that of each run's recipe, else artifacts.")
]

WIDE = 116
"""Columns of a terminal from which recipe, seed and time stand beside a run's name."""


def runs(runs: RUNS = Path("runs"), store: STORE_OF_RUNS = None, json_: JSON = False) -> None:
    """List the finished runs of a folder, the newest first: recipe, seed, when, outcome, champion or not, page."""
    with exit_with_message():
        quiet()
        from apprentice.flows.compare import finished
        from apprentice.tasks.reporting.announce import console, table

        rows = [run.row(store) for run in finished(runs)]
        if json_:
            print(json.dumps(rows, ensure_ascii=False))
        elif rows:
            table(
                "runs",
                f"Runs in {runs}; the page of each: {runs}/RUN/report.html",
                [_shown(row, console.width) for row in rows],
            )
        else:
            print(f"There is no finished run in {runs}.")


def _shown(row: dict[str, str], width: int) -> dict[str, str]:
    """What fits a terminal of 80 columns; one of 120 has what a run's own name may leave out as well."""
    wide = {name: row[name] for name in ("recipe", "seed", "when")} if width >= WIDE else {}
    outcome = "champion" if row["champion"] == "yes" else row["outcome"]
    return {"run": row["run"], **wide, "accuracy": f"{row['model']} {row['accuracy']}", "outcome": outcome}


def compare(
    run: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|KEY…",
            help="A run's folder or its name in `apprentice runs`; last: the newest; the key, revision or tag of a "
            "verdict, a decision, a release or an evaluation; owner/name@revision for one on the Hub.",
        ),
    ],
    runs: RUNS = Path("runs"),
    store: STORE_OF_RUNS = None,
    hub: HUB = None,
    json_: JSON = False,
) -> None:
    """Lay finished runs side by side: settings that differ, accuracy on the same questions, curves, cost.

    Trains and plays nothing. For models that were not asked the same questions use `apprentice evaluate`.
    """
    with exit_with_message():
        quiet()
        from apprentice.flows.compare import compare_runs, shown_in_terminal, side_named

        found = compare_runs([side_named(each, runs, store, hub) for each in run], runs)
        if json_:
            print(json.dumps(found, ensure_ascii=False))
            return
        shown_in_terminal(found)
        print(found["page"])


champion_app = typer.Typer(no_args_is_help=True, help="Show and roll back the gate's promotions.")


@champion_app.command()
def show(recipe: RECIPE, set_: SET = None) -> None:
    """Show which model is the champion, and the gate's decision."""
    with exit_with_message():
        champion, store, _ = champions_of(recipe, set_)
        current = champion.current()
        if current is None:
            print("There is no champion yet: no model has passed the gate.")
            return
        from apprentice.tasks.analysis.ending import as_markdown, read_decision
        from apprentice.tasks.reporting.announce import say

        folder = store.fetch(current)
        say(as_markdown(read_decision(folder)))
        print(f"{current.repository}@{current.revision}")
        print(folder)


@champion_app.command()
def history(recipe: RECIPE, set_: SET = None) -> None:
    """List every change of champion and every round, the oldest first."""
    with exit_with_message():
        champion, store, chosen = champions_of(recipe, set_)
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
        from apprentice.tasks.reporting.announce import table

        table("champions", f"Champions of {store.project}", rows)
        from apprentice.flows.improve import history_rows
        from apprentice.tasks.analysis.history import past_rounds

        table("rounds", f"Rounds of {store.project}", history_rows(store, chosen, past_rounds(store)))


@champion_app.command()
def rollback(
    recipe: RECIPE,
    to: Annotated[
        int | None, typer.Option(help="Number of the change to return to. Default: the previous one.")
    ] = None,
    set_: SET = None,
) -> None:
    """Make an earlier champion the champion again. The replaced model is not promoted again automatically."""
    with exit_with_message():
        release = champions_of(recipe, set_)[0].roll_back(to)
        print(f"The champion is {release.repository}@{release.revision} again.")


def champions_of(recipe: Path, overrides: list[str] | None) -> "tuple[Champions, LocalStore, Recipe]":
    """Return the champions of a recipe's project, its store, and the recipe."""
    chosen = prepared(recipe, overrides)
    from apprentice.flows.runtime.servers import open_store
    from apprentice.tasks.analysis.history import Champions

    store = open_store(chosen)
    return Champions(store), store, chosen


def evaluate(
    recipe: RECIPE,
    model: Annotated[
        list[str],
        typer.Option(
            help="A key, a revision or a tag from the report's lineage, or at least its first 6 characters; champion, "
            "teacher, a folder, owner/name@revision on the Hub, or https://host/v1#model for an endpoint. "
            "Repeatable: each is compared with the first."
        ),
    ],
    protocol: Annotated[
        Literal["parity", "tutorial", "inspect"],
        typer.Option(
            help="parity: as in training. tutorial: as the tutorial does, to compare with its results. "
            "inspect: as an Inspect AI task, with Inspect's model names, such as openai/gpt-5-mini."
        ),
    ] = "parity",
    questions: Annotated[
        int | None, typer.Option(min=1, help="Number of questions. Default: the recipe's evaluate.questions.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the first question. Default: the recipe's evaluation window.")
    ] = None,
    as_of: Annotated[
        str | None, typer.Option(help="Label for the state of a model behind an endpoint. Default: today's date.")
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="With inspect: the endpoint, if not the provider's.")] = None,
    served_student: Annotated[bool, typer.Option(help="The endpoints serve students trained by this project.")] = False,
    trust_code: Annotated[
        list[str] | None,
        typer.Option(help="A folder, or owner/name@commit on the Hub, whose Python code you have read and trust."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON on the last line.")] = False,
    set_: SET = None,
) -> None:
    """Evaluate models on a recipe's environment, and compare them."""
    with exit_with_message():
        chosen = prepared(recipe, set_, runs_flow=True).with_precision()
        from apprentice.flows.compare_models import check_addresses
        from apprentice.flows.runtime.prefect_server import start_prefect_server

        check_addresses([*model, *([base_url] if base_url else [])])
        spec = chosen.evaluate.model_copy(update={"questions": questions or chosen.evaluate.questions})
        window = _window(chosen, spec.questions, seed)
        start_prefect_server()
        if protocol == "inspect":
            from apprentice.flows.compare_models import inspect_models

            report = inspect_models(chosen, model, spec, window, served_student, base_url)
        else:
            from apprentice.flows.compare_models import compare_models

            spec = spec.model_copy(update={"protocol": protocol})
            report = compare_models(chosen, model, spec, window, as_of or str(date.today()), served_student, trust_code)
        if json_:
            only = next(iter(report["models"].values())) if len(model) == 1 else None
            print(json.dumps({"model": model[0], **only} if only else report))


def _window(recipe: "Recipe", questions: int, seed: int | None) -> "Window":
    """The seeds to ask: the recipe's evaluation window, or as many as there are questions from `seed` on."""
    from apprentice.tasks.reporting.errors import Stop
    from apprentice.tasks.settings.spec import Window

    if seed is not None:
        return Window(start=seed, size=questions)
    window = recipe.seed_windows().evaluate
    if questions > window.size:
        raise Stop(
            f"windows.evaluate has {window.size} seeds, fewer than the {questions} questions.",
            "Lower --questions, or choose another first seed with --seed.",
        )
    return window


ROWS = Annotated[
    str,
    typer.Argument(
        metavar="FILE|FOLDER|REPO", help="JSON lines, Parquet, JSON or Inspect's logs; owner/name[@COMMIT]."
    ),
]
FOR = Annotated[Path, typer.Option("--recipe", help="The recipe whose environment confirms the rows and that trains.")]
COLUMN = "Column of the {}, if it has another name; with dots for what is nested."


def import_rows(
    rows: ROWS,
    recipe: FOR,
    messages: Annotated[str | None, typer.Option(help=COLUMN.format("conversation"))] = None,
    prompt: Annotated[str | None, typer.Option(help=COLUMN.format("question, beside --completion"))] = None,
    completion: Annotated[str | None, typer.Option(help=COLUMN.format("answer, beside --prompt"))] = None,
    tools: Annotated[str | None, typer.Option(help=COLUMN.format("tools' schemas"))] = None,
    reward: Annotated[str | None, typer.Option(help=COLUMN.format("reward"))] = None,
    seed: Annotated[str | None, typer.Option(help=COLUMN.format("question's seed"))] = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="FIRST-LAST", help="Seeds whose questions the rows answer, besides the recipe's windows."),
    ] = None,
    unverified: Annotated[
        Literal["drop", "keep"] | None,
        typer.Option(help="What becomes of rows whose question no known seed asks. Default: the recipe's, drop."),
    ] = None,
    set_: SET = None,
) -> None:
    """Make conversations the rollouts of a recipe: its environment plays each call again and gives the reward.

    The last line is the command that trains on them; it asks no teacher.
    """
    with exit_with_message("Run the same command again."):
        named = {"messages": messages, "prompt": prompt, "completion": completion, "tools": tools}
        named |= {"reward": reward, "seed": seed}
        columns = {name: column for name, column in named.items() if column is not None}
        overrides = [*(set_ or []), f"collect.dataset={_dataset(rows, columns, seeds)}"]
        overrides += [f"collect.unverified={unverified}"] if unverified else []
        chosen = prepared(recipe, overrides)
        from apprentice.flows.library import at_work, pinned_recipe
        from apprentice.flows.phases import asked, rollouts_of
        from apprentice.flows.preflight import EvaluationPreflight
        from apprentice.tasks.dataset import REPORT, show_report

        pinned = pinned_recipe(chosen)
        with at_work(pinned, EvaluationPreflight(pinned, pinned.seed_windows().collect)) as run:
            made = rollouts_of(run, pinned, asked(run, pinned))
            assert made is not None
            folder = run.store.fetch(made)
        if run.log[-1].state == "cached":
            show_report(folder)
        if (folder / REPORT).exists():
            print(f"The counts, and every row that is left out: {folder / REPORT}")
        print(f"{made.figure} are {made.repository}@{made.key}. Train on them:")
        print(shlex.join(["apprentice", "run", str(recipe), *(part for each in overrides for part in ("--set", each))]))


def _dataset(rows: str, columns: dict[str, str], seeds: str | None) -> str:
    """The value of `collect.dataset`, on one line. Raises Stop."""
    from apprentice.tasks.artifacts.foreign import is_repository, newest_commit
    from apprentice.tasks.reporting.errors import Stop

    path, _, revision = (rows, "", "") if Path(rows).expanduser().exists() else rows.partition("@")
    given: dict[str, Any] = {"path": path}
    if revision:
        given["revision"] = revision
    elif not Path(rows).expanduser().exists() and is_repository(path) and path.count("/") == 1:
        given["revision"] = newest_commit(path)
    if columns:
        given["columns"] = columns
    if seeds is not None:
        first, dash, last = seeds.partition("-")
        if not (dash and first.isdigit() and last.isdigit() and int(first) <= int(last)):
            raise Stop(f"--seeds {seeds} is not of the form FIRST-LAST.", "For example --seeds 0-999.")
        given["seeds"] = {"start": int(first), "size": int(last) - int(first) + 1}
    return json.dumps(given, ensure_ascii=False)


def export_rollouts(
    key: KEY,
    form: Annotated[
        Literal["trl", "atif", "openenv"],
        typer.Option(
            "--format",
            help="trl: conversational rows. atif: a trajectory a file, as Harbor's agents write them. "
            "openenv: as `openenv collect` writes them.",
        ),
    ],
    to: Annotated[Path | None, typer.Option(help="A new folder. Default: KEY-FORMAT.")] = None,
    store: STORE = Path("artifacts"),
    hub: HUB = None,
) -> None:
    """Write rollouts so that other tools read them; `apprentice import` reads the same rollouts back."""
    with exit_with_message("Remove the folder and run the command again."):
        quiet()
        from apprentice.tasks.artifacts.lineage import node_of
        from apprentice.tasks.artifacts.locate import locate
        from apprentice.tasks.artifacts.types import KeptRollouts, Rollouts
        from apprentice.tasks.episodes.conversations import export
        from apprentice.tasks.episodes.record import Record
        from apprentice.tasks.reporting.errors import Stop

        found, named = locate(key, store, hub)
        artifact = node_of(found, named, {}).artifact
        if not isinstance(artifact, (Rollouts, KeptRollouts)):
            raise Stop(
                f"{key} is {type(artifact).__name__}, not rollouts.", "Take the key of collect or filter_rollouts."
            )
        folder = to or Path(f"{artifact.key}-{form}")
        if folder.exists():
            raise Stop(f"{folder} exists.", "Name a new folder with --to.")
        rows = found.fetch(artifact) / ("kept.jsonl" if isinstance(artifact, KeptRollouts) else "rollouts.jsonl")
        folder.mkdir(parents=True)
        with rows.open("rb") as lines:
            written, failed = export(map(Record.model_validate_json, lines), form, folder, found.project)
        if failed:
            print(f"{failed} episodes failed when they were collected, and are not exported.")
        print(f"{written} episodes are in {folder}.")


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
    with exit_with_message("Nothing was changed."):
        quiet()
        from apprentice.flows.recipe.loading import find_recipe

        if what.endswith((".yaml", ".yml")) or find_recipe(Path(what)):
            chosen = prepared(Path(what), set_)
            from apprentice.flows.view import serve, shown_of_recipe

            serve(shown_of_recipe(chosen), port, browser)
        else:
            from apprentice.flows.view import serve, shown_of_key

            serve(shown_of_key(what, store, hub), port, browser)
