"""What a run leaves for people and for machines: one page as HTML and as Markdown, report.json, pictures.

In: the artifacts of all stages. Out: the run's folder. Only files are read here, so a cached run reports at once.
"""

import json
import resource
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from apprentice.flows.examination import Outcome
from apprentice.flows.pages.report_page import as_html_page, as_markdown_page
from apprentice.flows.probe import Probed
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.analysis.judgements import read_decision, read_verdict
from apprentice.tasks.analysis.signals import as_lines, read_signals
from apprentice.tasks.artifacts.types import (
    Artifact,
    BaseStudent,
    Evaluation,
    GrpoCheckpoint,
    KeptRollouts,
    LengthStats,
    Questions,
    Rollouts,
    SftCheckpoint,
    Verdict,
)
from apprentice.tasks.engine.stage import PACKAGES, installed
from apprentice.tasks.engine.work import Work
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.curves import project_in_trackio
from apprentice.tasks.training.completions import last_groups, read_said


class Made(NamedTuple):
    """What the stages of one run made."""

    asked: Questions
    rollouts: Rollouts
    kept: KeptRollouts
    base: BaseStudent
    measured: LengthStats
    warm: SftCheckpoint
    probed: Probed
    trained: GrpoCheckpoint
    examined: dict[str, Evaluation]
    guards: dict[str, Evaluation]
    judged: Verdict
    outcome: Outcome

    def artifacts(self) -> list[Artifact]:
        single = [self.asked, self.rollouts, self.kept, self.base, self.measured, self.warm, self.trained]
        probed = [each for each in self.probed.artifacts() if each != self.asked]
        return [*single, *probed, *self.examined.values(), *self.guards.values(), self.judged, self.outcome.release]


def link_up(recipe: Recipe) -> None:
    """Links on the run's page in Prefect: where its curves grow, and what it uses of the Hub."""
    from huggingface_hub import constants

    hub = constants.ENDPOINT
    curves = f"{hub}/spaces/{recipe.trackio.space_id}" if recipe.trackio.space_id else recipe.trackio.url
    if curves:
        announce.link(
            "trackio", f"{curves}/?project={project_in_trackio(recipe.name)}", "Curves as they grow, in Trackio"
        )
    if recipe.store.hub:
        announce.link("hub", f"{hub}/{recipe.store.hub.namespace}", "What was published, on the Hub")
    if recipe.env.space:
        announce.link("space", f"{hub}/spaces/{recipe.env.space}", "The environment's Space")
    if recipe.student.model and not Path(recipe.student.model).exists():
        revision = recipe.student.revision
        announce.link("student", f"{hub}/{recipe.student.model}/tree/{revision}", "The student before training")


def write_report(folder: Path, recipe: Recipe, work: Work, made: Made) -> None:
    """Writes report.json, report.md and report.html into `folder`, and shows the page in Prefect."""
    fetch = work.store.fetch
    report = read_verdict(fetch(made.judged)) | {
        "recipe": recipe.name,
        "seed": recipe.seed,
        "played_by": recipe.teacher.called,
        "decoding": recipe.evaluate.decoding,
        "gate": read_decision(fetch(made.outcome.release)),
        "is_champion": made.outcome.is_champion,
        "hub_in_reach": work.store.in_reach,
        "by_these_rules": made.outcome.by_these_rules,
        "collect": {
            "episodes": made.kept.episodes,
            "kept": made.kept.kept,
            "causes": made.kept.dropped,
            "prompt_tokens": made.rollouts.prompt_tokens,
            "completion_tokens": made.rollouts.completion_tokens,
            "cost_usd": made.rollouts.cost_usd if recipe.teacher.prices else None,
        },
        "probe": made.probed.as_json(),
        "signals": {
            "SFT": as_lines(read_signals(fetch(made.warm))),
            "GRPO": as_lines(read_signals(fetch(made.trained))),
        },
        "completions": last_groups(read_said(fetch(made.trained))),
        "lengths": made.measured.model_dump(exclude=set(Artifact.model_fields)),
        "stages": [run._asdict() for run in work.log],
        "seeds": {purpose: window.model_dump() for purpose, window in recipe.seed_windows()},
        "versions": {name: installed(name) for name in PACKAGES},
        "lineage": [_made_from(fetch(artifact), artifact) for artifact in made.artifacts()],
        "device": _device(),
        "peak_memory_mb": _peak_memory_mb(),
    }
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    pictures = {}
    shown: list[tuple[str, Artifact, str]] = [
        ("GRPO", made.trained, "curves"),
        ("SFT", made.warm, "curves"),
        ("lengths", made.measured, "histogram"),
    ]
    for title, artifact, name in shown:
        pictures[title] = folder / f"{title.lower()}-{name}.png"
        shutil.copyfile(fetch(artifact) / f"{name}.png", pictures[title])
    text = as_markdown_page(report, (fetch(made.kept) / "samples.md").read_text(), pictures)
    (folder / "report.md").write_text(text)
    (folder / "report.html").write_text(as_html_page(text, folder.name))
    announce.markdown("report", text, f"Report of {folder.name}")


def _made_from(snapshot: Path, artifact: Artifact) -> dict[str, Any]:
    made_by = json.loads((snapshot / "artifact.json").read_text())["made_by"]
    named = {"repository": artifact.repository, "revision": artifact.revision, "key": artifact.key}
    return named | {"stage": made_by["stage"], "inputs": made_by["inputs"]}


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
