"""The report where people look besides its page: pictures and links in Prefect, tables and transcripts in Trackio.

In: the report's data, its pictures, the last model's episodes. Out: artifacts of the flow run, a run of the project.
"""

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from apprentice.flows.pages.html import as_title
from apprentice.flows.pages.report_view import kind_rows, rates_of
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.analysis.comparison import comparison_rows
from apprentice.tasks.analysis.outcomes import RIGHT, outcome_of
from apprentice.tasks.engine.trackio_folder import project_in_trackio
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.judgement.contents import VerdictContents
from apprentice.tasks.judgement.run_models import Models
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.broken_packages import broken_package
from apprentice.tasks.settings.trackers import TrackioSpec
from apprentice.tasks.training.tracking.reporters import begin_run

TRANSCRIPTS = 100
"""Episodes of the last model that Trackio gets: first those that it got wrong."""


def link_up(recipe: Recipe) -> None:
    """Links on the run's page in Prefect: to its growing curves, and to its inputs on the Hub."""
    from huggingface_hub import constants

    hub = constants.ENDPOINT
    if curves := in_trackio(recipe.trackio, recipe.name):
        announce.link("trackio", curves, "Curves as they grow, in Trackio")
    if recipe.store.hub:
        announce.link("hub", f"{hub}/{recipe.store.hub.namespace}", "What was published, on the Hub")
    if recipe.server.space:
        announce.link("space", f"{hub}/spaces/{recipe.server.space}", "The environment's Space")
    if recipe.student.model and not Path(recipe.student.model).exists():
        revision = recipe.student.revision
        announce.link("student", f"{hub}/{recipe.student.model}/tree/{revision}", "The student before training")


def in_trackio(spec: TrackioSpec, name: str) -> str:
    """The project's page in Trackio; empty where no dashboard is known."""
    from huggingface_hub import constants

    space = spec.space_id
    dashboard = f"{constants.ENDPOINT}/spaces/{space}" if space else spec.url.rstrip("/")
    return f"{dashboard}/?project={project_in_trackio(name)}" if dashboard else ""


def addresses(recipe: Recipe) -> dict[str, str]:
    """Where else the run can be looked at: pages of Prefect and Trackio, as far as they are known."""
    trackio = in_trackio(recipe.trackio, recipe.name) if "trackio" in recipe.report_to else ""
    return {name: url for name, url in {"Prefect": announce.run_url(), "Trackio": trackio}.items() if url}


def show_in_prefect(folder: Path, text: str, pictures: dict[str, Path]) -> None:
    """The report and its pictures as artifacts of the flow run, also those of stages that were cached."""
    announce.markdown("report", text, f"Report of {folder.name}; its page: {folder / 'report.html'}")
    for title, picture in pictures.items():
        announce.picture(picture.stem, picture, f"{title} of {folder.name}")


def log_in_trackio(
    spec: TrackioSpec,
    folder: Path,
    report: dict[str, Any],
    played: Models[list[EvaluatedEpisode]],
    pictures: dict[str, Path],
    key: str,
) -> None:
    """Log rates, tables, pictures and transcripts as a run of the project. Warns where that fails: the page has all.

    Args:
        played: The episodes of each model on the held-out questions.
        key: Of the verdict, which names the run.
    """
    project, outcome = report["recipe"], report["ending"]["headline"]
    name = f"report {project} seed {report['seed']} {key[:8]}"
    page = f"{folder.name}/report.html"
    links = "".join(f"\n- [{what}]({address})" for what, address in report["dashboards"].items())
    try:
        with redirect_stdout(StringIO()):
            import trackio
            from pandas import DataFrame

            run = begin_run(spec, project, name, config={"outcome": outcome, "page": page})
            rates = {f"accuracy/{model}": found["accuracy"] for model, found in report["models"].items()}
            tables = {name: trackio.Table(dataframe=DataFrame(rows)) for name, rows in _tables(report).items() if rows}
            images = {f"picture/{title}": trackio.Image(str(path), caption=title) for title, path in pictures.items()}
            texts = {"report": trackio.Markdown(f"**{outcome}**\n\n{page}\n{links}")}
            run.log({**texts, **rates, **tables, **images, "episodes": _traces(played.last_name, played.last)}, step=0)
            trackio.finish()
    except Exception as error:  # any error: what is only told there must not end a run that is done
        broken = broken_package(error)
        why = broken.cause if broken else type(error).__name__  # another error's message may quote a token
        announce.warn(f"Trackio did not take the report's tables ({why}); {folder} has them.")


def _tables(report: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    verdict = VerdictContents.model_validate(report)
    return {
        "models": rates_of(verdict.models),
        "differences": comparison_rows(verdict.comparisons),
        "kinds of failure": kind_rows(report["kinds_of_failure"]),
        "slices": [
            {"slice": row.trait, "kind": row.kind, "n": row.n}
            | {as_title(model): found.accuracy for model, found in row.models.items()}
            for row in verdict.slices
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
