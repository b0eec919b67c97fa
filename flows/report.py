"""What a run leaves for people and for machines: one page as HTML, its brief as Markdown, report.json, pictures.

In: the artifacts of all stages. Out: the run's folder. Only files are read here, so a cached run reports at once.

The report where people look besides its page: pictures and links in Prefect, tables and transcripts in Trackio.
"""

import json
import resource
import shutil
from contextlib import redirect_stdout
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

from apprentice.flows.pages.episodes import HELD_OUT, Source, embedded
from apprentice.flows.pages.html import as_title, curves_of
from apprentice.flows.pages.report_page import (
    as_markdown_page,
    as_report_page,
    first_screen,
    kind_rows,
    rates_of,
)
from apprentice.flows.phases import Outcome, Taught
from apprentice.flows.probe import Probed
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.analysis.comparison import LABELS, comparison_rows, scored
from apprentice.tasks.analysis.diagnose import as_lines, read_signals
from apprentice.tasks.analysis.ending import Ending, ending, read_decision, read_verdict
from apprentice.tasks.analysis.history import past_rounds
from apprentice.tasks.analysis.kinds import (
    RIGHT,
    both_ways,
    failures_by_kind,
    kinds_over_time,
    outcome_of,
    places_of_slices,
    slices_of,
)
from apprentice.tasks.artifacts.lineage import node_of
from apprentice.tasks.artifacts.types import (
    Artifact,
    Checkpoint,
    Decision,
    Evaluation,
    ModelName,
    Questions,
    Verdict,
    parent,
)
from apprentice.tasks.engine.run import RunContext, project_in_trackio
from apprentice.tasks.engine.stage import PACKAGES, installed
from apprentice.tasks.episodes.record import EvaluatedEpisode, read_episodes, same_text, used_questions
from apprentice.tasks.judgement.contents import Judgement
from apprentice.tasks.judgement.run_models import Models
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import broken_package
from apprentice.tasks.reporting.pictures import rates, rates_by_kind
from apprentice.tasks.rollouts.sampling import QUESTIONS_ASKED
from apprentice.tasks.settings.spec import Purpose
from apprentice.tasks.settings.training import TRAININGS
from apprentice.tasks.training.reporters import begin_run, last_groups, read_completions
from apprentice.tasks.training.trainer import read_log

TRANSCRIPTS = 100
"""Episodes of the last model that Trackio gets: first those that it got wrong."""


def link_up(recipe: Recipe) -> None:
    """Links on the run's page in Prefect: to its growing curves, and to its inputs on the Hub."""
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
    played: Models[list[EvaluatedEpisode]],
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
            run.log({**texts, **rates, **tables, **images, "episodes": _traces(played.last_name, played.last)}, step=0)
            trackio.finish()
    except Exception as error:  # any error: what is only told there must not end a run that is done
        broken = broken_package(error)
        why = broken.cause if broken else type(error).__name__  # another error's message may quote a token
        announce.warn(f"Trackio did not take the report's tables ({why}); {folder} has them.")


def _tables(report: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    judgement = Judgement.model_validate(report)
    return {
        "models": rates_of(judgement.models),
        "differences": comparison_rows(judgement.comparisons),
        "kinds of failure": kind_rows(report["kinds_of_failure"]),
        "slices": [
            {"trait": row.trait, "kind": row.kind, "n": row.n}
            | {as_title(model): found.accuracy for model, found in row.models.items()}
            for row in judgement.slices
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


EPISODES = "episodes.jsonl"


class Artifacts(NamedTuple):
    """What the stages of one run made."""

    asked: Questions
    models: Models[Checkpoint]
    """The last one is released."""
    taught: Taught | None
    probed: Probed | None
    examined: Models[Evaluation]
    guards: dict[str, Evaluation]
    results: Verdict
    outcome: Outcome

    def artifacts(self) -> list[Artifact]:
        probed = [each for each in self.probed.artifacts() if each != self.asked] if self.probed else []
        taught = self.taught.artifacts() if self.taught else []
        models = [each for each in self.models.values() if each not in taught]
        evaluated = [*self.examined.values(), *self.guards.values()]
        return [self.asked, *taught, *models, *probed, *evaluated, self.results, self.outcome.release]

    def by_name(self) -> dict[str, Any]:
        """What a reader of report.json finds in the store: kind, repository, revision and key of each."""
        taught = self.taught
        named: dict[str, Artifact | None] = {
            "rollouts": taught and taught.rollouts,
            "kept": taught and taught.kept,
        }
        return {
            "models": {name: parent(each).model_dump() for name, each in self.models.items()},
            "evaluations": {name: parent(each).model_dump() for name, each in self.examined.items()},
            **{name: each and parent(each).model_dump() for name, each in named.items()},
        }

    def trainings(self) -> dict[str, Checkpoint]:
        """The trained models by the title of their stage."""
        return {LABELS.get(name, name.upper()): model for name, model in self.models.items() if name != ModelName.BASE}


def write_report(folder: Path, recipe: Recipe, work: RunContext, artifacts: Artifacts) -> Ending:
    """Writes report.json, report.md and report.html into `folder`, shows the page in Prefect, and says how it ended."""
    fetch = work.store.fetch
    taught, trained = artifacts.taught, artifacts.trainings()
    logs = {title: read_log(fetch(each)) for title, each in trained.items()}
    signals = {title: read_signals(fetch(each)) for title, each in trained.items()}
    decided = [found for run in work.log if run.name == "gate" and (found := work.store.find(Decision, run.key))]
    judgement = read_verdict(fetch(artifacts.results))
    if _rows_of(work, taught) == "dataset":  # a verdict of older code took it for a teacher's
        judgement = judgement.model_copy(update={"teacher": None})
    decision = read_decision(fetch(artifacts.outcome.release))
    ended = ending(judgement, decision, recipe.for_record())
    played = Models({name: read_episodes(fetch(each)) for name, each in artifacts.examined.items()})
    counted, _ = scored(played)
    report = judgement.as_json() | {
        "kinds_of_failure": failures_by_kind(counted),
        "both_ways": both_ways(counted, [(each.from_, each.to) for each in judgement.comparisons]),
        "recipe": recipe.name,
        "seed": recipe.seed,
        "played_by": recipe.teacher.called if recipe.buys and recipe.teacher else None,
        "rows_of": as_title(_rows_of(work, taught)),
        "decoding": recipe.evaluate.decoding,
        "gate": decision.as_json(),
        "ending": ended.as_json(),
        "warnings": announce.warned(),
        "is_champion": artifacts.outcome.is_champion,
        "hub_in_reach": work.store.in_reach,
        "by_these_rules": artifacts.outcome.by_these_rules,
        "collect": _collected(recipe, taught),
        "rounds": [each.row() for each in past_rounds(work.store)] if recipe.round else [],
        "probe": artifacts.probed.as_json() if artifacts.probed else None,
        "effort": _effort(recipe, work, logs),
        "signals": {title: as_lines(each) for title, each in signals.items()},
        "curves": {title: curves_of(title, log, signals[title]["signals"]) for title, log in logs.items()},
        "curriculum": kinds_over_time(logs.get("GRPO", [])),
        "completions": last_groups(read_completions(fetch(trained["GRPO"]))) if "GRPO" in trained else [],
        "lengths": taught.length_stats.model_dump(exclude=set(Artifact.model_fields)) if taught else None,
        "stages": [run._asdict() for run in work.log],
        "seeds": {purpose: window.model_dump() for purpose, window in recipe.seed_windows()},
        "versions": {name: installed(name) for name in PACKAGES},
        "artifacts": artifacts.by_name(),
        "lineage": [_made_from(fetch(artifact), artifact) for artifact in [*artifacts.artifacts(), *decided]],
        "dashboards": addresses(recipe),
        "ended": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "device": _device(),
        "peak_memory_mb": _peak_memory_mb(),
    }
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    pictures = _pictures(folder, report, trained, taught, work)
    text = as_markdown_page(report)
    differ = {each.place for each in played.last if not each.is_right}
    measured = judgement.teacher.slices if judgement.teacher else []
    episodes = embedded(_sources(recipe, work, artifacts, measured), differ)
    (folder / "report.md").write_text(text)
    (folder / "report.html").write_text(as_report_page(report, episodes))
    show_in_prefect(folder, first_screen(text), pictures)
    if "trackio" in recipe.report_to and any(run.name == "verdict" and run.state == "ran" for run in work.log):
        log_in_trackio(recipe, folder, report, ended.headline, played, pictures, artifacts.results.key)
    return ended


def _pictures(
    folder: Path, report: dict[str, Any], trained: dict[str, Checkpoint], taught: Taught | None, work: RunContext
) -> dict[str, Path]:
    """Draws accuracies and slices, copies the artifacts' own pictures, and returns all by title."""
    titles = {name: as_title(name) for name in report["models"]}
    pictures = {"accuracy": rates(report["models"], titles, folder / "accuracy.png")}
    if report["slices"]:
        pictures["slices"] = rates_by_kind(report["slices"], titles, folder / "slices.png")
    copied: list[tuple[str, Artifact, str]] = [
        *((title, model, "curves") for title, model in trained.items()),
        *([("GRPO by kind", trained["GRPO"], "curriculum")] if report["curriculum"] else []),
        *([("lengths", taught.length_stats, "histogram")] if taught else []),
    ]
    for title, artifact, name in copied:
        pictures[title] = folder / f"{title.lower().replace(' ', '-')}-{name}.png"
        shutil.copyfile(work.store.fetch(artifact) / f"{name}.png", pictures[title])
    return pictures


def _sources(recipe: Recipe, work: RunContext, artifacts: Artifacts, measured: list[dict[str, Any]]) -> list[Source]:
    """The episodes that the page shows: of the held-out questions, the regression evaluations, the teacher.

    `measured`: the teacher's slices that have a figure in the page.
    """
    fetch = work.store.fetch
    counted, _ = scored({name: read_episodes(fetch(each)) for name, each in artifacts.examined.items()})
    held_out_slices: dict[int, list[str]] = {}
    for (trait, kind), places in places_of_slices(counted).items():
        for place in places:
            held_out_slices.setdefault(place, []).append(f"{trait} {kind}")

    def slices(place: int, row: dict[str, Any]) -> list[str]:
        return held_out_slices.get(place - row["sample"], [])

    examined = [
        Source(as_title(name), HELD_OUT, fetch(each) / EPISODES, slices=slices)
        for name, each in artifacts.examined.items()
    ]
    guarded = [
        Source(as_title(model), guard, fetch(each) / EPISODES)
        for name, each in artifacts.guards.items()
        for guard, _, model in [name.rpartition(".")]
    ]
    if not (artifacts.taught and artifacts.taught.rollouts):
        return [*examined, *guarded]
    environment = recipe.environment.make()
    asked = frozenset(same_text(row["question"]) for row in used_questions(fetch(artifacts.asked), Purpose.EVALUATE))
    teacher = Source(
        as_title(_rows_of(work, artifacts.taught)),
        "collected",
        fetch(artifacts.taught.rollouts) / "rollouts.jsonl",
        asked,
        lambda _, row: slices_of(row, environment, measured),
    )
    return [*examined, *guarded, teacher]


def _rows_of(work: RunContext, taught: Taught | None) -> Literal["dataset", "teacher"]:
    """Whose the collected episodes are."""
    rollouts = taught.rollouts if taught else None
    return "dataset" if rollouts and node_of(work.store, parent(rollouts), {}).is_of_a_dataset else "teacher"


def _collected(recipe: Recipe, taught: Taught | None) -> dict[str, Any] | None:
    """The rows of SFT, and their cost; None without SFT."""
    if taught is None:
        return None
    bought, names = taught.rollouts if recipe.buys else None, ("prompt_tokens", "completion_tokens")
    return {
        "episodes": taught.kept.episodes,
        "kept": taught.kept.kept,
        "causes": taught.kept.dropped,
        **{name: getattr(bought, name) if bought else 0 for name in names},
        "cost_usd": bought.cost_usd if bought and recipe.teacher and recipe.teacher.prices else None,
    }


def _effort(recipe: Recipe, work: RunContext, logs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Seconds of each training that this run made, and GRPO's rollouts with their tokens."""
    spec, log = recipe.grpo, logs.get("GRPO", [])
    asked = [each[QUESTIONS_ASKED] for each in log if QUESTIONS_ASKED in each]
    rollouts = (fmean(asked) * spec.num_generations if asked else spec.rollouts_a_step) if spec else 0
    lengths = [each["completions/mean_length"] for each in log if "completions/mean_length" in each]
    trained = [each for each in work.log if each.name in TRAININGS and each.state == "ran"]
    return {
        "seconds": {each.title: each.seconds for each in trained},
        "rollouts": round(rollouts * max((each["step"] for each in log), default=0)),
        "tokens": round(sum(lengths) * spec.logging_steps * rollouts) if spec else 0,
    }


def _made_from(snapshot: Path, artifact: Artifact) -> dict[str, Any]:
    made_by = json.loads((snapshot / "artifact.json").read_text())["made_by"]
    named = {"repository": artifact.repository, "revision": artifact.revision, "key": artifact.key}
    counts = artifact.model_dump(mode="json", exclude=set(Artifact.model_fields))
    return named | {"stage": made_by["stage"], "inputs": made_by["inputs"], "counts": counts}


def _device() -> str:
    """Where the stages ran, in words; torch is asked only where a stage loaded it."""
    import platform
    import sys

    torch = sys.modules.get("torch")
    return torch.cuda.get_device_name() if torch and torch.cuda.is_available() else f"{platform.machine()} CPU"


def _peak_memory_mb() -> int:
    """The largest resident set of this process or of a server that it ran."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(each).ru_maxrss for each in who) // 1024
