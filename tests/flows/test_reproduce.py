"""A recipe that runs again in an empty store makes the same, or it is said what differs; a stranger's record asks."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from apprentice.flows.reproduce import recipe_of, reproduce
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Questions, Release
from apprentice.tasks.lineage.lineage import Lineage, lineage_of
from apprentice.tasks.reporting.errors import Stop
from tests.flows.commands import BIN, Ran, run_command


@pytest.fixture(scope="module")
def released(toy_run: Ran) -> str:
    """The key of the toy run's release."""
    return next(row["key"] for row in toy_run.report["lineage"] if row["stage"] == "release")


@pytest.mark.long
def test_what_is_the_same_is_told_from_what_is_not_with_the_files_and_versions_that_differ(
    toy_home: Path, released: str, tmp_path: Path
):
    """The release is of other weights than the recipe makes, and the questions are of another torch."""
    store = LocalStore(shutil.copytree(toy_home / "artifacts", tmp_path / "artifacts"), "toy")
    found = store.find(Release, released)
    assert found is not None
    record = store.record(Release, found.key, found.revision)
    packages = record.made_by["packages"] | {"torch": "1.0"}
    with store.staging() as folder:
        shutil.copytree(store.fetch(found), folder, dirs_exist_ok=True)
        (folder / "artifact.json").unlink()
        (folder / "model.safetensors").write_text("other weights")
        made_by = record.made_by | {"packages": packages}
        store.publish(Release, found.key, folder, record.counts, made_by, record.provenance)
    done = run_command([str(BIN / "apprentice"), "reproduce", released, "--json"], tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    assert printed["same"] is False
    *others, last = printed["artifacts"]
    assert (last["kind"], last["result"]) == ("Release", "NOT the same weights: model.safetensors")
    assert any(each.endswith('and "1.0" in the record.') for each in last["differences"])
    assert "packages.torch is " in done.stdout
    assert {each["stage"] for each in others} >= {"questions", "collect", "filter_rollouts", "sft", "grpo", "evaluate"}
    assert {each["result"] for each in others} == {"the same data", "the same weights"}
    assert not any(each["differences"] for each in others)
    left = {path.name for path in tmp_path.iterdir()} - {"artifacts"}
    assert not {"runs", "reproduced"} & left, "nothing is left in the folder"


@pytest.fixture
def lineage(toy_home: Path, released: str) -> Lineage:
    return lineage_of(released, toy_home / "artifacts")


def recorded(lineage: Lineage, **sections: dict[str, Any]) -> Lineage:
    """The lineage, whose record has the recipe with fields of these sections changed."""
    record = lineage.root.record
    assert record is not None
    recipe = record.provenance.recipe
    changed = recipe | {name: recipe[name] | fields for name, fields in sections.items()}
    provenance = record.provenance.model_copy(update={"recipe": changed})
    lineage.root.record = record.model_copy(update={"provenance": provenance})
    return lineage


def test_the_recipe_is_the_recorded_one_in_the_environment_that_is_installed(lineage: Lineage):
    recipe = recipe_of(lineage.root, ["server.url=http://127.0.0.1:9"])
    assert (recipe.name, recipe.server.url) == ("toy", "http://127.0.0.1:9")
    older = recorded(lineage, environment={"version": "0.9", "code": "0" * 40})
    assert recipe_of(older.root, []).environment == recipe.environment


def test_no_teacher_is_paid_again_unasked(lineage: Lineage):
    teacher = {"scripted_error_rate": None, "script": "", "model": "gpt-5-mini", "base_url": "http://127.0.0.1:9/v1"}
    with pytest.raises(
        Stop, match=r"buys its episodes again, from gpt-5-mini at http://127.0.0.1:9/v1.*\n→ Pass --yes"
    ):
        reproduce(recorded(lineage, teacher=teacher), [])


def test_no_code_of_a_student_is_run_unasked(lineage: Lineage):
    stranger = {"model": "stranger/model", "revision": "main", "build": None, "trust_remote_code": True}
    with pytest.raises(Stop, match=r"loads stranger/model@main in a way that can run its code"):
        reproduce(recorded(lineage, student=stranger), [])


def test_what_continues_an_earlier_model_is_refused(lineage: Lineage):
    with pytest.raises(Stop, match="was trained from an earlier model, which an empty store does not have"):
        reproduce(recorded(lineage, student={"champion": True, "build": None}), [])


def test_a_recipe_that_this_code_does_not_take_is_told_with_the_code_that_does(lineage: Lineage):
    with pytest.raises(
        Stop, match=r"(?s)is not valid for this code.*collect.asks.*Use the code that made it: apprentice"
    ):
        reproduce(recorded(lineage, collect={"asks": 0}), [])


def test_what_is_set_may_say_where_servers_are_and_nothing_else(lineage: Lineage):
    with pytest.raises(Stop, match="would make a different artifact"):
        reproduce(lineage, ["grpo.max_steps=9"])
    with pytest.raises(Stop, match="did you mean url"):
        reproduce(lineage, ["server.ulr=http://127.0.0.1:9"])


def test_what_is_gone_has_no_recipe(toy_home: Path, toy_run: Ran, tmp_path: Path):
    store = LocalStore(shutil.copytree(toy_home / "artifacts", tmp_path / "artifacts"), "toy")
    key = next(row["key"] for row in toy_run.report["lineage"] if row["stage"] == "questions")
    found = store.find(Questions, key)
    assert found is not None
    lineage = lineage_of(key, store.root)
    lineage.root.record = None
    with pytest.raises(Stop, match=f"toy-questions@{key} has no record of its recipe"):
        reproduce(lineage, [])
