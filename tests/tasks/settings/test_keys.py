"""Law 10 for every setting: it changes the key of what it makes, unless it stands among the exceptions below.

The models are walked, so a new setting is held too. A field that is marked operational (speed, patience, cost) must be
added here: it is a promise that the result stays the same.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import apprentice.flows.recipe.sections
import apprentice.tasks.settings as settings
import apprentice.tasks.trainings
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.player import TextCall
from apprentice.envs.source import digest_of_script
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.engine.stage import StageContext, stage
from apprentice.tasks.settings.endpoint import TeacherSpec
from apprentice.tasks.settings.generation_engine import GenerationSpec
from apprentice.tasks.settings.grpo_settings import GrpoSpec
from apprentice.tasks.settings.spec import Spec, ThinkingSpec, Window

OF_AN_ENDPOINT = {
    *(
        "key_block",
        "key_variable",
        "key_header",
        "headers",
        "stream",
        "moved",
        "timeout",
        "patience",
        "prices",
        "budget_usd",
    ),
    *("requests_per_minute", "tokens_per_minute"),
}
OUT_OF_THE_KEY = {
    "CollectSpec": {"shards", "max_refused"},
    "CurriculumSpec": {"levels", "most_levels"},  # the mixture of these levels enters the key
    "EvaluateSpec": {"batch_size", "max_failed", "base_questions", "thinking", "vote"},  # what else is evaluated
    "GenerationSpec": {
        *("mode", "gpu_memory_utilization", "max_model_length", "tensor_parallel_size", "enable_sleep_mode"),
        *("server_base_url", "server_timeout", "group_port"),
    },
    "GrpoSpec": {
        *("accelerate_config", "gradient_checkpointing", "liger", "checkpoint_steps", "rollouts"),
        "auto_difficulty",  # the environment of the chosen rung enters the key
    },
    "DpoSpec": {"accelerate_config", "gradient_checkpointing", "liger", "checkpoint_steps"},
    "SftSpec": {"accelerate_config", "gradient_checkpointing", "liger", "checkpoint_steps", "control", "share_prompts"},
    "EndpointSpec": OF_AN_ENDPOINT,
    "LocalEndpoint": OF_AN_ENDPOINT,
    "TeacherSpec": {*OF_AN_ENDPOINT, "base_url"},  # a server may come back at another address
    "TrainerSpec": {"accelerate_config", "gradient_checkpointing", "liger", "checkpoint_steps"},
}
"""What changes speed, patience or cost and not the result."""


def every_spec() -> list[type[Spec]]:
    """Every settings model, of the stages and of the recipe."""
    for module in pkgutil.iter_modules(settings.__path__):
        importlib.import_module(f"{settings.__name__}.{module.name}")
    assert apprentice.flows.recipe.sections
    found, waiting = [], [Spec]
    while waiting:
        waiting += (of := waiting.pop()).__subclasses__()
        found += [of] if of is not Spec and of.__module__.startswith("apprentice.") else []
    return sorted(found, key=lambda each: each.__name__)


def values_of(annotation: Any) -> Iterator[Any]:
    """Two or more values of a type."""
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        made = some(annotation)
        name = next(iter(set(annotation.model_fields) - OUT_OF_THE_KEY.get(annotation.__name__, set())))
        yield from (made, changed(made, name))
    elif isinstance(annotation, type) and issubclass(annotation, EnvironmentSpec):
        yield from (EnvironmentSpec(name="echo"), EnvironmentSpec(name="echo", settings={"words": 4}))
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from (annotation(), annotation.model_validate({"url": "http://there"}))
    elif get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif annotation in EXAMPLES:
        yield from EXAMPLES[annotation]
    elif get_origin(annotation) is list:
        yield from ([], [{"x": 1}] if get_args(annotation) == (dict[str, Any],) else ["x"])
    elif get_origin(annotation) is tuple:
        yield from ((1,), (2,))
    elif get_origin(annotation) is dict:
        of = get_args(annotation)[1]
        yield from ({}, {"x": (1, 2) if get_origin(of) is tuple else "x" if of is str else 1.0})
    else:
        for part in get_args(annotation):  # a union, or an annotated type
            if part in EXAMPLES or isinstance(part, type) or get_args(part):
                yield from values_of(part)


EXAMPLES: dict[Any, tuple[Any, ...]] = {
    bool: (False, True),
    int: (1, 2),
    float: (0.25, 0.5),
    str: ("a", "b"),
    tuple[str, ...]: ((), ("a",)),
    Path: (Path("a"), Path("b")),
    type(None): (None,),
}


def some(of: type[Spec]) -> Any:
    """An instance with values for what has no default, whether or not they fit together."""
    given = {
        name: field.get_default(call_default_factory=True) if not field.is_required() else first(field)
        for name, field in of.model_fields.items()
    }
    return of.model_construct(**given)


def first(field: FieldInfo) -> Any:
    return next(values_of(field.annotation))


def changed(spec: Any, name: str) -> Any:
    now = getattr(spec, name)
    other = next(value for value in values_of(type(spec).model_fields[name].annotation) if value not in (now, None))
    return spec.model_copy(update={name: other})


FIELDS = [(spec, name) for spec in every_spec() for name in spec.model_fields]


def test_the_walk_finds_the_settings_of_every_stage():
    names = {spec.__name__ for spec in every_spec()}
    assert {
        "SftSpec",
        "GrpoSpec",
        "EvaluateSpec",
        "TeacherSpec",
        "GateSpec",
        "StudentSpec",
        "RegressionSpec",
    } <= names
    assert len(FIELDS) > 150
    assert OUT_OF_THE_KEY.keys() <= names


@pytest.mark.parametrize("spec", every_spec(), ids=lambda spec: spec.__name__)
def test_a_setting_changes_the_key_unless_it_is_an_exception(spec: type[Spec]):
    before = some(spec)
    kept = {name for name in spec.model_fields if changed(before, name).in_key() == before.in_key()}
    assert kept == OUT_OF_THE_KEY.get(spec.__name__, set())


@pytest.mark.parametrize("spec", every_spec(), ids=lambda spec: spec.__name__)
def test_what_is_out_of_the_key_is_out_of_the_record_too_but_for_what_was_chosen_from(spec: type[Spec]):
    before = some(spec)
    kept = {name for name in spec.model_fields if changed(before, name).in_record() == before.in_record()}
    chosen_from = {"auto_difficulty", "levels", "most_levels"} | ({"base_url"} if spec is TeacherSpec else set())
    assert kept == OUT_OF_THE_KEY.get(spec.__name__, set()) - chosen_from


@pytest.mark.parametrize("spec", every_spec(), ids=lambda spec: spec.__name__)
def test_the_key_of_a_stage_is_changed_by_what_its_settings_say(spec: type[Spec]):
    @stage(produces=Questions, version=1, title="toy")
    def toy(context: StageContext, given: Spec) -> dict[str, Any]:
        raise AssertionError("not run here")

    before = some(spec)
    kept = {name for name in spec.model_fields if toy.key((changed(before, name),), {}) == toy.key((before,), {})}
    assert kept == OUT_OF_THE_KEY.get(spec.__name__, set())


def test_an_operational_setting_of_a_section_is_in_no_key_of_the_whole():
    short, long = (
        GrpoSpec(generation=GenerationSpec(engine="vllm", mode="server", server_timeout=each)) for each in (10.0, 20.0)
    )
    assert short.in_key() == long.in_key() != GrpoSpec().in_key()


def test_a_window_of_seeds_changes_the_key_of_a_stage():
    @stage(produces=Questions, version=1, title="toy")
    def toy(context: StageContext, window: Window) -> dict[str, Any]:
        raise AssertionError("not run here")

    assert len({toy.key((Window(start=0, size=size),), {}) for size in (1, 2)}) == 2


def test_how_scripts_err_is_in_the_key_of_a_scripted_teacher_and_in_no_models():
    script = TeacherSpec(scripted_error_rate=0.1)
    assert script.in_key()["script"] == digest_of_script()
    assert TeacherSpec.model_validate(script.model_dump() | {"script": "of older code"}) == script
    thinks = script.teaching(ThinkingSpec(mode="text"))
    assert thinks.in_key()["script"] == digest_of_script(shows_working=True) != digest_of_script()
    assert TeacherSpec.model_validate(thinks.model_dump()) == thinks
    assert "script" not in TeacherSpec(model="gpt-5-mini").in_key()
    assert "script" not in TeacherSpec.model_validate({"model": "gpt-5-mini", "script": script.script}).in_key()


def test_every_part_of_a_task_but_where_its_folder_is_changes_the_key_of_a_stage(chain_sum: EnvironmentSpec):
    @stage(produces=Questions, version=1, title="toy")
    def toy(context: StageContext, environment: EnvironmentSpec) -> dict[str, Any]:
        raise AssertionError("not run here")

    before = toy.key((chain_sum,), {})
    others: dict[str, Any] = dict.fromkeys(EnvironmentSpec.model_fields, "another")
    others |= {"settings": {"x": 1}, "say": TextCall(tool="respond", argument="message")}
    same = {name for name in others if toy.key((chain_sum.model_copy(update={name: others[name]}),), {}) == before}
    assert same == {"path"}
