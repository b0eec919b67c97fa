"""Finished runs and evaluated artifacts side by side: settings that differ, accuracy, curves, cost.

In: runs' folders; keys, revisions or tags of verdicts, decisions, releases or evaluations, of a folder or of the Hub.
Out: for each a `Side`: the evaluation of each model, what made it, and whether training had seen its questions; a page
and a closing sentence that compare them.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NamedTuple

from apprentice.flows.pages.html import as_html_page, data_uri, templates
from apprentice.flows.recipe.loading import read_recipe
from apprentice.tasks.analysis.comparison import (
    compare,
    comparison_rows,
    correct,
    label,
    percent,
    scored,
    table,
    with_intervals,
)
from apprentice.tasks.analysis.ending import compared, state_of
from apprentice.tasks.analysis.history import Champions
from apprentice.tasks.artifacts.lineage import Node, node_of
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.locate import lines_of, locate
from apprentice.tasks.artifacts.types import (
    Decision,
    Evaluation,
    KeptRollouts,
    Parent,
    Release,
    Rollouts,
    Verdict,
)
from apprentice.tasks.episodes.record import LEARNED, EvaluatedEpisode, read_episodes, same_text
from apprentice.tasks.judgement.contents import Comparison, Content, GateDecision, Judgement, Rates
from apprentice.tasks.judgement.run_models import Models, evaluations_of
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.pictures import curves_of_runs
from apprentice.tasks.reporting.safe_text import cell, code, markdown_table
from apprentice.tasks.trainings import TRAININGS

LAST = "last"
"""Names the newest run."""
READ = {"recipe", "seed", "models", "lineage", "gate", "is_champion", "contamination", "collect", "stages", "effort"}
"""What is read of a report; one of older code that lacks some of it is no run that can be listed."""


class FinishedRun(NamedTuple):
    folder: Path
    report: dict[str, Any]
    recipe: dict[str, Any]
    """As the run's folder has it: the code may have changed since."""
    judgement: Judgement
    decision: GateDecision

    @property
    def ended(self) -> float:
        """Seconds since 1970, as the run says itself: a copy of its folder has another time. A run of older code says
        when it began, in its folder's name."""
        with suppress(KeyError, TypeError, ValueError):
            return datetime.fromisoformat(self.report["ended"]).timestamp()
        with suppress(ValueError):
            return datetime.strptime("-".join(self.folder.name.split("-")[-3:]), "%Y%m%d-%H%M%S-%f").timestamp()
        return (self.folder / "report.json").stat().st_mtime

    def store(self, root: Path | None = None) -> LocalStore:
        """Return the store of its artifacts: a folder, which of a store on the Hub is the cache."""
        spec = self.recipe["store"]
        namespace = (spec.get("hub") or {}).get("namespace") or "local"
        return LocalStore(root or Path(spec["path"]), self.recipe["name"], namespace)

    def is_champion(self, root: Path | None = None) -> bool:
        """Whether its model is the champion now; for a store on the Hub, whether it was when the run ended."""
        if self.recipe["store"].get("hub"):
            return self.report["is_champion"]
        with suppress(Stop):  # the champion's files are gone
            now = Champions(self.store(root)).current()
            return now is not None and now.revision in {
                row["revision"] for row in self.report["lineage"] if row["stage"] == "release"
            }
        return False

    def row(self, root: Path | None = None) -> dict[str, str]:
        models = self.judgement.models
        return {
            "run": self.folder.name,
            "recipe": self.report["recipe"],
            "seed": str(self.report["seed"]),
            "when": f"{datetime.fromtimestamp(self.ended):%Y-%m-%d %H:%M}",
            "model": label(models.last_name),
            "accuracy": percent(models.last.accuracy, models.last.ci["accuracy"]),
            "outcome": state_of(self.judgement, self.decision),
            "champion": "yes" if self.is_champion(root) else "no",
            "page": str(self.folder / "report.html"),
        }


def finished(runs: Path) -> list[FinishedRun]:
    """Return the runs of a folder, the newest first."""
    found = [run for each in runs.glob("*/report.json") if (run := _read(each.parent)) is not None]
    return sorted(found, key=lambda run: run.ended, reverse=True)


def find_run(name: str, runs: Path) -> FinishedRun | None:
    """Return the run of a folder, of a name within `runs`, or the `last` one; None where there is none."""
    newest = finished(runs)[:1] if name == LAST else []
    return newest[0] if newest else _read(Path(name)) or _read(runs / name)


def run_named(name: str, runs: Path) -> FinishedRun:
    """As `find_run`. Raises Stop."""
    found = find_run(name, runs)
    if found is None:
        what = f"There is no finished run in {runs}." if name == LAST else f"{name} is no folder of a finished run."
        raise Stop(what, "`apprentice runs` lists them; --runs names another folder.")
    return found


def _read(folder: Path) -> FinishedRun | None:
    try:
        report = json.loads((folder / "report.json").read_text())
        recipe, _ = read_recipe((folder / "recipe.yaml").read_bytes())
        if not (isinstance(report, dict) and isinstance(recipe, dict) and report.keys() >= READ and "store" in recipe):
            return None
        judged = Judgement.model_validate(report), GateDecision.model_validate(report["gate"])
    except (OSError, ValueError):
        return None
    was = recipe | {
        each.name: None for each in TRAININGS if recipe.get(each.name) == "off"
    }  # as runs of older code wrote it
    return FinishedRun(folder.absolute(), report, was, *judged)


LIKE_A_KEY = re.compile(r"[0-9a-f-]{6,}")
LOCAL = "local"
"""The namespace of stores that are no Hub's."""


class Side(NamedTuple):
    name: str
    """The run's folder, or repository@key."""
    evaluations: Models[Node]
    recipe: dict[str, Any]
    row: dict[str, str]
    """run, recipe, seed, when, outcome, champion."""
    cost: dict[str, str]
    """What is known of it."""
    contaminated: bool

    def episodes(self) -> dict[str, list[EvaluatedEpisode]]:
        """By model. Raises Stop where they are gone."""
        return {model: read_episodes(node.store.fetch(node.artifact)) for model, node in self.evaluations.items()}

    def log(self, model: str) -> list[dict[str, Any]]:
        """The log of a model's training; nothing where there was none, or it is gone. No weights are downloaded."""
        checkpoint = self.evaluations[model].inputs.get("checkpoint")
        return json.loads(b"".join(_lines(checkpoint, "log.json")) or b"[]")


def side_named(name: str, runs: Path, root: Path | None = None, hub: str | None = None) -> Side:
    """Return the run or the artifact of that name. Raises Stop if there is none, or no model was evaluated in it.

    Args:
        name: As `run_named` or `locate` takes it; `owner/name@revision` is looked for on the Hub, too.
        root: The folder of artifacts. Default: that of a run's recipe; for an artifact `artifacts`.
        hub: The namespace on the Hub where an artifact is looked for.
    """
    owner = name.partition("/")[0] if "@" in name else LOCAL
    if find_run(name, runs) or not ("@" in name or LIKE_A_KEY.fullmatch(name)):
        return of_run(run_named(name, runs), root)
    store, named = locate(name, root or Path("artifacts"), hub or (None if owner == LOCAL else owner))
    return of_artifact(node_of(store, named, {}))


def of_run(run: FinishedRun, root: Path | None = None) -> Side:
    """Return the run with its evaluations. Raises Stop where its verdict is gone."""
    store = run.store(root)
    row = next(row for row in run.report["lineage"] if row["stage"] == "verdict")
    verdict = store.at(Verdict, row["revision"])
    node = node_of(store, Parent(kind="Verdict", **verdict.model_dump(include={"repository", "revision", "key"})), {})
    return Side(
        name=run.folder.name,
        evaluations=evaluations_of(node.inputs),
        recipe=run.recipe,
        row=run.row(root),
        cost=_cost(run),
        contaminated=not run.judgement.contamination.clean,
    )


def of_artifact(node: Node) -> Side:
    """Return a verdict, its decision or release, or one evaluation. Raises Stop for another kind."""
    verdict = node if node.is_a(Verdict) else next((each for each in node.inputs.values() if each.is_a(Verdict)), None)
    if not node.is_a(Verdict, Decision, Release, Evaluation):
        raise Stop(
            f"{node.ref} is of kind {node.named.kind}, in which no model was judged.",
            "Name a run, or the key of a verdict, a decision, a release or an evaluation.",
        )
    if node.is_a(Evaluation):
        evaluations, contaminated = Models({node.counts["model"]: node}), _was_seen(node)
    elif verdict is None or verdict.record is None or not (evaluations := evaluations_of(verdict.inputs)):
        raise Stop(f"The verdict of {node.ref} no longer exists.", "Name another store with --store or --hub.")
    else:
        contaminated = verdict.counts["contaminated"]
    assert node.record is not None
    made, recipe = node.record.provenance.made_at, node.record.provenance.recipe
    if node.is_a(Evaluation):  # `apprentice evaluate` asks as its options say
        recipe = recipe | {"evaluate": node.settings.get("spec")}
    row = {
        "run": node.ref,
        "recipe": str(recipe.get("name", node.store.project)),
        "seed": str(recipe.get("seed", "–")),
        "when": f"{datetime.fromisoformat(made).astimezone():%Y-%m-%d %H:%M}" if made else "–",
        "outcome": node.artifact.figure,
        "champion": "–",
    }
    return Side(node.ref, evaluations, recipe, row, _bought(node, recipe), contaminated)


def _was_seen(evaluation: Node) -> bool:
    """Whether its model was trained on one of its questions, as far as that is known."""
    learned = _lines(evaluation.inputs.get("checkpoint"), LEARNED)
    asked = {same_text(each.question) for each in read_episodes(evaluation.store.fetch(evaluation.artifact))}
    return any(same_text(json.loads(line)["question"]) in asked for line in learned)


def _lines(node: Node | None, name: str) -> Iterator[bytes]:
    if node is not None and node.record is not None and (sha256 := node.record.files.get(name)):
        yield from lines_of(node.store, node.artifact, name, sha256)


def _cost(run: FinishedRun) -> dict[str, str]:
    """Return what a run cost; stages that were cached cost it nothing."""
    collected, stages, effort = run.report["collect"] or {}, run.report["stages"], run.report["effort"]
    return {
        "seconds": f"{sum(stage['seconds'] for stage in stages):.0f}",
        "stages that ran": f"{sum(stage['state'] == 'ran' for stage in stages)} of {len(stages)}",
        **_paid(
            {} if run.report.get("rows_of") == "Dataset" else collected,
            collected.get("kept", 0),
            collected.get("cost_usd"),
        ),
        "GRPO's rollouts": f"{effort['rollouts']:,}",
        "GRPO's tokens": f"{effort['tokens']:,}",
        "peak memory, MB": f"{run.report.get('peak_memory_mb', 0):,}",
    }


def _bought(node: Node, recipe: dict[str, Any]) -> dict[str, str]:
    """Return what the teacher's episodes cost that an artifact goes back to; it does not know what the run cost."""
    rollouts, kept = node.nearest(Rollouts), node.nearest(KeptRollouts)
    if rollouts is None or not rollouts.counts:
        return {}
    if rollouts.is_of_a_dataset:
        return _paid({}, kept.counts.get("kept", 0) if kept else 0, None)
    price = rollouts.counts["cost_usd"] if (recipe.get("teacher") or {}).get("prices") else None
    return _paid(rollouts.counts, kept.counts.get("kept", 0) if kept else 0, price)


def _paid(rollouts: dict[str, Any], kept: int, price: float | None) -> dict[str, str]:
    return {
        "teacher's episodes": f"{rollouts.get('episodes', 0):,}",
        "kept": f"{kept:,}",
        "teacher's tokens": f"{rollouts.get('prompt_tokens', 0) + rollouts.get('completion_tokens', 0):,}",
        "USD": "–" if price is None else f"{price:.4f}",
    }


SHOWN: dict[str, dict[str, str]] = {
    each.name: {metric: f"{each.spec.label}: {title}" for metric, title in each.compared.items()} for each in TRAININGS
}
"""The curves of each training that are laid over each other."""
WHERE = ("server", "store", "trackio", "report_to")
"""Sections of a recipe that say where it runs, not what it does."""
ASKED = ("name", "settings", "version", "revision")
"""What of an environment decides its questions and their rewards; `code` also changes with a comment."""


class RunsCompared(Content):
    """compare.json."""

    runs: dict[str, dict[str, str]]
    settings: list[dict[str, str]]
    """Those that differ: `setting`, and for each run its value."""
    models: dict[str, Rates]
    broken: str
    comparisons: list[Comparison]
    cost: dict[str, dict[str, str]]
    sentence: str


def compare_runs(runs: list[Side], to: Path) -> tuple[RunsCompared, Path]:
    """Compare the runs with the first one, and write compare.md, .html and .json into a new folder of `to`.

    Returns what compare.json holds, and the page. Raises Stop for what cannot be compared, or whose artifacts are gone.
    """
    if len({(run.name, run.row.get("page")) for run in runs}) < len(runs) or not 2 <= len(runs) <= len(ascii_uppercase):
        raise Stop("Two or more different runs are compared.", "Name each once; `apprentice runs` lists them.")
    named = dict(zip(ascii_uppercase, runs, strict=False))
    episodes = {
        f"{name} {label(model)}": records for name, run in named.items() for model, records in run.episodes().items()
    }
    _check_same_questions(named, episodes)
    episodes, broken = scored(episodes)
    pairs = list(_pairs(named))
    rows = [{"from": one, "to": other} | compare(episodes[one], episodes[other]) for _, one, other in pairs]
    correct(rows)
    comparisons = [Comparison.model_validate(row) for row in rows]
    ends = {run: each for (run, _, _), each in zip(pairs, comparisons, strict=True)}  # the last pair of each run
    settings = _settings_that_differ(named)
    found = RunsCompared(
        runs={name: run.row for name, run in named.items()},
        settings=settings,
        models={name: Rates.model_validate(with_intervals(records)) for name, records in episodes.items()},
        broken=broken,
        comparisons=comparisons,
        cost={name: run.cost for name, run in named.items()},
        sentence=compared(ends.values(), settings),
    )
    folder = to / f"compared-{datetime.now():%Y%m%d-%H%M%S-%f}"
    folder.mkdir(parents=True)
    logs = {name: {model: run.log(model) for model in SHOWN if model in run.evaluations} for name, run in named.items()}
    picture = curves_of_runs(logs, SHOWN, folder / "curves.png")
    markdown = templates(False, (cell, code, comparison_rows, markdown_table, table))
    text = markdown.get_template("compare.md.j2").render(dict(found), picture=data_uri(picture))
    page = folder / "compare.html"
    (folder / "compare.md").write_text(text)
    page.write_text(as_html_page(text, "Runs side by side"))
    (folder / "compare.json").write_text(json.dumps(found.as_json(), indent=2) + "\n")
    return found, page


def shown_in_terminal(found: RunsCompared) -> None:
    """Show what differs and by how much; the page has the rest."""
    rows = [{"": name, "run": run["run"], "outcome": run["outcome"]} for name, run in found.runs.items()]
    announce.table("runs", "Runs", rows)
    announce.table("models", "On the same questions", table(found.models))
    for key, title, shown in (
        ("differences", "Differences, paired", comparison_rows(found.comparisons)),
        ("settings", "Settings that differ", found.settings),
    ):
        if shown:
            announce.table(key, title, shown)
    announce.say(f"**{found.sentence}**")


def _pairs(named: dict[str, Side]) -> Iterator[tuple[str, str, str]]:
    """Yield each model of the first run with the same of every other, and last the models that both ended with.

    Each pair comes after the name of the other run.
    """
    (first, one), *others = named.items()
    for name, other in others:
        last = one.evaluations.last_name, other.evaluations.last_name
        same = [(model, model) for model in one.evaluations if model in other.evaluations]
        for mine, theirs in dict.fromkeys([*(pair for pair in same if pair != last), last]):
            if one.evaluations[mine].named.revision != other.evaluations[theirs].named.revision:
                yield name, f"{first} {label(mine)}", f"{name} {label(theirs)}"


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
    evaluation = run.evaluations.last
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
