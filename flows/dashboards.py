"""The report where people look besides its page: pictures and links in Prefect, tables and transcripts in Trackio.

In: the report's data, its pictures, the episodes. Out: artifacts of the flow run, a run of the project in Trackio, and
for the page the addresses of both, where they are known.
"""

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from apprentice.flows.pages.report_page import as_title, kind_rows, rates_of
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.analysis.comparison import comparison_rows
from apprentice.tasks.analysis.slices import RIGHT, outcome_of
from apprentice.tasks.engine.run import project_in_trackio
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.reporting import announce
from apprentice.tasks.training.reporters import begin_run

TRANSCRIPTS = 100
"""Episodes of the last model that Trackio gets: first those that it got wrong."""


def link_up(recipe: Recipe) -> None:
    """Links on the run's page in Prefect: where its curves grow, and what it uses of the Hub."""
    from huggingface_hub import constants

    hub = constants.ENDPOINT
    if curves := in_trackio(recipe):
        announce.link("trackio", curves, "Curves as they grow, in Trackio")
    if recipe.store.hub:
        announce.link("hub", f"{hub}/{recipe.store.hub.namespace}", "What was published, on the Hub")
    if recipe.server.space:
        announce.link("space", f"{hub}/spaces/{recipe.server.space}", "The environment's Space")
    if recipe.student.model and not Path(recipe.student.model).exists():
        revision = recipe.student.revision
        announce.link("student", f"{hub}/{recipe.student.model}/tree/{revision}", "The student before training")


def in_trackio(recipe: Recipe) -> str:
    """The project's page in Trackio; empty where no dashboard is known."""
    from huggingface_hub import constants

    space = recipe.trackio.space_id
    dashboard = f"{constants.ENDPOINT}/spaces/{space}" if space else recipe.trackio.url.rstrip("/")
    return f"{dashboard}/?project={project_in_trackio(recipe.name)}" if dashboard else ""


def addresses(recipe: Recipe) -> dict[str, str]:
    """Where else the run can be looked at: pages of Prefect and Trackio, as far as they are known."""
    found = {"Prefect": announce.run_url(), "Trackio": in_trackio(recipe) if "trackio" in recipe.report_to else ""}
    return {name: url for name, url in found.items() if url}


def show_in_prefect(folder: Path, text: str, pictures: dict[str, Path]) -> None:
    """The report and its pictures as artifacts of the flow run, also those of stages that were cached."""
    announce.markdown("report", text, f"Report of {folder.name}; its page: {folder / 'report.html'}")
    for title, picture in pictures.items():
        announce.picture(picture.stem, picture, f"{title} of {folder.name}")


def log_in_trackio(
    recipe: Recipe,
    folder: Path,
    report: dict[str, Any],
    outcome: str,
    played: dict[str, list[EvaluatedEpisode]],
    pictures: dict[str, Path],
    key: str,
) -> None:
    """Log rates, tables, pictures and transcripts as a run of the project. Warns where that fails: the page has all.

    Args:
        outcome: The report's first sentence.
        played: The episodes of each model on the held-out questions.
        key: Of the verdict, which names the run.
    """
    name = f"report {recipe.name} seed {recipe.seed} {key[:8]}"
    page = f"{folder.name}/report.html"
    links = "".join(f"\n- [{what}]({address})" for what, address in report["dashboards"].items())
    try:
        with redirect_stdout(StringIO()):
            import trackio
            from pandas import DataFrame

            run = begin_run(recipe.trackio, recipe.name, name, config={"outcome": outcome, "page": page})
            rates = {f"accuracy/{model}": found["accuracy"] for model, found in report["models"].items()}
            tables = {name: trackio.Table(dataframe=DataFrame(rows)) for name, rows in _tables(report).items() if rows}
            images = {f"picture/{title}": trackio.Image(str(path), caption=title) for title, path in pictures.items()}
            texts = {"report": trackio.Markdown(f"**{outcome}**\n\n{page}\n{links}")}
            run.log({**texts, **rates, **tables, **images, "episodes": _traces(*[*played.items()][-1])}, step=0)
            trackio.finish()
    except Exception as error:  # any error: what is only told there must not end a run that is done
        announce.warn(f"Trackio did not take the report's tables ({type(error).__name__}); {folder} has them.")


def _tables(report: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    return {
        "models": rates_of(report["models"]),
        "differences": comparison_rows(report["comparisons"]),
        "kinds of failure": kind_rows(report["kinds_of_failure"]),
        "slices": [
            {"trait": row["trait"], "kind": row["kind"], "n": row["n"]}
            | {as_title(model): found["accuracy"] for model, found in row["models"].items()}
            for row in report["slices"]
        ],
    }


def _traces(model: str, records: list[EvaluatedEpisode]) -> list[Any]:
    import trackio

    chosen = sorted(records, key=lambda each: (each.is_right, each.place))[:TRANSCRIPTS]
    return [
        trackio.Trace(
            each.messages,
            metadata={
                "model": as_title(model),
                "seed": each.seed,
                "sample": each.sample,
                "reward": each.reward,
                "outcome": outcome_of(each),
                "the environment's answer": each.correct,
                "status": "success" if outcome_of(each) == RIGHT else "error",
            },
        )
        for each in chosen
    ]
