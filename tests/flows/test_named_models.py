"""Whom `apprentice evaluate --model` means, whose key an endpoint is sent, and whose code may run."""

from pathlib import Path
from typing import Any

import pytest

from apprentice.flows.named_models import check_addresses, endpoint_named, model_named, trusted_with
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.endpoint import TeacherSpec, ThoughtsSpec
from apprentice.tasks.settings.spec import ThinkingSpec
from tests.flows.commands import TOY

COMMIT = "c1899de289a04d12100db370d81485cdf75e47ca"


def recipe_with(**teacher: Any) -> Recipe:
    return load_recipe(TOY, []).model_copy(update={"teacher": TeacherSpec(**teacher) if teacher else None})


OWN = {"model": "big", "base_url": "https://models.example/v1", "key_variable": "OUR_KEY", "max_tokens": 77}


@pytest.mark.parametrize(
    ("teacher", "url", "key"),
    [
        (OWN, "https://models.example/v1", "OUR_KEY"),
        (OWN, "https://MODELS.example/v2", "OUR_KEY"),
        (OWN, "https://other.example/v1", "ENDPOINT_API_KEY"),
        (OWN, "https://models.example.evil.example/v1", "ENDPOINT_API_KEY"),
        (OWN, "https://evil.example/models.example/v1", "ENDPOINT_API_KEY"),
        ({"model": "gpt", "key_variable": "OUR_KEY"}, "https://api.openai.com/v1", "OUR_KEY"),
        ({"model": "gpt", "key_variable": "OUR_KEY"}, "https://models.example/v1", "ENDPOINT_API_KEY"),
        ({"scripted_error_rate": 0.1}, "https://api.openai.com/v1", "ENDPOINT_API_KEY"),
        ({}, "https://models.example/v1", "ENDPOINT_API_KEY"),
    ],
)
def test_an_endpoint_is_sent_the_teacher_s_key_on_the_teacher_s_host_alone(teacher: dict, url: str, key: str):
    found = endpoint_named(recipe_with(**teacher).teacher, f"{url}#small", serves_student=True)
    assert found is not None
    assert (found.base_url, found.model, found.key_variable, found.serves_student) == (url, "small", key, True)
    assert found.max_tokens == teacher.get("max_tokens", TeacherSpec().max_tokens)


def test_a_served_student_has_its_own_budget_of_thought_and_a_teacher_that_of_the_recipe():
    thinking, thoughts = ThinkingSpec(mode="text", max_tokens=40), ThoughtsSpec(max_tokens=300)
    for serves, most in ((True, 40), (False, 300)):
        found = endpoint_named(TeacherSpec(thoughts=thoughts), "https://models.example/v1#small", serves)
        assert found is not None
        found = found.teaching(thinking).thoughts
        assert found is not None
        assert found.max_tokens == most


def test_the_teacher_is_an_endpoint_by_its_name():
    found = endpoint_named(recipe_with(**OWN).teacher, "teacher", serves_student=False)
    assert found is not None
    assert (found.base_url, found.model, found.key_variable) == (OWN["base_url"], "big", "OUR_KEY")
    with pytest.raises(Stop, match="The recipe has no teacher"):
        endpoint_named(recipe_with().teacher, "teacher", serves_student=False)


def test_an_endpoint_names_its_model_and_what_has_no_address_is_none():
    for url in ("https://models.example/v1", "http://127.0.0.1:8000/v1#"):
        with pytest.raises(Stop, match="does not name a model of the endpoint"):
            endpoint_named(recipe_with(**OWN).teacher, url, serves_student=False)
    for name in ("champion", "sft", "owner/name@main", "ftp://models.example#small"):
        assert endpoint_named(recipe_with(**OWN).teacher, name, serves_student=False) is None


@pytest.mark.parametrize("url", ["https://me:secret@host/v1", "https://me@host/v1", "https://host/v1?key=secret"])
def test_an_address_that_holds_a_secret_is_refused_in_each_place_and_spelling(url: str):
    with pytest.raises(Stop, match=r"A model's URL cannot be used") as refused:
        check_addresses(["champion", f"{url}#small"])
    assert "secret" not in str(refused.value).split("→")[0].replace("no secret", "")
    check_addresses(["champion", "owner/name@main", "https://host/v1#small?key"])


def test_a_model_is_a_folder_or_a_revision_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine@1").mkdir()
    found = [model_named(name, trust_remote_code=True) for name in ("mine", "mine@1", f"Qwen/Qwen3-0.6B@{COMMIT}")]
    assert [(each.model, each.revision, each.trust_remote_code) for each in found if each] == [
        (str(tmp_path / "mine"), None, True),
        (str(tmp_path / "mine@1"), None, True),
        ("Qwen/Qwen3-0.6B", COMMIT, True),
    ]
    assert [model_named(name) for name in ("nowhere", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B@", "a/b/c@main")] == [
        None
    ] * 4


def test_code_is_trusted_for_models_that_were_named_and_for_no_other():
    assert trusted_with(load_recipe(TOY, []).student, []) == []
    with pytest.raises(Stop, match="--trust-code sft is not a model"):
        trusted_with(load_recipe(TOY, []).student, ["sft"])
