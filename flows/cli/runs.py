"""`apprentice runs`, `compare` and `evaluate`: finished runs as a list and side by side, and models side by side.

In: folders of runs, or a recipe and models' names. Out: tables, or JSON.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from apprentice.flows.cli.error_messages import exit_with_message
from apprentice.flows.cli.options import JSON, RECIPE, SET, prepared
from apprentice.flows.runtime.environment_variables import quiet
from apprentice.tasks.reporting.errors import Stop

if TYPE_CHECKING:
    from apprentice.tasks.settings.spec import Window

RUNS = Annotated[Path, typer.Option(help="The folder of the runs' folders.")]
STORE_OF_RUNS = Annotated[
    Path | None, typer.Option(help="The folder of artifacts. Default: that of each run's recipe, else artifacts.")
]

WIDE = 116
"""Columns of a terminal from which recipe, seed and time stand beside a run's name."""


@exit_with_message()
def runs(runs: RUNS = Path("runs"), store: STORE_OF_RUNS = None, json_: JSON = False) -> None:
    """List the finished runs of a folder, the newest first: recipe, seed, when, outcome, champion or not, page."""
    quiet()
    from apprentice.flows.finished_runs import finished
    from apprentice.tasks.reporting.announce import console, table

    rows = [run.row(store) for run in finished(runs)]
    if json_:
        print(json.dumps(rows, ensure_ascii=False))
    elif rows:
        table(
            "runs",
            f"Runs in {runs}; the page of each: {runs}/RUN/report.html",
            [_shown(row, console.width, any(each["follows"] for each in rows)) for row in rows],
        )
    else:
        print(f"There is no finished run in {runs}.")


def _shown(row: dict[str, str], width: int, has_chain: bool) -> dict[str, str]:
    """What fits a terminal of 80 columns; one of 120 has what a run's own name may leave out as well."""
    wide = {name: row[name] for name in ("recipe", "seed", "when")} if width >= WIDE else {}
    outcome = "champion" if row["champion"] == "yes" else row["outcome"]
    chain = {"follows": f"{row['follows']}\n{row['change']}".strip()} if has_chain else {}
    return {"run": row["run"], **wide, "accuracy": f"{row['model']} {row['accuracy']}", "outcome": outcome, **chain}


@exit_with_message()
def compare(
    run: Annotated[
        list[str],
        typer.Argument(metavar="RUN…", help="A run's folder or its name in `apprentice runs`; last: the newest."),
    ],
    runs: RUNS = Path("runs"),
    store: STORE_OF_RUNS = None,
    json_: JSON = False,
) -> None:
    """Lay finished runs side by side: settings that differ, and differences on the same questions with their intervals.

    Trains and plays nothing. For models that were not evaluated on the same questions use `apprentice evaluate`.
    """
    quiet()
    from apprentice.flows.compare import compare_runs, show_runs
    from apprentice.flows.finished_runs import run_named

    found = compare_runs([run_named(each, runs) for each in run], store)
    if json_:
        print(json.dumps(found, ensure_ascii=False))
    else:
        show_runs(found)


@exit_with_message()
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
        str | None,
        typer.Option(
            help="Label for the state of a model behind an endpoint. Default: today's date, or that of an unfinished "
            "evaluation, which is then resumed."
        ),
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
    chosen = prepared(recipe, set_, runs_flow=True).with_precision()
    from apprentice.flows.compare_models import compare_models
    from apprentice.flows.inspect_models import inspect_models
    from apprentice.flows.named_models import check_addresses
    from apprentice.flows.runtime.prefect_server import start_prefect_server

    check_addresses([*model, *([base_url] if base_url else [])])
    spec = chosen.evaluate.model_copy(update={"questions": questions or chosen.evaluate.questions})
    window = _window(chosen.seed_windows().evaluate, spec.questions, seed)
    start_prefect_server()
    if protocol == "inspect":
        report = inspect_models(chosen, model, spec, window, served_student, base_url)
    else:
        spec = spec.model_copy(update={"protocol": protocol})
        report = compare_models(chosen, model, spec, window, as_of, served_student, trust_code)
    if json_:
        only = next(iter(report["models"].values())) if len(model) == 1 else None
        print(json.dumps({"model": model[0], **only} if only else report))


def _window(evaluated: "Window", questions: int, seed: int | None) -> "Window":
    """The seeds to ask: the recipe's evaluation window, or as many as there are questions from `seed` on."""
    from apprentice.tasks.settings.spec import Window

    if seed is not None:
        return Window(start=seed, size=questions)
    if questions > evaluated.size:
        raise Stop(
            f"windows.evaluate has {evaluated.size} seeds, fewer than the {questions} questions.",
            "Lower --questions, or choose another first seed with --seed.",
        )
    return evaluated
