"""Runs side by side: what was set otherwise, who answers more of the same questions, the curves, the cost.

In: finished runs; their evaluations and logs are read from their stores. Out: a page, as Markdown and HTML, and JSON.
Runs that were not asked the same questions under the same rewards are refused: a difference would mean nothing.
"""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from apprentice.flows.pages.rendering import as_html_page, data_uri
from apprentice.flows.pages.report_page import MARKDOWN
from apprentice.flows.runs import FinishedRun
from apprentice.tasks.analysis.broken import scored
from apprentice.tasks.analysis.comparison import compare, comparison_rows, correct, label, table, with_intervals
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Evaluation, kind_of
from apprentice.tasks.episodes.record import EvaluatedEpisode, read_episodes
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.pictures import curves_of_runs
from apprentice.tasks.training.trainer import read_log

SHOWN = {"sft": {"loss": "SFT: loss"}, "grpo": {"reward": "GRPO: reward", "frac_reward_zero_std": "GRPO: dead groups"}}
"""The curves of each training that are laid over each other."""
WHERE = ("server", "store", "trackio", "report_to")
"""Sections of a recipe that say where it runs, not what it does."""
ASKED = ("name", "settings", "version", "revision")
"""What of an environment decides its questions and their rewards; `code` also changes with a comment."""


def compare_runs(runs: list[FinishedRun], to: Path, root: Path | None = None) -> dict[str, Any]:
    """Compare the runs with the first one, and write compare.md, .html and .json into a new folder of `to`.

    Returns what compare.json holds. Raises Stop for runs that cannot be compared, or whose artifacts are gone.
    """
    if len({run.folder for run in runs}) < len(runs) or not 2 <= len(runs) <= len(ascii_uppercase):
        raise Stop("Two or more different runs are compared.", "Name each once; `apprentice runs` lists them.")
    named = dict(zip(ascii_uppercase, runs, strict=False))
    stores = {name: run.store(root) for name, run in named.items()}
    episodes = {
        f"{name} {label(model)}": read_episodes(stores[name].fetch(stores[name].at(Evaluation, revision)))
        for name, run in named.items()
        for model, revision in _evaluations(run).items()
    }
    _check_same_questions(named, episodes)
    episodes, broken = scored(episodes)
    comparisons = [{"from": one, "to": other} | compare(episodes[one], episodes[other]) for one, other in _pairs(named)]
    correct(comparisons)
    found = {
        "runs": {name: run.row(root) for name, run in named.items()},
        "settings": _settings_that_differ(named),
        "models": {name: with_intervals(records) for name, records in episodes.items()},
        "broken": broken,
        "comparisons": comparisons,
        "cost": {name: _cost(run) for name, run in named.items()},
    }
    folder = to / f"compared-{datetime.now():%Y%m%d-%H%M%S-%f}"
    folder.mkdir(parents=True)
    logs = {name: _logs(run, stores[name]) for name, run in named.items()}
    picture = curves_of_runs(logs, SHOWN, folder / "curves.png")
    text = MARKDOWN.get_template("compare.md.j2").render(found, picture=data_uri(picture))
    (folder / "compare.md").write_text(text)
    (folder / "compare.html").write_text(as_html_page(text, "Runs side by side"))
    (folder / "compare.json").write_text(json.dumps(found, indent=2) + "\n")
    return found | {"page": str(folder / "compare.html")}


def shown_in_terminal(found: dict[str, Any]) -> None:
    """Show what differs and by how much; the page has the rest."""
    rows = [{"": name, "run": run["run"], "outcome": run["outcome"]} for name, run in found["runs"].items()]
    announce.table("runs", "Runs", rows)
    announce.table("models", "On the same questions", table(found["models"]))
    for key, title, shown in (
        ("differences", "Differences, paired", comparison_rows(found["comparisons"])),
        ("settings", "Settings that differ", found["settings"]),
    ):
        if shown:
            announce.table(key, title, shown)


def _judged(run: FinishedRun) -> dict[str, dict[str, Any]]:
    rows = {row["revision"]: row for row in run.report["lineage"]}
    inputs = next(row["inputs"] for row in run.report["lineage"] if row["stage"] == "verdict")
    revisions = {model: inputs.get(f"evaluations.{model}") for model in run.report["models"]}
    return {model: rows[revision] for model, revision in revisions.items() if revision in rows}


def _evaluations(run: FinishedRun) -> dict[str, str]:
    return {model: row["revision"] for model, row in _judged(run).items()}


def _logs(run: FinishedRun, store: LocalStore) -> dict[str, list[dict[str, Any]]]:
    repositories = {row["revision"]: row["repository"] for row in run.report["lineage"]}
    logs = {}
    for model, row in _judged(run).items():
        revision = row["inputs"]["checkpoint"]
        kind = kind_of("model", repositories.get(revision, ""))
        if model in SHOWN and kind is not None:
            logs[model] = read_log(store.fetch(store.at(kind, revision)))
    return logs


def _pairs(named: dict[str, FinishedRun]) -> Iterator[tuple[str, str]]:
    """Yield each model of the first run with the same of every other, and the models that the runs ended with."""
    (first, one), *others = named.items()
    for name, other in others:
        same = [model for model in _evaluations(one) if model in _evaluations(other)]
        ends = [] if one.trained == other.trained else [(one.trained, other.trained)]
        for mine, theirs in [*((model, model) for model in same), *ends]:
            if _evaluations(one)[mine] != _evaluations(other)[theirs]:
                yield f"{first} {label(mine)}", f"{name} {label(theirs)}"


def _check_same_questions(named: dict[str, FinishedRun], episodes: dict[str, list[EvaluatedEpisode]]) -> None:
    (first, one), *others = named.items()
    for run in named.values():
        if not run.report["contamination"]["clean"]:
            raise Stop(
                f"{run.folder.name} was trained on questions that it is asked, so its accuracy means nothing.",
                "Move windows.evaluate or widen the task (environment.settings), and run it again.",
            )
    for name, other in others:
        for field in ASKED:
            mine, theirs = one.recipe["environment"].get(field), other.recipe["environment"].get(field)
            if mine != theirs:
                raise Stop(
                    f"{one.folder.name} and {other.folder.name} were not asked the same questions by the same rules: "
                    f"environment.{field} is {mine} and {theirs}.",
                    "Compare runs of one environment; `apprentice evaluate --model … --model …` asks models anew.",
                )
        asked, questions = (_questions(episodes, each) for each in (first, name))
        if asked != questions:
            shared = len(set(asked) & set(questions))
            raise Stop(
                f"{one.folder.name} and {other.folder.name} were not asked the same questions: {len(asked)} and "
                f"{len(questions)}, of which {shared} are the same.",
                "Compare runs with the same windows.evaluate, evaluate.questions and evaluate.samples, or put one set "
                "to the models of both: `apprentice evaluate --model … --model …`.",
            )


def _questions(episodes: dict[str, list[EvaluatedEpisode]], run: str) -> list[str]:
    return next([each.question for each in records] for name, records in episodes.items() if name.startswith(f"{run} "))


def _settings_that_differ(named: dict[str, FinishedRun]) -> list[dict[str, str]]:
    flat = {name: dict(_leaves({k: v for k, v in run.recipe.items() if k not in WHERE})) for name, run in named.items()}
    paths = dict.fromkeys(path for leaves in flat.values() for path in leaves)
    rows = [{"setting": path} | {name: flat[name].get(path, "–") for name in flat} for path in paths]
    return [row for row in rows if len({row[name] for name in flat}) > 1]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _leaves(each, f"{path}.{name}".lstrip("."))
    else:
        yield path, json.dumps(value, ensure_ascii=False)


def _cost(run: FinishedRun) -> dict[str, str]:
    """Return what a run cost, as text; stages that were cached cost it nothing."""
    collected, stages, effort = run.report["collect"] or {}, run.report["stages"], run.report["effort"]
    price = collected.get("cost_usd")
    return {
        "seconds": f"{sum(stage['seconds'] for stage in stages):.0f}",
        "stages that ran": f"{sum(stage['state'] == 'ran' for stage in stages)} of {len(stages)}",
        "teacher's episodes": f"{collected.get('episodes', 0):,}",
        "kept": f"{collected.get('kept', 0):,}",
        "teacher's tokens": f"{collected.get('prompt_tokens', 0) + collected.get('completion_tokens', 0):,}",
        "USD": "–" if price is None else f"{price:.4f}",
        "GRPO's rollouts": f"{effort['rollouts']:,}",
        "GRPO's tokens": f"{effort['tokens']:,}",
        "peak memory, MB": f"{run.report.get('peak_memory_mb', 0):,}",
    }
