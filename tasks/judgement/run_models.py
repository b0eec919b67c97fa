"""What belongs to each model of a run, and which of them is the one that was trained.

In: values by model name, such as checkpoints, evaluations or rates. Out: the same, which knows its base, its SFT model,
its control and its last model. That one is known by its name, never by its place in a mapping.
"""

from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from apprentice.tasks.artifacts.types import ModelName, models_of_a_run

T = TypeVar("T")
EVALUATIONS = "evaluations"
"""The argument by which a verdict is given its models' evaluations."""


class Models(dict[str, T]):
    """Values by model name, at least one."""

    @property
    def base(self) -> T:
        """Of the model that the training began from."""
        return self[ModelName.BASE]

    @property
    def supervised(self) -> T | None:
        """Of the model that learned from rows; None without SFT."""
        return self.get(ModelName.SFT)

    @property
    def control(self) -> T | None:
        """Of the model that the trainings after it must beat; None if the recipe wants none."""
        return self.get(ModelName.CONTROL)

    @property
    def last_name(self) -> str:
        """The name of the model that was trained last, which is the one that a run releases."""
        return max(self, key=_place)

    @property
    def last(self) -> T:
        """Of the model that was trained last."""
        return self[self.last_name]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        (value,) = get_args(source)
        return core_schema.no_info_after_validator_function(cls, handler.generate_schema(dict[str, value]))


def must_pay(name: str) -> bool:
    """Whether a model must be better than the one before it: SFT alone teaches the form."""
    return _place(name) > 0 and name != ModelName.SFT


def evaluations_of(inputs: Mapping[str, T]) -> Models[T]:
    """Those inputs of a verdict that evaluate its models on the held-out questions, by model; none of another stage."""
    named = {name.partition(".")[::2]: each for name, each in inputs.items()}
    return Models({model: each for (argument, model), each in named.items() if argument == EVALUATIONS})


def _place(name: str) -> int:
    """Of a training; -1 for a model that others are compared with, which is never the last one of a run."""
    trained = models_of_a_run()
    return trained.index(name) if name in trained else -1
