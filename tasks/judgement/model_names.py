"""The names that people read for the models of a run: in tables, and in sentences.

In: a model's name in code. Out: its label, or its name in a sentence.
"""

from apprentice.tasks.artifacts.types import ModelName, models_of_a_run

LABELS: dict[str, str] = {ModelName.CONTROL: "SFT to its best"}
"""What people read in place of a model's name."""
NAMES: dict[str, str] = {
    ModelName.BASE: "the untrained student",
    ModelName.CHAMPION: "the champion",
    "teacher": "Teacher",
}


def label(model: str) -> str:
    return LABELS.get(model, model)


def named(model: str) -> str:
    """The name of a model in a sentence."""
    return NAMES.get(model, model.upper() if model in models_of_a_run() else label(model))
