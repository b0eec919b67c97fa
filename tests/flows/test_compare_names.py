"""Models are named as the report's lineage shows them: by key, revision, tag, or a unique beginning of one."""

from pathlib import Path

import pytest
from huggingface_hub import HfApi

from apprentice.flows.named_models import endpoint_named, model_named
from apprentice.flows.recipe.loading import load_recipe
from apprentice.tasks.artifacts.hub import HubStore
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import GrpoCheckpoint, SftCheckpoint
from apprentice.tasks.episodes.thinking import think
from apprentice.tasks.lineage.lineage import lineage_of
from apprentice.tasks.lineage.locate import checkpoint_named
from apprentice.tasks.models.student_model import as_its_template_says, pinned
from apprentice.tasks.models.tokenizer import prepare_tokenizer
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.endpoint import EndpointSpec
from apprentice.tasks.settings.spec import StudentSpec, ThinkingSpec
from tests.flows.commands import TOY
from tests.hub_server import LocalHub
from tests.students_page import templates, toy_tokenizer
from tests.tasks.artifacts.test_hub import hub

assert hub  # a fixture


def trained(store: LocalStore, kind: type, key: str) -> GrpoCheckpoint:
    with store.staging() as folder:
        (folder / "model.safetensors").write_text(key)
        return store.publish(kind, key, folder, {"parameters": 1, "stage": kind.suffix}, {"stage": kind.suffix})


def names_of(made: GrpoCheckpoint) -> list[str]:
    whole = [made.key, made.key[:6], made.revision, made.revision[:12], made.revision[:6], "best", "best-of"]
    return [*whole, f"{made.repository}@{made.revision[:12]}"]


def test_a_model_is_found_by_all_its_names(tmp_path: Path):
    store = LocalStore(tmp_path, "toy")
    made, _ = trained(store, GrpoCheckpoint, "a" * 20), trained(store, SftCheckpoint, "b" * 20)
    store.tag(made, "best")
    store.tag(made, "best-of-all")
    for name in names_of(made):
        assert checkpoint_named(store, name) == made, name
        assert lineage_of(name, tmp_path).root.named.revision == made.revision, name


def test_a_model_on_the_hub_is_found_by_all_its_names(hub: LocalHub, tmp_path: Path):
    made = trained(HubStore(tmp_path / "maker", "toy", "team", patience=20.0), GrpoCheckpoint, "a" * 20)
    for place, name in enumerate([made.key[:6], made.revision[:12], f"{made.repository}@{made.revision}"]):
        store = HubStore(tmp_path / str(place), "toy", "team", patience=20.0)
        assert checkpoint_named(store, name) == made, name
        assert lineage_of(name, tmp_path / f"{place}-lineage", "team").root.named.revision == made.revision


def test_a_revision_whose_key_has_another_one_by_now_is_still_found(tmp_path: Path):
    store = LocalStore(tmp_path, "toy")
    first = trained(store, GrpoCheckpoint, "a" * 20)
    with store.staging() as folder:
        (folder / "model.safetensors").write_text("another")
        store.publish(GrpoCheckpoint, first.key, folder, {"parameters": 1, "stage": "grpo"}, {"stage": "grpo"})
    assert checkpoint_named(store, first.revision) == first


def test_a_beginning_that_several_have_lists_them_and_a_whole_name_goes_before_a_longer_one(tmp_path: Path):
    store = LocalStore(tmp_path, "toy")
    one, two = trained(store, GrpoCheckpoint, "abcdef" + "0" * 14), trained(store, SftCheckpoint, "abcdef" + "1" * 14)
    with pytest.raises(Stop, match=rf"Several artifacts are named abcdef: .*{one.key}.*{two.key}"):
        checkpoint_named(store, "abcdef")
    assert checkpoint_named(store, "abcdef1") == two
    store.tag(one, "champion")
    store.tag(two, "champion-0001-20260101T000000Z-promoted")
    assert lineage_of("champion", tmp_path).root.named.key == one.key


def test_another_recipe_s_models_and_what_is_no_model_are_not_meant(tmp_path: Path):
    other = trained(LocalStore(tmp_path, "another"), GrpoCheckpoint, "a" * 20)
    assert checkpoint_named(LocalStore(tmp_path, "toy"), other.key) is None
    assert checkpoint_named(LocalStore(tmp_path, "toy"), f"{other.repository}@{other.key}") is None
    assert checkpoint_named(LocalStore(tmp_path, "toy"), "Qwen/Qwen3-0.6B@main") is None


@pytest.mark.parametrize("same_host", [True, False])
def test_an_endpoint_on_another_host_never_gets_the_teachers_key(same_host: bool, monkeypatch: pytest.MonkeyPatch):
    for name in ("MY_KEY", "ENDPOINT_API_KEY"):
        monkeypatch.setenv(name, "k")
    teacher = "teacher={model: big, base_url: 'http://mine/v1', key_variable: MY_KEY, max_tokens: 77}"
    recipe = load_recipe(TOY, [teacher])
    found = endpoint_named(recipe.teacher, f"http://{'mine' if same_host else 'other'}/v1#toy", False)
    assert found is not None
    assert (found.key_variable, found.max_tokens, found.model) == (
        "MY_KEY" if same_host else "ENDPOINT_API_KEY",
        77,
        "toy",
    )
    assert recipe.teacher is not None
    assert endpoint_named(recipe.teacher, "teacher", True) == EndpointSpec.model_validate(recipe.teacher.model_dump())
    with pytest.raises(Stop, match="does not name a model of the endpoint"):
        endpoint_named(recipe.teacher, "http://mine/v1", False)
    assert endpoint_named(recipe.teacher, "a folder", False) is None
    with pytest.raises(Stop, match="The recipe has no teacher"):
        endpoint_named(None, "teacher", False)


@pytest.mark.parametrize("is_on_the_hub", [False, True])
def test_a_model_whose_template_asks_for_thoughts_is_evaluated_as_a_student_that_thinks(
    is_on_the_hub: bool, hub: LocalHub, tmp_path: Path
):
    thinks = ThinkingSpec(mode="text", max_tokens=40, instruction="Add by tens.")
    tokenizer = prepare_tokenizer(toy_tokenizer(templates()["qwen2_5"]))
    for spec in (thinks, None):
        think(tokenizer, spec).save_pretrained(tmp_path)
        (tmp_path / "model.safetensors").write_text("weights")
        assert named(tmp_path, is_on_the_hub).thinking == spec
    (tmp_path / "chat_template.jinja").unlink()
    assert named(tmp_path, is_on_the_hub).thinking is None


def named(folder: Path, is_on_the_hub: bool) -> StudentSpec:
    """The student of that folder, or of a repository that has its files, as `apprentice evaluate --model` has it."""
    name = str(folder)
    if is_on_the_hub:
        api = HfApi()
        api.create_repo("team/thinks", exist_ok=True)
        api.upload_folder(folder_path=folder, repo_id="team/thinks", delete_patterns="*")
        name = "team/thinks@main"
    spec = model_named(name)
    assert spec is not None
    return as_its_template_says(pinned(spec))
