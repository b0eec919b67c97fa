"""The settings of GRPO's curriculum: what a kind of question is, and how fast what is known of it fades.

In: a recipe's section `grpo.curriculum`. Out: validated settings; they enter the key.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from apprentice.tasks.settings.spec import SEARCH_SPACE, Spec

Answers = Annotated[int, Field(ge=0)]


class CurriculumSpec(Spec):
    """Asks the kinds of questions that the model answers right about half of the time more often than others."""

    by: tuple[str, ...] = ()
    """The traits of a question that make its kind, such as `word_len`: those of the report's tables of slices. Default:
    the environment of a mixture, or the dataset of a composite one."""
    levels: Literal["own", "all"] | tuple[str, ...] = Field(default=(), json_schema_extra=SEARCH_SPACE)
    """Reasoning Gym only: train on the levels of its own curricula, each level a kind. `own`: those of the recipe's
    dataset, or of the parts of a composite one or a mixture; `all`: those of all datasets whose curriculum works; or
    the names of some. `curriculum: reasoning_gym` is short for `own`, and a list of names for itself."""
    most_levels: int = Field(default=4, ge=2, json_schema_extra=SEARCH_SPACE)
    """Levels of a dataset, at most: the easiest ones."""
    floor: float = Field(default=0.2, gt=0.0, le=1.0)
    """Share of the questions that all kinds get as often as the questions have them, so that each is asked now and
    then. 1 follows nothing."""
    forget: float = Field(default=0.05, ge=0.0, lt=1.0)
    """Share of what is known that is forgotten in each step, since the model changes; 0.05 remembers about 20 steps."""
    known: dict[str, tuple[Answers, Answers]] = Field(default={})
    """Right and wrong answers by kind before the first step. Filled in from the probe."""

    @field_validator("by", mode="before")
    @classmethod
    def _may_be_one(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given
