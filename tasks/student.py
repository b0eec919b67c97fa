"""The student before training: an existing model (student_model.py), or a small Qwen3 built here from a seed.

In: the recipe's student settings, the task's prompt, the questions. Out: `BaseStudent`.
The built student has its own tokenizer: a model of a million weights has no capacity to spare for copying the prompt.
Letters and digits are single tokens; every text span that is the same in all episodes is one token.
"""

from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.player import Player
from apprentice.tasks.artifacts.alike import made_alike
from apprentice.tasks.artifacts.types import BaseStudent, ModelName, Questions
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import Drawn, StageContext, stage
from apprentice.tasks.files.question_lists import read_questions
from apprentice.tasks.models.checkpoints import save
from apprentice.tasks.models.student_model import built_model, from_model
from apprentice.tasks.models.tokenizer import load_tokenizer, tokenizer_of
from apprentice.tasks.settings.spec import Purpose, StudentSpec


@stage(produces=BaseStudent, version=5, title="Student", drawn=Drawn("Student", is_aside=True))
def student(
    context: StageContext, spec: StudentSpec, environment: EnvironmentSpec, questions: Questions, seed: int
) -> dict[str, Any]:
    """Publishes the model and a tokenizer prepared for training."""
    if spec.build is not None:
        rows = read_questions(context.fetch(questions), Purpose.COLLECT)
        tokenizer = tokenizer_of(_by_part(environment.make(), rows), spec.thinking)
        parameters = save(built_model(spec.build, tokenizer, seed), tokenizer, context.out)["parameters"]
    else:
        parameters = from_model(spec, context.out)
    return {"parameters": parameters, "stage": ModelName.BASE}


def _by_part(instance: Player, rows: list[dict[str, Any]]) -> list[tuple[Player, list[str]]]:
    return [
        (part, [row["question"] for row in rows if instance.part(row["seed"]) is part]) for part in instance.parts()
    ]


def built_alike(
    run: RunContext, spec: StudentSpec, environment: EnvironmentSpec, questions: Questions, seed: int
) -> BaseStudent | None:
    """A student that was built from the same seed and settings and reads the same tokens; None without one.

    Its weights depend on nothing else: not on how many questions there are, nor on the version of the rewards.
    """
    known = {"stage": student.name, "version": student.version, "spec": spec.in_key(), "seed": seed}
    earlier = list(made_alike(run.store, BaseStudent, known))
    if not earlier:
        return None
    rows = read_questions(run.store.fetch(questions), Purpose.COLLECT)
    own = _read_by(tokenizer_of(_by_part(environment.make(), rows), spec.thinking))
    return next((each for each, folder in earlier if _read_by(load_tokenizer(folder)) == own), None)


def _read_by(tokenizer: Any) -> tuple[Any, ...]:
    return tokenizer.get_added_vocab(), tokenizer.chat_template
