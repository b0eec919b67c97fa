"""`apprentice import` and `apprentice export`: conversations of other tools as rollouts, and the other way round.

In: a file, a folder or a dataset of the Hub, and a recipe; or the key of rollouts. Out: an artifact that the printed
command trains on; or files that the other tools read. No teacher and no Prefect server is asked.
"""

import json
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from apprentice.envs.defaults import no_collection
from apprentice.flows.cli.error_messages import exit_with_message
from apprentice.flows.cli.options import HUB, KEY, SET, STORE, prepared
from apprentice.flows.runtime.environment_variables import quiet, ready
from apprentice.tasks.reporting.errors import Stop

ROWS = Annotated[
    str,
    typer.Argument(
        metavar="FILE|FOLDER|REPO", help="JSON lines, JSON, Parquet, Arrow, Inspect's logs; owner/name[@COMMIT]."
    ),
]
FOR = Annotated[Path, typer.Option("--recipe", help="The recipe whose environment confirms the rows and that trains.")]
COLUMN = "Column of the {}, if it has another name; with dots for what is nested."


@exit_with_message("Run the same command again.")
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
    split: Annotated[
        str | None, typer.Option(help="The split that is read, where the dataset has some; all. Default: train.")
    ] = None,
    config: Annotated[str | None, typer.Option(help="The configuration, where the dataset has several.")] = None,
    unverified: Annotated[
        Literal["drop", "keep", "relabel"] | None,
        typer.Option(
            help="What becomes of rows whose question no known seed asks: keep takes them at their word, or at that of "
            "a person; relabel has the recipe's teacher judge them. Default: the recipe's, drop."
        ),
    ] = None,
    waiting: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write those rows to a new file, for a person to judge (right: true or false). Import that file with "
            "--unverified keep.",
        ),
    ] = None,
    set_: SET = None,
) -> None:
    """Make conversations the rollouts of a recipe: its environment plays each call again and gives the reward.

    The last line is the command that trains on them. No teacher is asked but with --unverified relabel.
    """
    named = {"messages": messages, "prompt": prompt, "completion": completion, "tools": tools}
    named |= {"reward": reward, "seed": seed}
    columns = {name: column for name, column in named.items() if column is not None}
    overrides = [*(set_ or []), f"collect.dataset={_dataset(rows, columns, seeds, split, config)}"]
    overrides += [f"collect.unverified={unverified}"] if unverified else []
    chosen = prepared(recipe, overrides)
    if waiting is not None:
        _check_waiting(waiting, chosen.collect.unverified)
    from apprentice.flows.lessons import rollouts_of
    from apprentice.flows.library import at_work, pinned_recipe
    from apprentice.flows.preflight import EvaluationPreflight
    from apprentice.tasks.dataset import REPORT, show_report

    pinned = pinned_recipe(chosen)
    with at_work(pinned, EvaluationPreflight(pinned, pinned.seed_windows().collect)) as stages:
        run = stages.run
        if waiting is not None and not _write_waiting(stages, waiting, recipe):
            return
        made = rollouts_of(run, pinned, stages.questions)
        assert made is not None
        folder = run.store.fetch(made)
        questions = run.store.fetch(stages.questions)
    _show_production(pinned.collect.dataset, questions)
    if run.log[-1].state == "cached":
        show_report(folder)
    if (folder / REPORT).exists():
        print(f"The counts, and every row that is left out: {folder / REPORT}")
    print(f"{made.figure} are {made.repository}@{made.key}. Train on them:")
    print(shlex.join(["apprentice", "run", str(recipe), *(part for each in overrides for part in ("--set", each))]))


def _check_waiting(file: Path, unverified: str) -> None:
    """Raise Stop where no row would wait, or the file has verdicts."""
    from apprentice.tasks.formats.waiting_rows import check_new

    if unverified != "drop":
        raise Stop(
            f"With collect.unverified: {unverified} no row waits for a person's verdict.",
            "Leave --waiting out, or add --unverified drop.",
        )
    check_new(file)


def _write_waiting(stages: Any, file: Path, recipe: Path) -> bool:
    """Write the rows that wait for a verdict; return whether others are left to import."""
    from apprentice.tasks.dataset import take_rollouts
    from apprentice.tasks.episodes.record import Record
    from apprentice.tasks.files.json_lines import read_rows
    from apprentice.tasks.formats.waiting_rows import write_waiting
    from apprentice.tasks.reporting import announce

    chosen = stages.recipe
    with announce.held() as say:
        kept = take_rollouts(stages.run, chosen.collect.dataset, chosen.environment, stages.questions, "keep")
        rows = [Record.model_validate(row) for row in read_rows(stages.run.store.fetch(kept) / "rollouts.jsonl")]
        written = write_waiting((row for row in rows if row.verified == "no"), file)
        others = any(row.verified == "yes" for row in rows)
        if not others:
            say()
    if not written:
        print("No other row waits for a verdict.")
        return True
    print(f"{written} rows wait for a verdict in {file}. Set `right` to true or false, then import them:")
    print(shlex.join(["apprentice", "import", str(file), "--recipe", str(recipe), "--unverified", "keep"]))
    return others


def _show_production(spec: Any, questions: Path) -> None:
    """Show how the questions of a log of `apprentice serve` differ from the recipe's; nothing for other rows.

    Args:
        spec: The rows' `DatasetSpec`.
        questions: The folder of the recipe's questions.
    """
    from apprentice.tasks.artifacts.foreign.rows import part_of_rows, rows_of
    from apprentice.tasks.files.json_lines import read_rows
    from apprentice.tasks.formats.served_log import conversations, is_header
    from apprentice.tasks.reporting.announce import table
    from apprentice.tasks.serving.production import production_rows, questions_in

    rows = iter(rows_of(spec, part_of_rows(spec)))
    first = next(rows, None)
    if first is None or not is_header(first.data):
        return
    requests = questions_in(row.data for row in conversations([first, *rows]))
    windows = [row["question"] for row in read_rows(questions / "questions.jsonl")]
    if requests and windows:
        table("production", "What was asked, and the recipe's questions", production_rows(requests, windows))


def _dataset(
    rows: str, columns: dict[str, str], seeds: str | None, split: str | None = None, config: str | None = None
) -> str:
    """The value of `collect.dataset`, on one line. Raises Stop."""
    from apprentice.flows.recipe.location import given_path
    from apprentice.tasks.artifacts.foreign.models import is_repository
    from apprentice.tasks.artifacts.foreign.rows import newest_commit

    is_here = given_path(rows).exists()
    path, _, revision = (rows, "", "") if is_here else rows.partition("@")
    given: dict[str, Any] = {"path": path}
    if revision:
        given["revision"] = revision
    elif not is_here and is_repository(path) and path.count("/") == 1:
        given["revision"] = newest_commit(path)
    given |= {name: value for name, value in (("split", split), ("config", config)) if value is not None}
    if columns:
        given["columns"] = columns
    if seeds is not None:
        first, dash, last = seeds.partition("-")
        if not (dash and first.isdigit() and last.isdigit() and int(first) <= int(last)):
            raise Stop(f"--seeds {seeds} is not of the form FIRST-LAST.", "For example --seeds 0-999.")
        given["seeds"] = {"start": int(first), "size": int(last) - int(first) + 1}
    return json.dumps(given, ensure_ascii=False)


def export_anything(
    key: KEY,
    form: Annotated[
        Literal["trl", "atif", "openenv", "gguf"],
        typer.Option(
            "--format",
            help="Of rollouts: trl: conversational rows. atif: a trajectory a file, as Harbor's agents write them. "
            "openenv: as `openenv collect` writes them. Of a model: gguf, for llama.cpp and Ollama.",
        ),
    ],
    to: Annotated[Path | None, typer.Option(help="A new folder. Default: KEY-FORMAT.")] = None,
    store: STORE = Path("artifacts"),
    hub: HUB = None,
    quantize: Annotated[
        str | None, typer.Option(help="With gguf: the forms to write, such as f16,q8_0,q4_k_m (export.quantize).")
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="With gguf: the share of accuracy a file may lose (export.margin)."),
    ] = None,
    set_: SET = None,
) -> None:
    """Write rollouts so that other tools read them, or a model for llama.cpp, measured against its own evaluation.

    `apprentice import` reads rollouts back.
    """
    given = [f"export.quantize=[{quantize}]"] * (quantize is not None)
    given += [*([f"export.margin={margin}"] * (margin is not None)), *(set_ or [])]
    if form == "gguf":
        with exit_with_message("Run the same command again: finished files and episodes are kept."):
            ready()
            with no_collection():
                from apprentice.flows.exporting import export_gguf

            made, folder = export_gguf(key, store, hub, given, to)
            print(f"{made.figure}: {made.repository}@{made.key}. The files, their card and Modelfiles are in {folder}.")
        return
    with exit_with_message("Remove the folder and run the command again."):
        if given:
            raise Stop(
                f"--quantize, --margin and --set are for models, and {form} is a format of rollouts.",
                "Leave them out, or choose --format gguf.",
            )
        _export_rollouts(key, store, hub, form, to)


def _export_rollouts(key: str, store: Path, hub: str | None, form: Any, to: Path | None) -> None:
    quiet()
    from apprentice.tasks.artifacts.types import KeptRollouts, Rollouts
    from apprentice.tasks.episodes.record import Record
    from apprentice.tasks.formats.exports import export
    from apprentice.tasks.lineage.locate import locate
    from apprentice.tasks.lineage.node import node_of

    found, named = locate(key, store, hub)
    artifact = node_of(found, named, {}).artifact
    if not isinstance(artifact, (Rollouts, KeptRollouts)):
        raise Stop(f"{key} is {type(artifact).__name__}, not rollouts.", "Take the key of collect or filter_rollouts.")
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
