"""What an editor underlines while a recipe is typed is what a run would refuse, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError

from apprentice.deployments.new_project import editor_schema
from apprentice.flows.recipe.location import packaged, recipe_file

WHOLE = """
name: mine
environment: {name: echo}
student: {build: {}}
windows: {collect: {size: 9}, grpo: {size: 9}, evaluate: {size: 9}}
"""


@pytest.fixture(scope="module")
def schema() -> Draft7Validator:
    return Draft7Validator(json.loads(editor_schema()))


def as_an_editor_reads(text: str) -> Any:
    """By YAML 1.2, as the language servers of editors do."""
    return YAML(typ="safe", pure=True).load(text)


@pytest.mark.parametrize("name", packaged())
def test_every_recipe_of_the_package_is_accepted(schema: Draft7Validator, name: str):
    schema.validate(as_an_editor_reads(recipe_file(Path(name)).read_text()))


@pytest.mark.parametrize(
    "more",
    [
        "sft:",
        "grpo: off",
        "sft: false",
        "gate:\n  # all by default\n",
        "grpo: {learning_rate: 1e-6}",
        "grpo: {curriculum: reasoning_gym}",
        "teacher: {model: mine, temperature: null}",
        "guards: [{name: sums, environment: {path: ./mine}}]",
    ],
)
def test_what_a_run_accepts_is_not_underlined(schema: Draft7Validator, more: str):
    schema.validate(as_an_editor_reads(WHOLE + more))


@pytest.mark.parametrize(
    "more",
    [
        "sfd: {epochs: 2}",
        "sft: {epoch: 2}",
        "sft: {epochs: yes}",
        "sft: {batch_size: 1:30}",
        "sft: {batch_size: 0}",
        "grpo: {learning_rate: fast}",
        "gate: {at_least: 45}",
        "probe: {on_hopeless: stay}",
        "seed: 1.5",
        "grpo: true",
    ],
)
def test_what_a_run_refuses_is_underlined(schema: Draft7Validator, more: str):
    assert list(schema.iter_errors(as_an_editor_reads(WHOLE + more)))


def test_a_key_twice_is_an_error_of_the_file_itself():
    with pytest.raises(DuplicateKeyError):
        as_an_editor_reads(WHOLE + "seed: 1\nseed: 2\n")
