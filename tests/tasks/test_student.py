"""The student: built from a seed, or a model of the Hub by its revision; fp32 where the optimizer steps (law 12)."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.artifacts.store_files import digest
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.models.checkpoints import load_model, save
from apprentice.tasks.models.student_model import pinned
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import BuiltStudent, StudentSpec
from apprentice.tasks.student import student
from tests.hub_server import LocalHub
from tests.tasks.artifacts.test_hub import hub
from tests.tokenizers import build_tokenizer

assert hub  # a fixture

SMALL = StudentSpec(build=BuiltStudent(hidden_size=16, intermediate_size=16, layers=1, heads=1, max_positions=64))


@pytest.fixture
def questions_of_task(context: StageContext) -> Questions:
    with context.run.store.staging() as folder:
        rows = [{"purpose": "collect", "seed": place, "question": f"{place} + 1 =", "used": True} for place in range(9)]
        (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        counts = dict(collect=9, grpo=0, evaluate=0, dropped_from_grpo=0)
        return context.run.store.publish(Questions, "k", folder, counts, {"stage": "questions"})


def test_the_same_seed_builds_the_same_student(
    context: StageContext, chain_sum: EnvironmentSpec, questions_of_task: Questions
):
    digests = []
    for seed in (0, 0, 1):
        counts = student.body(context, SMALL, chain_sum, questions_of_task, seed)
        digests.append(digest(context.out))
    assert digests[0] == digests[1] != digests[2]
    assert counts["parameters"] == load_model(context.out).num_parameters()


def test_letters_and_digits_stay_single_and_a_prompt_is_short(chain_sum: EnvironmentSpec):
    tokenizer = build_tokenizer(chain_sum, ["12 + 34 =", "56 - 78 ="])
    assert tokenizer.tokenize("12 - 34") == ["1", "2", "Ġ", "-", "Ġ", "3", "4"]


def test_weights_are_loaded_in_fp32_also_where_they_were_saved_in_bf16(
    context: StageContext, chain_sum: EnvironmentSpec, questions_of_task
):
    import torch

    student.body(context, SMALL, chain_sum, questions_of_task, 0)
    model = load_model(context.out).to(torch.bfloat16)
    save(model, load_tokenizer(context.out), context.out)
    assert {weight.dtype for weight in load_model(context.out).parameters()} == {torch.float32}


def folder_of(context: StageContext, task: EnvironmentSpec, questions_of_task: Questions, at: Path) -> Path:
    """A model in a folder, as a person keeps one."""
    student.body(context, SMALL, task, questions_of_task, 7)
    context.out.rename(at)
    context.out.mkdir()
    return at


def in_folder(folder: Path, **how: Any) -> StudentSpec:
    return pinned(StudentSpec(model=str(folder), **how))


def test_a_folder_is_copied_and_nobody_who_writes_there_changes_the_student(
    context: StageContext, chain_sum: EnvironmentSpec, questions_of_task: Questions, tmp_path: Path
):
    import torch

    folder = folder_of(context, chain_sum, questions_of_task, tmp_path / "mine")
    counts = student.body(context, in_folder(folder), chain_sum, questions_of_task, 0)
    before = load_model(folder)
    assert counts["parameters"] == before.num_parameters()
    (folder / "model.safetensors").unlink()
    for one, other in zip(before.parameters(), load_model(context.out).parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_folder_is_known_by_its_content_wherever_it_lies(
    context: StageContext, chain_sum: EnvironmentSpec, questions_of_task: Questions, tmp_path: Path
):
    folder = folder_of(context, chain_sum, questions_of_task, tmp_path / "mine")

    def key(at: Path) -> str:
        return student.key((in_folder(at), chain_sum, questions_of_task, 0), {})

    before = key(folder)
    shutil.copytree(folder, tmp_path / "elsewhere")
    (folder / "README.md").write_text("Words that no loading reads.")
    assert key(folder) == key(tmp_path / "elsewhere") == before
    weights = load_model(folder)
    for weight in weights.parameters():
        weight.data.zero_()
    weights.save_pretrained(tmp_path / "zero")
    (tmp_path / "zero" / "model.safetensors").replace(folder / "model.safetensors")
    assert key(folder) != before


def test_a_folder_has_no_revision_and_one_that_is_not_there_is_told(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(Stop, match="has no revision"):
        pinned(StudentSpec(model=str(tmp_path), revision="main"))
    with pytest.raises(Stop, match="contains no model"):
        pinned(StudentSpec(model=str(Path(__file__).parent)))
    with pytest.raises(Stop, match="There is no folder"):
        pinned(StudentSpec(model=str(tmp_path / "none"), revision="main"))
    with pytest.raises(Stop, match=r"has the content \w+, not"):
        pinned(StudentSpec(model=str(tmp_path), content="a" * 40))


def test_a_model_of_the_hub_is_known_by_its_commit(hub: LocalHub):
    api = HfApi()
    api.create_repo("team/small")
    first = api.upload_file(path_or_fileobj=b"{}", path_in_repo="config.json", repo_id="team/small").oid
    named = StudentSpec(model="team/small", revision="main")
    assert pinned(named).revision == first
    second = api.upload_file(path_or_fileobj=b"[]", path_in_repo="config.json", repo_id="team/small").oid
    assert pinned(named).revision == second
    before = len(hub.requests())
    assert pinned(named.model_copy(update={"revision": first})).revision == first
    assert len(hub.requests()) == before, "a commit is a commit"
    with pytest.raises(Stop, match="The Hub has no model team/none at main"):
        pinned(StudentSpec(model="team/none", revision="main"))


OWN_CODE = """
from transformers import Qwen3Config, Qwen3ForCausalLM

class OwnConfig(Qwen3Config):
    model_type = "own"

class Own(Qwen3ForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def with_code(context: StageContext, chain_sum: EnvironmentSpec, questions_of_task: Questions, tmp_path: Path) -> Path:
    """A model that brings code of its own."""
    folder = folder_of(context, chain_sum, questions_of_task, tmp_path / "with-code")
    (folder / "own.py").write_text(OWN_CODE)
    config = json.loads((folder / "config.json").read_text())
    own = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.Own"}
    config |= {"model_type": "own", "auto_map": own}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_code_of_a_model_is_refused(
    with_code: Path, context: StageContext, chain_sum: EnvironmentSpec, questions_of_task
):
    with pytest.raises(Stop, match="needs Python code of its own") as stopped:
        student.body(context, in_folder(with_code), chain_sum, questions_of_task, 0)
    assert "trust_remote_code" in str(stopped.value)


def test_code_runs_where_the_recipe_trusts_it_also_in_what_was_trained_from_it_and_nowhere_else(
    with_code: Path, context: StageContext, chain_sum: EnvironmentSpec, questions_of_task: Questions, tmp_path: Path
):
    spec = in_folder(with_code, trust_remote_code=True)
    student.body(context, spec, chain_sum, questions_of_task, 0)
    model = load_model(context.out, [spec])
    assert type(model).__name__ == "Own"
    trained = tmp_path / "trained"
    save(model, load_tokenizer(context.out, [spec]), trained, initial=context.out)
    assert type(load_model(trained, [spec])).__name__ == "Own"
    other = spec.model_copy(update={"content": "a" * 40})
    for trusted in ([], [other], [spec.model_copy(update={"trust_remote_code": False})]):
        with pytest.raises(
            Stop, match=f"code of a folder with the content {str(spec.content)[:12]}, which this run does"
        ):
            load_model(trained, trusted)
    (trained / "own.py").write_text(OWN_CODE + "\nprint('changed')\n")
    with pytest.raises(Stop, match="is not that of a folder with the content"):
        load_model(trained, [spec])


def test_a_model_that_transformers_knows_hands_on_no_code_that_it_was_loaded_without(
    with_code: Path, context: StageContext, chain_sum: EnvironmentSpec, questions_of_task: Questions, tmp_path: Path
):
    config = json.loads((with_code / "config.json").read_text())
    (with_code / "config.json").write_text(json.dumps(config | {"model_type": "qwen3"}))
    student.body(context, in_folder(with_code), chain_sum, questions_of_task, 0)
    save(load_model(context.out), load_tokenizer(context.out), tmp_path / "trained", initial=context.out)
    for folder in (context.out, tmp_path / "trained"):
        assert not list(folder.glob("*.py"))
        assert "auto_map" not in (folder / "config.json").read_text()
        assert type(load_model(folder)).__name__ == "Qwen3ForCausalLM"


def test_pickled_weights_are_refused_unless_the_recipe_takes_them_and_then_are_pickled_no_more(
    context: StageContext, chain_sum: EnvironmentSpec, questions_of_task: Questions, tmp_path: Path
):
    import torch

    folder = folder_of(context, chain_sum, questions_of_task, tmp_path / "mine")
    before = load_model(folder)
    torch.save(before.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(Stop, match="no weights in safetensors"):
        student.body(context, in_folder(folder), chain_sum, questions_of_task, 0)
    student.body(context, in_folder(folder, safetensors_only=False), chain_sum, questions_of_task, 0)
    assert not list(context.out.glob("*.bin"))
    for one, other in zip(before.parameters(), load_model(context.out).parameters(), strict=True):
        assert torch.equal(one, other)
