"""How a dataset was made, in sentences: by which teacher, for which seeds, at what cost; by which examination.

In: the ancestry of an artifact that is being made. Out: sentences in Markdown, and the settings of a teacher's play.
"""

from typing import Any

from apprentice.tasks.artifacts.types import Checkpoint, Evaluation, KeptRollouts, Questions, Rollouts
from apprentice.tasks.cards.ancestry import Ancestry
from apprentice.tasks.cards.sections import decoded, named, shown, taught_by
from apprentice.tasks.reporting.markdown import code


def made_how(ancestry: Ancestry) -> list[str]:
    if ancestry.is_a(Rollouts, KeptRollouts):
        played = played_by(ancestry)
        return _by_teacher(played) + (_spent(ancestry) if ancestry.is_a(KeptRollouts) else []) if played else []
    if ancestry.is_a(Questions):
        return _by_windows(ancestry)
    return _by_examination(ancestry) if ancestry.is_a(Evaluation) else []


def played_by(ancestry: Ancestry) -> dict[str, Any] | None:
    """The settings by which a teacher played these episodes; None for what is no rollouts, or whose are gone."""
    rollouts = ancestry.nearest(Rollouts)
    return rollouts.settings if rollouts and "teacher" in rollouts.settings else None


def _by_teacher(played: dict[str, Any]) -> list[str]:
    teacher, window = played["teacher"], played["window"]
    how = f"Temperature {teacher['temperature']}"
    if (rate := teacher["scripted_error_rate"]) is not None:
        how = f"A script knows the answers, is wrong by design on {rate:.1%} of the questions, and has no temperature"
    return [
        f"The teacher: {taught_by(teacher)}.",
        f"{how}; at most {teacher['max_tokens']} tokens an answer; a malformed answer is asked for "
        f"{played['spec']['asks']} times at most.",
        f"The seeds: {_seeds(window)}, one episode each.",
        "The reward is the environment's; no person and no model labelled anything.",
    ]


def _spent(ancestry: Ancestry) -> list[str]:
    """What the rollouts cost from which these were kept."""
    rollouts = ancestry.nearest(Rollouts)
    if rollouts is None or "cost_usd" not in rollouts.counts:
        return []
    of_it = rollouts.counts
    cost = f"{of_it['cost_usd']:.4f} USD" if of_it["cost_usd"] else "no cost that was stated"
    return [
        f"All {of_it['episodes']:,} episodes took {of_it['prompt_tokens']:,} prompt tokens and "
        f"{of_it['completion_tokens']:,} completion tokens of the teacher, and {cost}; {of_it['failed']:,} failed."
    ]


def _by_windows(ancestry: Ancestry) -> list[str]:
    settings, source = ancestry.settings, ancestry.inputs.get("questions")
    if source:  # a probe's
        return [f"The first {settings['examined']} distinct questions for `grpo` in {named(source)}."]
    if "window" in settings and "examined" not in settings:  # a rung's
        kept_out = ", ".join(map(named, ancestry.inputs.values()))
        return [f"`grpo`: seeds {_seeds(settings['window'])}.", f"Kept out by their text: what is asked in {kept_out}."]
    windows = settings.get("windows") or ({"evaluate": settings["window"]} if "window" in settings else {})
    lines = [f"{code(purpose)}: seeds {_seeds(window)}." for purpose, window in windows.items()]
    return [*lines, f"The first {settings['examined']} distinct questions of `evaluate` are examined."] if lines else []


def _by_examination(ancestry: Ancestry) -> list[str]:
    settings, model, asked = ancestry.settings, ancestry.nearest(Checkpoint), ancestry.nearest(Questions)
    spec, endpoint = settings.get("spec"), settings.get("endpoint")
    if spec is None:
        return []
    lines = [f"The model: {named(model)}."] if model else []
    if endpoint:
        who = taught_by(endpoint)
        lines = [f"The model: {who}, as of {code(str(shown(settings['as_of'])))}."]
    lines += [f"The questions: {named(asked)}."] if asked else []
    meant = "Accuracy is the share of episodes with reward 1.0; partial credit counts in the mean reward only."
    if spec["protocol"] == "tutorial":
        meant = "For comparison with a tutorial's figures only: what is called accuracy here is the mean reward."
    return [
        *lines,
        f"Its answers: {decoded(spec)}.",
        f"The protocol: `{spec['protocol']}`. {meant}",
    ]


def _seeds(window: dict[str, int]) -> str:
    return f"{window['start']:,} to {window['start'] + window['size'] - 1:,} ({window['size']:,})"
