"""Asks the environment for the text of every question in the three seed windows.

In: the task and the windows. Out: `Questions`: questions.jsonl (purpose, seed, question, used).
Why: a question is its seed, but small problem spaces repeat questions under different seeds. With the texts known
beforehand, what stands in the evaluation set can be kept out of training, and a space that is too small is refused
before anything was bought or trained.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.session import Refused, SessionLost
from apprentice.tasks import announce
from apprentice.tasks.artifacts import Questions
from apprentice.tasks.errors import Stop
from apprentice.tasks.specs import SeedWindows, Window
from apprentice.tasks.stage import Bench, stage

LEAST_FRESH = 0.5
"""Share of a training window that must be left when the evaluation's questions are taken out."""


@stage(gives=Questions, version=2, title="Questions of the seed windows")
def questions(bench: Bench, environment: EnvironmentSpec, windows: SeedWindows, examined: int) -> dict[str, Any]:
    """Writes down the questions; `examined` distinct ones of the evaluation window become the evaluation set.

    Raises Stop when the environment refuses the configuration, cannot be reached, or has too few questions.
    """
    texts = ask(bench, environment, [seed for _, window in windows for seed in window.seeds()])
    examination: dict[str, int] = {}
    for seed in windows.evaluate.seeds():
        if len(examination) < examined:
            examination.setdefault(same_text(texts[seed]), seed)
    rows = []
    for purpose, window in windows:
        for seed in window.seeds():
            text = texts[seed]
            used = _is_used(purpose, seed, examination.get(same_text(text)))
            rows.append({"purpose": purpose, "seed": seed, "question": text, "used": used})
    _check_space(windows, examination, rows, examined)
    write_questions(bench.out, rows)
    used_by = {purpose: sum(row["used"] for row in rows if row["purpose"] == purpose) for purpose, _ in windows}
    return {
        "collect": windows.collect.size,
        "grpo": used_by["grpo"],
        "evaluate": used_by["evaluate"],
        "dropped_from_grpo": windows.grpo.size - used_by["grpo"],
    }


@stage(gives=Questions, version=1, title="Questions of an examination")
def exam(bench: Bench, environment: EnvironmentSpec, window: Window, examined: int) -> dict[str, Any]:
    """The first `examined` distinct questions of one window, or as many as there are. Raises Stop as `questions`."""
    chosen: dict[str, dict[str, Any]] = {}
    for seed, text in sorted(ask(bench, environment, window.seeds()).items()):
        if len(chosen) < examined:
            chosen.setdefault(same_text(text), {"purpose": "evaluate", "seed": seed, "question": text, "used": True})
    write_questions(bench.out, chosen.values())
    return {"collect": 0, "grpo": 0, "evaluate": len(chosen), "dropped_from_grpo": 0}


def same_text(question: str) -> str:
    """Equal for questions that differ only in case and in white space: who has seen one has seen the other."""
    return " ".join(question.casefold().split())


def write_questions(out: Path, rows: Iterable[dict[str, Any]]) -> None:
    """A line a row: purpose, seed, question, used."""
    with (out / "questions.jsonl").open("w") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read_questions(folder: Path, purpose: str) -> list[dict[str, Any]]:
    """The rows of one purpose: seed, question, and whether it is used."""
    with (folder / "questions.jsonl").open() as file:
        return [row for line in file if (row := json.loads(line))["purpose"] == purpose]


def _is_used(purpose: str, seed: int, examined: int | None) -> bool:
    """`examined`: the seed under which the evaluation asks this question, if it does."""
    return examined == seed if purpose == "evaluate" else examined is None


def ask(
    bench: Bench, environment: EnvironmentSpec, seeds: Sequence[int], named: str = "environment.settings"
) -> dict[int, str]:
    """The question of each seed. Raises Stop when the environment refuses the task, or cannot be reached.

    `named`: where the recipe has the task's settings.
    """

    def reset(instance: ToolEnvironment, seed: int) -> str:
        return instance._ask(seed)

    texts = {}
    server = bench.work.servers.environment(environment.name)
    try:
        with (
            announce.progress("questions", len(seeds)) as advance,
            EnvironmentPool(environment, server, say=announce.warn) as pool,
        ):
            for seed, text in pool.map(reset, seeds):
                texts[seed] = text
                advance(1)
    except Refused as refused:
        raise Stop(f"The environment refused the task: {refused}", f"Correct {named} in the recipe.") from refused
    except SessionLost as lost:
        raise Stop(
            f"The environment's server gave no question: {lost}",
            "See that it runs and serves this environment (apprentice env check says so), then run again.",
        ) from lost
    return texts


def _check_space(windows: SeedWindows, examination: dict[str, int], rows: list[dict[str, Any]], examined: int) -> None:
    distinct = len({same_text(row["question"]) for row in rows})
    advice = "Make the task wider (environment.settings), or ask for fewer evaluation questions (evaluate.questions)."
    if len(examination) < examined:
        raise Stop(
            f"The problem space is too small: {windows.evaluate.size} seeds gave only {len(examination)} distinct "
            f"questions, and the evaluation needs {examined} ({distinct} distinct ones in all windows).",
            advice,
        )
    for purpose in ("collect", "grpo"):
        window = [row for row in rows if row["purpose"] == purpose]
        fresh = sum(row["used"] for row in window)
        if fresh < LEAST_FRESH * len(window):
            raise Stop(
                f"The problem space is too small: {len(window) - fresh} of the {len(window)} seeds for {purpose} ask "
                f"what the evaluation asks ({distinct} distinct questions in all windows).",
                advice,
            )
