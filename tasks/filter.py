"""Keeps the rollouts that the student learns from.

In: `Rollouts` and the evaluation's `Questions`. Out: `KeptRollouts`: kept.jsonl and samples.md. An episode is kept when
its reward is 1.0, every call is valid, no reasoning leaked into the text, and its question is not in the evaluation
set. For a student that thinks, its thoughts must be sound instead (analysis/thought_faults.py).
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from apprentice.tasks.analysis.outcomes import why_dropped
from apprentice.tasks.analysis.thought_faults import Check, check_of
from apprentice.tasks.artifacts.types import (
    Checkpoint,
    KeptRollouts,
    Questions,
    Rollouts,
)
from apprentice.tasks.engine.stage import Drawn, StageContext, stage
from apprentice.tasks.episodes.record import turns_of
from apprentice.tasks.episodes.thinking import THOUGHT
from apprentice.tasks.judgement.contamination import held_out_texts
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.safe_text import code, fenced

SAMPLES = 3
DROPPED = "dropped.json"
"""The first episode that was dropped for each cause: its seed, and its assistant's turns."""


class Dropped:
    """How many episodes were dropped for each cause, and the first one of each."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._examples: dict[str, dict[str, Any]] = {}

    def note(self, cause: str, episode: dict[str, Any]) -> None:
        self.counts[cause] += 1
        self._examples.setdefault(cause, {"seed": episode["seed"], "turns": turns_of(episode["messages"])})

    def write(self, folder: Path) -> None:
        (folder / DROPPED).write_text(json.dumps(self._examples, ensure_ascii=False, indent=1) + "\n")


@stage(produces=KeptRollouts, version=2, title="Filter by reward", drawn=Drawn("Filter", "kept", "kept"))
def filter_rollouts(context: StageContext, rollouts: Rollouts, questions: Questions) -> dict[str, Any]:
    """Keeps the episodes that SFT trains on. Raises Stop when none is left."""
    return _filter(context, rollouts, questions)


@stage(produces=KeptRollouts, version=4, title="Filter by reward and thought", drawn=Drawn("Filter", "kept", "kept"))
def filter_thoughts(
    context: StageContext, rollouts: Rollouts, questions: Questions, student: Checkpoint
) -> dict[str, Any]:
    """Keeps the episodes that SFT trains a student that thinks on, and writes an example of each cause to dropped.json.

    Raises Stop when none is left.
    """
    return _filter(context, rollouts, questions, check_of(load_tokenizer(context.fetch(student), context.run.trusted)))


def _filter(
    context: StageContext, rollouts: Rollouts, questions: Questions, thoughts: Check | None = None
) -> dict[str, Any]:
    evaluation_texts = held_out_texts(context.fetch(questions))
    dropped = Dropped()
    mixed: dict[str, Counter[bool]] = {}
    samples: list[dict[str, Any]] = []
    kept, without, rewards = 0, 0, []
    with (
        (context.fetch(rollouts) / "rollouts.jsonl").open() as episodes,
        (context.out / "kept.jsonl").open("w") as out,
    ):
        for line in episodes:
            episode = json.loads(line)
            cause, turns = why_dropped(episode, evaluation_texts, thoughts), turns_of(episode["messages"])
            rewards += [episode["reward"]] if episode["reward"] is not None and not episode["failed_at"] else []
            mixed.setdefault(episode["environment"], Counter())[cause is None] += 1
            if cause is not None:
                dropped.note(cause, episode)
                continue
            kept += 1
            without += not any(turn.get(THOUGHT) for turn in turns)
            out.write(line)
            samples += [episode] if len(samples) < SAMPLES else []
    _announce(rollouts.episodes, kept, dropped.counts, mixed)
    if thoughts is not None:
        dropped.write(context.out)
        if without:
            announce.warn(
                f"{without} of the {kept} kept episodes have no thought, and SFT learns them without one. Where an "
                "endpoint hides its reasoning, only what it writes beside the call can be learned."
            )
    if not kept:
        worst = ", ".join(f"{count} × {cause}" for cause, count in dropped.counts.most_common(3))
        least, best = min(rewards, default=0.0), max(rewards, default=0.0)
        earned = f"; rewards from {least:g} to {best:g}" if rewards else ""
        rescaled = f"Where {best:g} is a good reward, say so: environment.scale: [{min(0.0, least):g}, {best:g}]. "
        raise Stop(
            f"The filter kept none of the {rollouts.episodes} episodes ({worst}{earned}).",
            f"{rescaled if best > min(0.0, least) else ''}Make the task easier (environment.settings), choose a "
            f"stronger teacher, or inspect the rollouts: {context.fetch(rollouts) / 'rollouts.jsonl'}",
        )
    text = as_samples(samples)
    (context.out / "samples.md").write_text(text)
    announce.detail(text)
    announce.markdown("kept-samples", text.strip(), "Three of the kept rollouts, as the student will see them")
    return {"episodes": rollouts.episodes, "kept": kept, "dropped": dict(sorted(dropped.counts.items()))}


def _announce(episodes: int, kept: int, dropped: Counter[str], mixed: dict[str, Counter[bool]]) -> None:
    rows = [{"rollouts": "kept", "count": kept, "share": f"{kept / episodes:.1%}"}]
    rows += [
        {"rollouts": f"dropped: {cause}", "count": count, "share": f"{count / episodes:.1%}"}
        for cause, count in dropped.most_common()
    ]
    for name, own in mixed.items() if len(mixed) > 1 else ():
        rows.append({"rollouts": f"of {name}: kept", "count": own[True], "share": f"{own[True] / own.total():.1%}"})
    announce.rows("filter-rates", f"Filter: {kept} of {episodes} episodes kept", rows)


def as_samples(episodes: list[dict[str, Any]]) -> str:
    """The first episodes as Markdown."""
    return "\n\n".join(_as_markdown(episode) for episode in episodes[:SAMPLES]) + "\n"


def _as_markdown(episode: dict[str, Any]) -> str:
    lines = [f"**Seed {episode['seed']}, reward {episode['reward']}**", ""]
    thinks = any(message.get(THOUGHT) for message in episode["messages"])
    for message in episode["messages"]:
        thought, content = message.get(THOUGHT) or "", message.get("content") or ""
        calls = [
            code(f"{call['function']['name']}({call['function']['arguments']})")
            for call in message.get("tool_calls") or []
        ]
        said = f"- *{message['role']}*:"
        if thinks and (thought or "\n" in content):  # lines of their own could be headings or lists
            blocks = [fenced(each) for each in (thought, content) if each]
            lines.append("\n".join([said, *blocks, *filter(None, [" ".join(calls)])]).replace("\n", "\n  "))
        else:
            lines.append(f"{said} {' '.join([content, *calls]).strip()}")
    return "\n".join(lines)
