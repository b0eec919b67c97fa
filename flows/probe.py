"""Measures how hard GRPO's task is for the SFT model, and chooses the difficulty level that teaches most.

In: the recipe, its questions, the SFT model. Out: the task and the questions that GRPO trains on, with the rates behind
the choice. For a curriculum the task is a mixture of all levels, and the probe gives the first rates of each slice. The
gate does not depend on it: evaluations use the recipe's own environment.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.analysis.difficulty import (
    Difficulty,
    advice_on_groups,
    assessment,
    difficulty,
    difficulty_as_markdown,
    groups_that_differ,
    label_differences,
    nearest_to_half,
    rows_of,
    why_stopped,
)
from apprentice.tasks.artifacts.types import Artifact, Checkpoint, Evaluation, Questions
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.episodes.record import read_episodes
from apprentice.tasks.evaluate import evaluate
from apprentice.tasks.files.question_lists import used_questions
from apprentice.tasks.questions import probe_questions, rung_questions
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.safe_text import code
from apprentice.tasks.settings.grpo_settings import GrpoSpec
from apprentice.tasks.settings.spec import EvaluateSpec, ProbeSpec, Purpose, Window
from apprentice.tasks.statistics.question_kinds import kinds_of, right_and_wrong


class Level(NamedTuple):
    environment: EnvironmentSpec
    questions: Questions


class Probed(NamedTuple):
    """The task that GRPO trains on, and why."""

    levels: list[Level]
    questions_by_level: list[Questions]
    """The questions that the probe played of each level; empty without a probe."""
    played: list[Evaluation]
    chosen: int
    trains_with: GrpoSpec
    """What GRPO trains with. Its signals are the thresholds for too easy and too hard, its group size decides how many
    groups teach, and its curriculum knows what the probe found."""
    groups: list[Evaluation]
    """Groups of answers to the same questions, of the levels on which the model had all correct or none."""
    stopped: str
    """Why GRPO does not start: no group on any level differed; else empty."""

    @property
    def environment(self) -> EnvironmentSpec:
        return self.levels[self.chosen].environment

    @property
    def questions(self) -> Questions:
        return self.levels[self.chosen].questions

    def artifacts(self) -> Iterator[Artifact]:
        yield from (level.questions for level in self.levels)
        yield from (*self.questions_by_level, *self.played, *self.groups)

    def as_json(self) -> dict[str, Any] | None:
        """Return the report's section; None without a probe."""
        if not self.played:
            return None
        found = [difficulty(each, self.trains_with.signals) for each in self.played]
        words = label_differences([level.environment.settings for level in self.levels])
        levels = [
            {"called": called, "settings": level.environment.settings} | each._asdict()
            for level, called, each in zip(self.levels, words, found, strict=True)
        ]
        says = self._says(found[self.chosen], words[self.chosen])
        return {"rungs": levels, "chosen": self.chosen, "says": says, "stopped": self.stopped}

    def _says(self, found: Difficulty, called: str) -> str:
        groups = advice_on_groups(found, self.trains_with.num_generations, self.trains_with.reward)
        judged = f"{assessment(found)} {groups}".rstrip()
        if len(self.levels) == 1:
            return judged
        which = f"rung {self.chosen + 1} of {len(self.levels)} ({code(called)}), whose rate is nearest to half"
        return f"GRPO trains on {which}. {judged}"


def trainable_levels(
    run: RunContext,
    own: Level,
    tasks: list[EnvironmentSpec],
    window: Window,
    regression_questions: dict[str, Questions],
    kinds: tuple[str, ...] | None,
) -> list[Level]:
    """Return the tasks that GRPO can train on, with their questions; without difficulty levels the recipe's own task.

    Excludes all evaluation questions, also those of regression evaluations, from every level. Raises Stop before
    anything is bought or trained: for an invalid level, for one with too few questions, and for a curriculum with one
    slice.

    Args:
        own: The recipe's own task.
        tasks: Those of the difficulty levels; empty without levels.
        kinds: What tells the slices of a curriculum apart; None without one.
    """
    excluded = {"held_out": own.questions, **regression_questions}
    found = [
        Level(
            task,
            own.questions
            if task == own.environment and not regression_questions  # which the recipe's own do not exclude
            else rung_questions.titled(f"Questions of rung {number}")(run, task, window, excluded),
        )
        for number, task in enumerate(tasks, 1)
    ] or [own]
    if kinds is not None:
        [level] = found
        rows = used_questions(run.store.fetch(level.questions), Purpose.TRAIN)
        kinds_of(level.environment, rows, kinds)
    return found


def probe(
    run: RunContext,
    probing: ProbeSpec,
    batch_size: int,
    spec: GrpoSpec,
    levels: list[Level],
    model: Checkpoint,
    seed: int,
) -> Probed:
    """Play every level with the model from which GRPO begins, and report how hard GRPO's task is."""
    if not probing.questions:
        return Probed(levels, [], [], 0, spec, [], "")
    questions_by_level = [probe_questions(run, level.questions, probing.questions) for level in levels]
    plays = EvaluateSpec(  # answers are drawn as in GRPO
        questions=probing.questions,
        decoding="sampled",
        temperature=spec.temperature,
        max_new_tokens=spec.max_completion_length,
        batch_size=batch_size,
        bf16=spec.bf16,
    )
    played = []
    for number, (level, questions) in enumerate(zip(levels, questions_by_level, strict=True), 1):
        title = f"Probe of {model.stage}" + (f" on rung {number}" if len(levels) > 1 else "")
        stage = evaluate.titled(f"{title} in {{environment}}")
        played.append(stage(run, plays, model, level.environment, questions, seed))
    chosen = nearest_to_half([each.accuracy for each in played])
    groups, stopped = [], ""
    if probing.on_hopeless == "stop" and all(each.accuracy in (0.0, 1.0) for each in played):
        in_groups = plays.model_copy(update={"samples": spec.num_generations})
        chosen, groups, stopped = _in_groups(run, in_groups, spec, levels, questions_by_level, played, model, seed)
    if spec.curriculum:
        known = right_and_wrong(read_episodes(run.store.fetch(played[chosen])), spec.curriculum.by)
        curriculum = spec.curriculum.model_copy(update={"known": known | spec.curriculum.known})
        spec = spec.model_copy(update={"curriculum": curriculum})
    found = Probed(levels, questions_by_level, played, chosen, spec, groups, stopped)
    _show(found.as_json() or {})
    return found


def _in_groups(
    run: RunContext,
    plays: EvaluateSpec,
    spec: GrpoSpec,
    levels: list[Level],
    questions_by_level: list[Questions],
    played: list[Evaluation],
    model: Checkpoint,
    seed: int,
) -> tuple[int, list[Evaluation], str]:
    """Answer each question as often as a group of GRPO does, level after level, until a group differs.

    Return GRPO's difficulty level, the evaluations, and why GRPO does not start; empty if a group differs.
    """
    chosen, groups, why = nearest_to_half([each.accuracy for each in played]), [], {}
    for place in sorted(range(len(levels)), key=lambda place: place != chosen):
        stage = evaluate.titled(f"Groups of {model.stage} in {{environment}}")
        groups.append(stage(run, plays, model, levels[place].environment, questions_by_level[place], seed))
        records = read_episodes(run.store.fetch(groups[-1]))
        differ, of = groups_that_differ(records, spec.reward == "exact")
        if differ:
            return place, groups, ""
        why[place] = why_stopped(difficulty(groups[-1], spec.signals), of, spec.num_generations)
    return chosen, groups, why[chosen]


def _show(report: dict[str, Any]) -> None:
    announce.rows("probe", "The SFT model on GRPO's questions, sampled as in GRPO", rows_of(report))
    if report["stopped"]:
        announce.warn(report["stopped"])
    elif report["rungs"][report["chosen"]]["reading"] != "right":
        announce.warn(report["says"].replace("**", "").replace("`", ""))  # before GRPO spends hours on it
    else:
        tell = announce.say if len(report["rungs"]) > 1 else announce.detail  # which rung was chosen is for everybody
        tell(report["says"])
    announce.markdown("difficulty", difficulty_as_markdown(report), "How hard GRPO's task is for the SFT model")
