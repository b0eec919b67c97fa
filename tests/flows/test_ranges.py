"""A number that makes no sense is refused when it is read: every numeric field has its range in its type."""

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from apprentice.envs.catalog import CATALOGUE, environment_class
from apprentice.flows.recipe import Recipe, load_recipe
from apprentice.tasks.errors import Stop
from apprentice.tasks.training_specs import Scheduler

RECIPES = Path(__file__).parent.parent.parent / "deployments" / "recipes"
LOWER = (annotated_types.Ge, annotated_types.Gt, annotated_types.Interval)


def models_in(annotation: Any, found: set[type[BaseModel]]) -> set[type[BaseModel]]:
    """The models that an annotation is made of, and theirs."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in found:
        found.add(annotation)
        for field in annotation.model_fields.values():
            models_in(field.annotation, found)
    for part in get_args(annotation) if get_origin(annotation) is not Literal else ():
        models_in(part, found)
    return found


def numbers_in(annotation: Any, bounds: list[Any]) -> Iterator[tuple[type, list[Any]]]:
    """The numeric types within an annotation, each with the bounds that hold for it."""
    if get_origin(annotation) is Annotated:
        inner, *given = get_args(annotation)
        more = [each for one in given for each in (one.metadata if isinstance(one, FieldInfo) else [one])]
        yield from numbers_in(inner, [*bounds, *more])
    elif get_origin(annotation) in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from numbers_in(part, bounds)
    elif get_origin(annotation) in (list, tuple, dict, set):
        for part in get_args(annotation):
            yield from numbers_in(part, [])
    elif annotation in (int, float):
        yield annotation, bounds


def models() -> list[type[BaseModel]]:
    """The recipe's, with all of its sections, and the settings of every environment."""
    found = models_in(Recipe, set())
    for name in CATALOGUE:
        models_in(environment_class(name).Settings, found)
    return sorted(found, key=lambda each: (each.__module__, each.__qualname__))


def unbounded(model: type[BaseModel]) -> list[str]:
    """Its numeric fields that a negative number, or one that is none, would fit."""
    missing = []
    for name, field in model.model_fields.items():
        for kind, bounds in numbers_in(field.annotation, field.metadata):
            finite = kind is int or model.model_config.get("allow_inf_nan") is False
            finite = finite or any(getattr(each, "allow_inf_nan", None) is False for each in bounds)
            if not finite or not any(isinstance(each, LOWER) for each in bounds):
                missing.append(f"{model.__name__}.{name}")
    return missing


@pytest.mark.parametrize("model", models(), ids=lambda model: f"{model.__module__}.{model.__name__}")
def test_every_numeric_field_has_its_range_in_its_type(model: type[BaseModel]):
    assert unbounded(model) == []


def test_a_field_without_a_range_is_found():
    class Wrong(BaseModel):
        steps: int
        rate: float | None = None
        weights: dict[str, float] = {}
        inner: Annotated[int, annotated_types.Ge(0)] = 0

    assert unbounded(Wrong) == ["Wrong.steps", "Wrong.rate", "Wrong.weights"]


@pytest.mark.parametrize(
    "override",
    [
        *("grpo.max_steps=-5", "grpo.max_steps=0", "grpo.num_generations=1", "grpo.temperature=0", "grpo.beta=-0.1"),
        *("sft.learning_rate=-1", "sft.learning_rate=.nan", "sft.epochs=0", "sft.epochs=.inf", "sft.max_rows=0"),
        *("sft.batch_size=0", "sft.warmup_steps=-1", "sft.adam_beta2=1", "sft.scheduler=cosin"),
        *("evaluate.batch_size=0", "evaluate.max_new_tokens=0", "evaluate.temperature=-1"),
        *("student.build.heads=3", "student.build.layers=0", "lengths.margin=-1", "lengths.multiple_of=0"),
        *("teacher.max_tokens=0", "teacher.temperature=-1", "env.patience=.inf"),
    ],
)
def test_a_number_outside_of_its_range_is_named_when_the_recipe_is_read(override: str):
    with pytest.raises(Stop) as stop:
        load_recipe(RECIPES / "toy.yaml", [override])
    path = override.partition("=")[0]
    said = [line for line in str(stop.value).splitlines() if line.startswith("  ")]
    assert len(said) == 1
    assert said[0].strip().startswith((f"{path}:", f"{path.rpartition('.')[0]}:"))


def test_the_schedulers_are_transformers_own():
    from transformers import SchedulerType

    assert set(get_args(Scheduler)) <= {each.value for each in SchedulerType}
