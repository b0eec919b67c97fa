"""Runs side by side: what was set otherwise, who answers more of the same questions, the curves, the cost.

In: what was judged, see comparison_side.py. Out: a page, as Markdown and HTML, and JSON.
Runs that were not asked the same questions under the same rewards are refused: a difference would mean nothing.
"""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from apprentice.flows.comparison_side import Side
from apprentice.flows.pages.rendering import as_html_page, data_uri
from apprentice.flows.pages.report_page import MARKDOWN
from apprentice.tasks.analysis.comparison import compare, comparison_rows, correct, label, scored, table, with_intervals
from apprentice.tasks.analysis.ending import compared
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.pictures import curves_of_runs

SHOWN = {"sft": {"loss": "SFT: loss"}, "grpo": {"reward": "GRPO: reward", "frac_reward_zero_std": "GRPO: dead groups"}}
"""The curves of each training that are laid over each other."""
WHERE = ("server", "store", "trackio", "report_to")
"""Sections of a recipe that say where it runs, not what it does."""
ASKED = ("name", "settings", "version", "revision")
"""What of an environment decides its questions and their rewards; `code` also changes with a comment."""


def compare_runs(runs: list[Side], to: Path) -> dict[str, Any]:
    """Compare the runs with the first one, and write compare.md, .html and .json into a new folder of `to`.

    Returns what compare.json holds. Raises Stop for what cannot be compared, or whose artifacts are gone.
    """
    if len({(run.name, run.row.get("page")) for run in runs}) < len(runs) or not 2 <= len(runs) <= len(ascii_uppercase):
        raise Stop("Two or more different runs are compared.", "Name each once; `apprentice runs` lists them.")
    named = dict(zip(ascii_uppercase, runs, strict=False))
    episodes = {
        f"{name} {label(model)}": records for name, run in named.items() for model, records in run.episodes().items()
    }
    _check_same_questions(named, episodes)
    episodes, broken = scored(episodes)
    comparisons = [{"from": one, "to": other} | compare(episodes[one], episodes[other]) for one, other in _pairs(named)]
    correct(comparisons)
    found: dict[str, Any] = {
        "runs": {name: run.row for name, run in named.items()},
        "settings": _settings_that_differ(named),
        "models": {name: with_intervals(records) for name, records in episodes.items()},
        "broken": broken,
        "comparisons": comparisons,
        "cost": {name: run.cost for name, run in named.items()},
    }
    found["sentence"] = compared(found)
    folder = to / f"compared-{datetime.now():%Y%m%d-%H%M%S-%f}"
    folder.mkdir(parents=True)
    logs = {name: {model: run.log(model) for model in SHOWN if model in run.evaluations} for name, run in named.items()}
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
    announce.say(f"**{found['sentence']}**")


def _pairs(named: dict[str, Side]) -> Iterator[tuple[str, str]]:
    """Yield each model of the first run with the same of every other, and the models that the runs ended with."""
    (first, one), *others = named.items()
    for name, other in others:
        same = [model for model in one.evaluations if model in other.evaluations]
        ends = [] if one.last == other.last else [(one.last, other.last)]
        for mine, theirs in [*((model, model) for model in same), *ends]:
            if one.evaluations[mine].named.revision != other.evaluations[theirs].named.revision:
                yield f"{first} {label(mine)}", f"{name} {label(theirs)}"


def _check_same_questions(named: dict[str, Side], episodes: dict[str, list[EvaluatedEpisode]]) -> None:
    (first, one), *others = named.items()
    for run in named.values():
        if run.contaminated:
            raise Stop(
                f"{run.name} was trained on questions that it is asked, so its accuracy means nothing.",
                "Move windows.evaluate or widen the task (environment.settings), and run it again.",
            )
    for name, other in others:
        rules, others_rules = _rules(one), _rules(other)
        for field in rules:
            if rules[field] != others_rules[field]:
                raise Stop(
                    f"{one.name} and {other.name} were not asked the same questions by the same rules: "
                    f"{field} is {rules[field]} and {others_rules[field]}.",
                    "Compare runs of one environment; `apprentice evaluate --model … --model …` asks models anew.",
                )
        asked, questions = (_questions(episodes, each) for each in (first, name))
        if asked != questions:
            shared = len(set(asked) & set(questions))
            raise Stop(
                f"{one.name} and {other.name} were not asked the same questions: {len(asked)} and "
                f"{len(questions)}, of which {shared} are the same.",
                "Compare runs with the same windows.evaluate, evaluate.questions and evaluate.samples, or put one set "
                "to the models of both: `apprentice evaluate --model … --model …`.",
            )


def _rules(run: Side) -> dict[str, Any]:
    """What decides a run's questions and how they were scored."""
    evaluation = run.evaluations[run.last]
    environment = evaluation.settings.get("environment", {})
    return {"protocol": evaluation.counts["protocol"]} | {
        f"environment.{field}": environment.get(field) for field in ASKED
    }


def _questions(episodes: dict[str, list[EvaluatedEpisode]], run: str) -> list[str]:
    return next([each.question for each in records] for name, records in episodes.items() if name.startswith(f"{run} "))


def _settings_that_differ(named: dict[str, Side]) -> list[dict[str, str]]:
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
