"""The questions of a task that is easier or harder than the recipe's own, and those that a probe asks of either.

In: the environment under a rung's settings, GRPO's seeds, what the recipe's examinations ask. Out: `Questions`.
Why: GRPO may train on a rung instead of the recipe's own task, and the same model is then examined on the latter. So
what any examination asks is kept out of every rung by its text, as `questions` keeps it out of the recipe's own task.
"""

from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.artifacts import Questions
from apprentice.tasks.errors import Stop
from apprentice.tasks.questions import LEAST_FRESH, ask, read_questions, same_text, write_questions
from apprentice.tasks.specs import Window
from apprentice.tasks.stage import Bench, stage


@stage(gives=Questions, version=1, title="Questions of a rung")
def rung_questions(
    bench: Bench, environment: EnvironmentSpec, window: Window, kept_out: dict[str, Questions]
) -> dict[str, Any]:
    """GRPO's questions under a rung's settings. Raises Stop as `questions` does, or when too few are left.

    Args:
        kept_out: Whose examined questions are not trained on, by any name.
    """
    examined = {same_text(row["question"]) for each in kept_out.values() for row in _used(bench, each, "evaluate")}
    rows = [
        {"purpose": "grpo", "seed": seed, "question": text, "used": same_text(text) not in examined}
        for seed, text in sorted(ask(bench, environment, window.seeds(), "grpo.auto_difficulty").items())
    ]
    left = sum(row["used"] for row in rows)
    if left < LEAST_FRESH * len(rows):
        raise Stop(
            f"A rung of grpo.auto_difficulty is too small: {len(rows) - left} of its {len(rows)} seeds ask what the "
            f"evaluation or a guard rail asks. Its settings: {environment.settings}.",
            "Make it wider, leave it out, or ask for fewer evaluation questions (evaluate.questions).",
        )
    write_questions(bench.out, rows)
    return {"collect": 0, "grpo": left, "evaluate": 0, "dropped_from_grpo": len(rows) - left}


@stage(gives=Questions, version=1, title="Questions of the probe")
def probe_questions(bench: Bench, questions: Questions, examined: int) -> dict[str, Any]:
    """The first `examined` distinct questions that GRPO would train on, or as many as there are, to be played."""
    chosen: dict[str, dict[str, Any]] = {}
    for row in _used(bench, questions, "grpo"):
        if len(chosen) < examined:
            chosen.setdefault(same_text(row["question"]), row | {"purpose": "evaluate"})
    write_questions(bench.out, chosen.values())
    return {"collect": 0, "grpo": 0, "evaluate": len(chosen), "dropped_from_grpo": 0}


def _used(bench: Bench, questions: Questions, purpose: str) -> list[dict[str, Any]]:
    return [row for row in read_questions(bench.fetch(questions), purpose) if row["used"]]
