"""Models side by side: those of finished runs, or any that were evaluated on the same questions.

In: runs, or evaluated episodes. Out: rates and paired differences with their intervals; of runs also the settings that
differ, and a closing sentence. Only files are read; nothing is played.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from apprentice.flows.finished_runs import FinishedRun
from apprentice.tasks.advice.ending import compared
from apprentice.tasks.analysis.broken_episodes import scored
from apprentice.tasks.analysis.comparison import compare, comparison_rows, correct, in_both, table
from apprentice.tasks.analysis.thought_worth import shown_tokens, tokens_of_thinkers
from apprentice.tasks.artifacts.provenance import leaves
from apprentice.tasks.episodes.record import EvaluatedEpisode, read_episodes
from apprentice.tasks.judgement.contents import Comparison, Rates
from apprentice.tasks.judgement.model_names import label
from apprentice.tasks.judgement.run_models import Models
from apprentice.tasks.lineage.node import Node
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.statistics.rates import with_intervals

WHERE = ("server", "store", "trackio", "report_to")
"""Sections of a recipe that say where it runs, not what it does."""
DECISIVE = ("name", "settings", "version", "revision")
"""What of an environment decides its questions and their rewards; `code` also changes with a comment."""


def compare_runs(runs: list[FinishedRun], root: Path | None = None) -> dict[str, Any]:
    """Compare the runs with the first one. Raises Stop for what cannot be compared, or whose artifacts are gone.

    Returns runs, a row each; settings, those that differ, with each run's value; what `differences` does; sentence.

    Args:
        root: The folder of artifacts. Default: that of each run's recipe.
    """
    if len({run.folder for run in runs}) < len(runs) or not 2 <= len(runs) <= len(ascii_uppercase):
        raise Stop("Two or more different runs are compared.", "Name each once; `apprentice runs` lists them.")
    named = dict(zip(ascii_uppercase, runs, strict=False))
    nodes = {name: run.evaluations(root) for name, run in named.items()}
    episodes = {
        f"{name} {label(model)}": read_episodes(node.store.fetch(node.artifact))
        for name, evaluated in nodes.items()
        for model, node in evaluated.items()
    }
    _check_same_questions(named, nodes, episodes)
    pairs = list(_pairs(nodes))
    found = differences(episodes, [(one, other) for _, one, other in pairs])
    rows = map(Comparison.model_validate, found["comparisons"])
    ends = {run: row for (run, _, _), row in zip(pairs, rows, strict=True)}  # the last pair of each run
    settings = _settings_that_differ({name: run.recipe for name, run in named.items()})
    about = {"runs": {name: run.row(root) for name, run in named.items()}, "settings": settings}
    return about | found | {"sentence": compared(ends.values(), settings)}


def differences(
    episodes: dict[str, list[EvaluatedEpisode]], pairs: Iterable[tuple[str, str]], protocol: str = "parity"
) -> dict[str, Any]:
    """Compare models that were evaluated on the same questions.

    Returns: models, each with its rates and their intervals, and its tokens an answer where one of them thinks;
    comparisons, the paired differences of `pairs`, Holm-corrected over all of them; broken, a note on questions on
    which the environment failed, or "".
    """
    episodes, broken = scored(episodes)
    models: dict[str, dict[str, Any]] = {
        name: with_intervals(records) | {"protocol": protocol} for name, records in episodes.items()
    }
    metric = "accuracy"
    if protocol == "tutorial":  # the tutorial calls the mean score accuracy
        metric = "mean_score"
        for model in models.values():
            model["accuracy"], model["ci"]["accuracy"] = model["mean_score"], model["ci"]["mean_score"]
    for name, tokens in tokens_of_thinkers(episodes).items():
        models[name]["tokens_an_answer"] = tokens
    comparisons = [
        {"from": one, "to": other} | compare(*in_both(episodes[one], episodes[other]), metric) for one, other in pairs
    ]
    correct(comparisons)
    return {"models": models, "comparisons": comparisons, "broken": broken}


def show_differences(found: dict[str, Any], title: str, **columns: dict[str, str]) -> None:
    """Show the tables of `differences`. `columns`: further ones of the first table, each by model."""
    rows = table({name: Rates.model_validate(model) for name, model in found["models"].items()})
    tokens = {name: model.get("tokens_an_answer") for name, model in found["models"].items()}
    if any(tokens.values()):
        columns = {"tokens_an_answer": {name: shown_tokens(each) for name, each in tokens.items()}} | columns
    more = [{name.replace("_", " "): each[model] for name, each in columns.items()} for model in found["models"]]
    announce.table("compared-models", title, [row | cells for row, cells in zip(rows, more, strict=True)])
    if found["comparisons"]:
        comparisons = comparison_rows([Comparison.model_validate(each) for each in found["comparisons"]])
        announce.table("differences", "Differences on the same questions", comparisons)
    if found["broken"]:
        announce.warn(found["broken"])


def show_runs(found: dict[str, Any]) -> None:
    """Show what differs and by how much."""
    rows = [{"": name, "run": run["run"], "outcome": run["outcome"]} for name, run in found["runs"].items()]
    announce.table("runs", "Runs", rows)
    show_differences(found, "On the same questions")
    if found["settings"]:
        announce.table("settings", "Settings that differ", found["settings"])
    announce.say(f"**{found['sentence']}**")


def _pairs(nodes: dict[str, Models[Node]]) -> Iterator[tuple[str, str, str]]:
    """Yield each model of the first run with the same of every other, and last the models that both ended with.

    Each pair comes after the name of the other run.
    """
    (first, one), *others = nodes.items()
    for name, other in others:
        last = one.last_name, other.last_name
        same = [(model, model) for model in one if model in other]
        for own_model, other_model in dict.fromkeys([*(pair for pair in same if pair != last), last]):
            if one[own_model].named.revision != other[other_model].named.revision:
                yield name, f"{first} {label(own_model)}", f"{name} {label(other_model)}"


def _check_same_questions(
    named: dict[str, FinishedRun], nodes: dict[str, Models[Node]], episodes: dict[str, list[EvaluatedEpisode]]
) -> None:
    """Raise Stop for a run that was trained on its questions, or that differs from the first in questions or rules."""
    rules = {}
    for name, run in named.items():
        if not run.verdict.contamination.clean:
            raise Stop(
                f"{run.folder.name} was trained on questions of its evaluation, so its accuracy means nothing.",
                "Move windows.evaluate or widen the task (environment.settings), and run it again.",
            )
        evaluation = nodes[name].last
        environment = evaluation.settings.get("environment", {})
        texts = [each.question for each in episodes[f"{name} {label(nodes[name].last_name)}"]]
        rules[name] = {"protocol": evaluation.counts["protocol"]} | {
            **{f"environment.{field}": environment.get(field) for field in DECISIVE},
            "the list of questions": texts,
        }
    (first, own), *others = rules.items()
    for name, other_rules in others:
        if field := next((field for field in own if own[field] != other_rules[field]), None):
            differs = f"they differ in {field}"
            if not isinstance(own[field], list):
                differs = f"{field} is {own[field]} and {other_rules[field]}"
            raise Stop(
                f"{named[first].folder.name} and {named[name].folder.name} were not evaluated on the same questions by "
                f"the same rules: {differs}.",
                "Compare runs of one environment with the same windows.evaluate, evaluate.questions and "
                "evaluate.samples, or evaluate the models of both anew: `apprentice evaluate --model … --model …`.",
            )


def _settings_that_differ(recipes: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    what = {name: {key: recipe[key] for key in recipe if key not in WHERE} for name, recipe in recipes.items()}
    flat = {name: dict(leaves(recipe)) for name, recipe in what.items()}
    paths = dict.fromkeys(path for each in flat.values() for path in each)
    rows = [{"setting": path} | {name: flat[name].get(path, "–") for name in flat} for path in paths]
    return [row for row in rows if len({row[name] for name in flat}) > 1]
