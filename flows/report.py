"""What a run leaves for people and for machines: one page as HTML, its brief as Markdown, report.json, pictures.

In: the artifacts of all stages. Out: the run's folder. Only files are read here, so a cached run reports at once.
"""

import json
import platform
import resource
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from apprentice.flows.boxes import BOXES
from apprentice.flows.dashboard_report import addresses, log_in_trackio, show_in_prefect
from apprentice.flows.evidence import evidence_of
from apprentice.flows.pages.episodes import HELD_OUT, EpisodeSource, embedded
from apprentice.flows.pages.html import as_title
from apprentice.flows.pages.report_page import as_markdown_page, as_report_page, first_screen
from apprentice.flows.run_artifacts import Artifacts, TrainedModel
from apprentice.tasks.advice.attempts import attempt, attempts_of, in_vain
from apprentice.tasks.advice.ending import Ending, ending, read_decision, read_verdict
from apprentice.tasks.analysis.broken_episodes import scored
from apprentice.tasks.analysis.curve_signals import as_lines
from apprentice.tasks.analysis.diagnose import has_rewards
from apprentice.tasks.analysis.outcomes import both_ways, failures_by_kind
from apprentice.tasks.analysis.past_rounds import past_rounds
from apprentice.tasks.analysis.thought_faults import check_of
from apprentice.tasks.analysis.thought_worth import tokens_an_answer, worth_of_thoughts
from apprentice.tasks.artifacts.provenance import parent
from apprentice.tasks.artifacts.types import Artifact, Checkpoint, Decision, ModelName
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import PACKAGES, installed
from apprentice.tasks.episodes.record import read_episodes
from apprentice.tasks.judgement.contamination import held_out_texts
from apprentice.tasks.judgement.model_names import label
from apprentice.tasks.judgement.run_models import Models
from apprentice.tasks.lineage.node import node_of
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.announce import StageRun
from apprentice.tasks.reporting.pictures import budget_curve, rates, rates_by_kind
from apprentice.tasks.rollouts.sampling import QUESTION_COUNT
from apprentice.tasks.serving.exported import exports_of, read_export
from apprentice.tasks.settings.endpoint import TeacherSpec
from apprentice.tasks.statistics.calibration import slices_of
from apprentice.tasks.statistics.question_kinds import kinds_over_time
from apprentice.tasks.statistics.slices import places_of_slices
from apprentice.tasks.training.method import Lessons
from apprentice.tasks.training.tracking.completions import last_groups, read_completions

EPISODES = "episodes.jsonl"


def write_report(folder: Path, artifacts: Artifacts) -> Ending:
    """Writes report.json, report.md and report.html into `folder`, shows the page in Prefect, and says how it ended."""
    stages = artifacts.stages
    recipe, work, fetch, lessons = stages.recipe, stages.run, stages.run.store.fetch, stages.learned_from
    trained = artifacts.trained()
    by_reward = next((each for each in trained.values() if has_rewards(each.log)), None)
    decided = [found for run in work.log if run.name == "gate" and (found := work.store.find(Decision, run.key))]
    verdict = read_verdict(fetch(artifacts.results))
    if _rows_of(work, lessons) == "dataset":  # a verdict of older code took it for a teacher's
        verdict = verdict.model_copy(update={"teacher": None})
    decision = read_decision(fetch(artifacts.outcome.release))
    played = Models({name: read_episodes(fetch(each)) for name, each in artifacts.evaluations.items()})
    kept = fetch(lessons.kept) if lessons else None
    logs = Models(
        {each.training.name: each.log for title, each in trained.items() if title != label(ModelName.CONTROL)}
    )
    evidence = evidence_of(verdict, decision, recipe.for_record(), recipe.environment, played, kept, logs)
    tried = in_vain(attempts_of(work.store), attempt(evidence.recipe, verdict))
    ended = ending(verdict, decision, evidence.recipe, evidence, tried)
    counted, _ = scored(played)
    budgets = {name: read_episodes(fetch(each)) for name, each in artifacts.thoughts.items()}
    report = verdict.as_json() | {
        "tokens": {name: tokens_an_answer(records) for name, records in played.items()},
        "thinks": recipe.student.thinking is not None,
        "guard_tokens": _tokens_of_guards(artifacts),
        "thoughts": worth_of_thoughts(budgets, played.last),
        "kinds_of_failure": failures_by_kind(counted),
        "both_ways": both_ways(counted, [(each.from_, each.to) for each in verdict.comparisons]),
        "recipe": recipe.name,
        "seed": recipe.seed,
        "played_by": recipe.teacher.called if recipe.buys and recipe.teacher else None,
        "rows_of": as_title(_rows_of(work, lessons)),
        "decoding": recipe.evaluate.decoding,
        "gate": decision.as_json(),
        "ending": ended.as_json(),
        "warnings": announce.warned(),
        "exported": _exported(work, stages.models.last),
        "is_champion": artifacts.outcome.is_champion,
        "hub_in_reach": work.store.in_reach,
        "by_these_rules": artifacts.outcome.by_these_rules,
        "collect": _collected(lessons, recipe.teacher if recipe.buys else None),
        "rounds": [each.row() for each in past_rounds(work.store)] if recipe.round else [],
        "probe": stages.probed.as_json() if stages.probed else None,
        "effort": _effort(work.log, by_reward, {name: recipe.training(name) for name in recipe.trains_on}),
        "signals": {title: as_lines(each.signals) for title, each in trained.items()},
        "curves": {title: each.curves() for title, each in trained.items()},
        "curriculum": kinds_over_time(by_reward.log if by_reward else []),
        "completions": last_groups(read_completions(by_reward.folder)) if by_reward else [],
        "lengths": lessons.length_stats.model_dump(exclude=set(Artifact.model_fields)) if lessons else None,
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
    pictures = _pictures(folder, report, trained, lessons and fetch(lessons.length_stats))
    text = as_markdown_page(report)
    differ = {each.place for each in played.last if not each.is_right}
    measured = verdict.teacher.slices if verdict.teacher else []
    episodes = embedded(_sources(artifacts, measured), differ)
    (folder / "report.md").write_text(text)
    (folder / "report.html").write_text(as_report_page(report, episodes, BOXES))
    show_in_prefect(folder, first_screen(text), pictures)
    if "trackio" in recipe.report_to and any(run.name == "verdict" and run.state == "ran" for run in work.log):
        log_in_trackio(recipe.trackio, folder, report, played, pictures, artifacts.results.key)
    return ended


def _tokens_of_guards(artifacts: Artifacts) -> dict[str, list[float]]:
    """Tokens an answer in each regression evaluation, before and after the training."""
    found: dict[str, list[float]] = {}
    for name, each in artifacts.regression_evaluations.items():
        folder = artifacts.stages.run.store.fetch(each)
        found.setdefault(name.rpartition(".")[0], []).append(tokens_an_answer(read_episodes(folder)))
    return found


def _pictures(
    folder: Path, report: dict[str, Any], trained: dict[str, TrainedModel], lengths: Path | None
) -> dict[str, Path]:
    """Draws accuracies and slices, copies the artifacts' own pictures, and returns all by title."""
    titles = {name: as_title(name) for name in report["models"]}
    pictures = {"accuracy": rates(report["models"], titles, folder / "accuracy.png")}
    if budgets := report["thoughts"].get("budgets"):
        pictures["thoughts"] = budget_curve(budgets, folder / "thoughts.png")
    if report["slices"]:
        pictures["slices"] = rates_by_kind(report["slices"], titles, folder / "slices.png")
    copied: list[tuple[str, Path, str]] = [
        *((title, model.folder, "curves") for title, model in trained.items()),
        *(
            (f"{title} by kind", model.folder, "curriculum")
            for title, model in trained.items()
            if (model.folder / "curriculum.png").exists()
        ),
        *([("lengths", lengths, "histogram")] if lengths else []),
    ]
    for title, artifact, name in copied:
        pictures[title] = folder / f"{title.lower().replace(' ', '-')}-{name}.png"
        shutil.copyfile(artifact / f"{name}.png", pictures[title])
    return pictures


def _sources(artifacts: Artifacts, measured: list[dict[str, Any]]) -> list[EpisodeSource]:
    """The episodes that the page shows: of the held-out questions, the regression evaluations, the teacher.

    `measured`: the teacher's slices that have a figure in the page.
    """
    stages = artifacts.stages
    work, environment, fetch = stages.run, stages.recipe.environment.make(), stages.run.store.fetch
    counted, _ = scored({name: read_episodes(fetch(each)) for name, each in artifacts.evaluations.items()})
    held_out_slices: dict[int, list[str]] = {}
    for (slice_name, kind), places in places_of_slices(counted).items():
        for place in places:
            held_out_slices.setdefault(place, []).append(f"{slice_name} {kind}")

    def slices(place: int, row: dict[str, Any]) -> list[str]:
        return held_out_slices.get(place - row["sample"], [])

    evaluations = [
        EpisodeSource(as_title(name), HELD_OUT, fetch(each) / EPISODES, slices=slices)
        for name, each in artifacts.evaluations.items()
    ]
    regressions = [
        EpisodeSource(as_title(model), regression, fetch(each) / EPISODES)
        for name, each in artifacts.regression_evaluations.items()
        for regression, _, model in [name.rpartition(".")]
    ]
    lessons = stages.learned_from
    if not (lessons and lessons.rollouts):
        return [*evaluations, *regressions]
    texts = frozenset(held_out_texts(fetch(stages.questions)))  # as the filter takes them
    thinks = stages.recipe.student.thinking
    teacher = EpisodeSource(
        as_title(_rows_of(work, lessons)),
        "collected",
        fetch(lessons.rollouts) / "rollouts.jsonl",
        texts,
        check_of(load_tokenizer(fetch(stages.models.base), work.trusted)) if thinks else None,
        lambda _, row: slices_of(row, environment, measured),
    )
    return [*evaluations, *regressions, teacher]


def _rows_of(work: RunContext, lessons: Lessons | None) -> Literal["dataset", "teacher"]:
    """Whose the collected episodes are."""
    rollouts = lessons.rollouts if lessons else None
    return "dataset" if rollouts and node_of(work.store, parent(rollouts), {}).is_of_a_dataset else "teacher"


def _collected(lessons: Lessons | None, teacher: TeacherSpec | None) -> dict[str, Any] | None:
    """The rows of SFT, and their cost; None without SFT."""
    if lessons is None:
        return None
    bought, names = lessons.rollouts if teacher else None, ("prompt_tokens", "completion_tokens")
    return {
        "episodes": lessons.kept.episodes,
        "kept": lessons.kept.kept,
        "causes": lessons.kept.dropped,
        **{name: getattr(bought, name) if bought else 0 for name in names},
        "cost_usd": bought.cost_usd if bought and teacher and teacher.prices else None,
    }


def _effort(log: list[StageRun], by_reward: TrainedModel | None, specs: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each training that this run made, and the rollouts of one by reward with their tokens."""
    made = [each for each in log if each.name in specs and each.state == "ran"]
    played = {"rollouts": 0, "tokens": 0}
    if by_reward is not None:
        spec, curves = specs[by_reward.training.name], by_reward.log
        questions_a_step = [each[QUESTION_COUNT] for each in curves if QUESTION_COUNT in each]
        rollouts = fmean(questions_a_step) * spec.num_generations if questions_a_step else spec.rollouts_a_step
        lengths = [each["completions/mean_length"] for each in curves if "completions/mean_length" in each]
        played["rollouts"] = round(rollouts * max((each["step"] for each in curves), default=0))
        played["tokens"] = round(sum(lengths) * spec.logging_steps * rollouts)
    return {"seconds": {each.title: each.seconds for each in made}, **played}


def _exported(work: RunContext, model: Checkpoint) -> list[dict[str, str]]:
    """The rows of the model's newest files for llama.cpp; none where it was not exported."""
    newest = next(iter(exports_of(work.store, model)), None)
    return read_export(work.store.fetch(newest)).rows() if newest else []


def _made_from(snapshot: Path, artifact: Artifact) -> dict[str, Any]:
    made_by = json.loads((snapshot / "artifact.json").read_text())["made_by"]
    named = {"repository": artifact.repository, "revision": artifact.revision, "key": artifact.key}
    counts = artifact.model_dump(mode="json", exclude=set(Artifact.model_fields))
    return named | {"stage": made_by["stage"], "inputs": made_by["inputs"], "counts": counts}


def _device() -> str:
    """Where the stages ran, in words; torch is asked only where a stage loaded it."""
    torch = sys.modules.get("torch")
    return torch.cuda.get_device_name() if torch and torch.cuda.is_available() else f"{platform.machine()} CPU"


def _peak_memory_mb() -> int:
    """The largest resident set of this process or of a server that it ran."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(each).ru_maxrss for each in who) // 1024
