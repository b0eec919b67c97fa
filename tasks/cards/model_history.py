"""How a model was made, from the records of its trainings: what it began as, its settings, what was said of it.

In: the ancestry of a model that is being made. Out: facts, and the section on its training in Markdown.
"""

import json
from pathlib import Path
from typing import Any

from apprentice.tasks.artifacts.types import (
    Artifact,
    BaseStudent,
    GrpoCheckpoint,
    KeptRollouts,
    Questions,
    SftCheckpoint,
    Verdict,
)
from apprentice.tasks.cards.ancestry import Ancestry
from apprentice.tasks.cards.dataset_history import played_by
from apprentice.tasks.cards.sections import decoded, named, shown, taught_by
from apprentice.tasks.reporting.markdown import code, markdown_table
from apprentice.tasks.settings.spec import Spec
from apprentice.tasks.settings.training import GrpoSpec, SftSpec


def begun_as(ancestry: Ancestry) -> tuple[str, str] | None:
    """The model of the Hub and its revision with which all began; None for one that was built, or came in a folder."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    spec = given_model(ancestry)
    if spec is None or not spec["model"] or Path(spec["model"]).exists():
        return None
    try:
        validate_repo_id(spec["model"])
    except HFValidationError:
        return None
    return spec["model"], spec["revision"]


def began(ancestry: Ancestry) -> str:
    """The student's weights before any training, within a sentence."""
    if source := begun_as(ancestry):
        return f"those of {code(source[0])} of the Hub, at its revision {code(source[1])}"
    base = ancestry.nearest(BaseStudent)
    if base is None or not base.settings.get("spec"):
        return "ones of which no record is left"
    if given_model(ancestry):
        return "those of a model that its maker kept in a folder"
    return f"random ones of a small Qwen3 that was built on the spot, with the seed {base.settings.get('seed')}"


def given_model(ancestry: Ancestry) -> dict[str, Any] | None:
    """What the student's settings say of the model with which all began; None for a built one, or one unknown."""
    base = ancestry.nearest(BaseStudent)
    spec = base.settings.get("spec") if base else None
    return spec if spec and (spec.get("model") or spec.get("content")) else None


def verdict_on(ancestry: Ancestry) -> dict[str, Any] | None:
    judged = ancestry.nearest(Verdict)
    folder = judged.fetch() if judged else None
    return json.loads((folder / "verdict.json").read_text()) if folder else None


def examined_on(ancestry: Ancestry) -> Ancestry | None:
    """The questions on which a release was examined; None where they are gone, or there was no examination.

    Not simply the nearest: GRPO may have trained on questions of another difficulty.
    """
    judged = ancestry.nearest(Verdict)
    examined = judged.inputs.get("evaluations.grpo") if judged else None
    return examined.nearest(Questions) if examined else None


def examination(ancestry: Ancestry) -> list[str]:
    """What a release was examined on, and what training had seen of it."""
    verdict, asked = verdict_on(ancestry), examined_on(ancestry)
    if verdict is None:
        return []
    shared = verdict["contamination"]
    where = f", those used for `evaluate` in {named(asked)}" if asked else ""
    judged = ancestry.nearest(Verdict)
    examined = judged.inputs.get("evaluations.grpo") if judged else None
    answers = f"; its answers: {decoded(examined.settings['spec'])}" if examined and examined.settings else ""
    lines = [
        f"- It was examined on {shared['questions']:,} questions of that environment{where}{answers}.",
        f"- Contamination: training had seen {shared['shared_with_training']:,} of them by text, letter case and white "
        f"space aside ({shared['share']:.1%}; {shared['limit']:.1%} were allowed), and {shared['shared_seeds']:,} by "
        "seed.",
    ]
    guards = [each["guard"] for each in verdict["guards"]]
    lines += [f"- Guard rails, which must not fall: {', '.join(map(code, guards))}."] if guards else []
    return lines if shared["clean"] else [*lines, "- That is more than was allowed, so no figure of it says anything."]


def trainings(ancestry: Ancestry) -> list[str]:
    """The settings of each training, the first one first, and what it was trained on."""
    lines: list[str] = []
    known: list[tuple[str, type[Artifact], type[Spec]]] = [
        ("SFT, by TRL's `SFTTrainer`", SftCheckpoint, SftSpec),
        ("GRPO, by TRL's `GRPOTrainer`", GrpoCheckpoint, GrpoSpec),
    ]
    for title, kind, spec in known:
        trained = ancestry.nearest(kind)
        if trained is None or "spec" not in trained.settings:
            continue
        given = {name: (value, _meaning(spec, name)) for name, value in trained.settings["spec"].items()}
        given["seed"] = (trained.settings.get("seed"), "Of order and sampling.")
        rows = [
            {"setting": code(name), "value": code(json.dumps(shown(value))), "what it means": meaning}
            for name, (value, meaning) in given.items()
        ]
        lines += [f"### {title}", "", *_trained_on(trained), markdown_table(rows)]
    return ["## How it was trained", "", *lines] if lines else []


def _trained_on(trained: Ancestry) -> list[str]:
    kept, asked = trained.nearest(KeptRollouts), trained.nearest(Questions)
    if trained.is_a(SftCheckpoint):
        played = played_by(trained)
        who = f" Their teacher: {taught_by(played['teacher'])}." if played else ""
        episodes = kept.counts.get("kept", "an unknown number of") if kept else 0
        return [f"On {named(kept)}, of {episodes} episodes.{who}", ""] if kept else []
    if asked is None:
        return []
    return [f"On the questions for `grpo` in {named(asked)}; the reward is the environment's. {_rung(trained)}", ""]


def _rung(trained: Ancestry) -> str:
    """The settings of GRPO's task, where they are others than those under which the student was made."""
    base, own = trained.nearest(BaseStudent), trained.settings.get("environment") or {}
    taught = (base.settings.get("environment") if base else None) or own
    if own.get("settings") == taught.get("settings"):
        return ""
    settings = code(json.dumps(shown(own["settings"]), ensure_ascii=False))
    return (
        f"The environment's settings were {settings} here: of those that the recipe gives to choose from, the ones "
        "under which the model was right nearest to half of the time."
    )


def _meaning(spec: type[Spec], setting: str) -> str:
    field = spec.model_fields.get(setting)
    return " ".join((field.description or "").split()) if field else ""
