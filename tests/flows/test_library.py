"""One stage by itself: a recipe without a file, results of earlier calls, and no Prefect server."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE, temporary_settings

import apprentice
from apprentice import Model, Result, Rows, Stop, load_recipe, open_artifact
from apprentice.envs.wire.server import EnvironmentServer

STUDENT = {"build": {"hidden_size": 16, "intermediate_size": 16, "layers": 1, "heads": 1, "max_positions": 256}}
TRAINING = {"batch_size": 8, "gradient_accumulation": 1, "learning_rate": 1e-3, "logging_steps": 1}


class Made(NamedTuple):
    recipe: dict[str, Any]
    rollouts: Rows[Any]
    model: Model[Any]


@pytest.fixture(scope="module", autouse=True)
def no_prefect_server() -> Iterator[None]:
    """Whoever asks for one gets an error."""
    without: dict[Any, Any] = {PREFECT_API_URL: None, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: False}
    with temporary_settings(updates=without):
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, server: EnvironmentServer) -> Made:
    recipe = {
        "name": "words",
        "environment": {"name": "reasoning_gym", "settings": {"dataset": "spell_backward"}},
        "server": {"url": server.url, "sessions": 8},
        "store": {"path": tmp_path_factory.mktemp("library") / "artifacts"},
        "report_to": [],
        "teacher": {"scripted_error_rate": 0.1},
        "student": STUDENT,
        "windows": {"collect": {"size": 12}, "grpo": {"size": 16}, "evaluate": {"size": 12}},
        "sft": TRAINING | {"epochs": 1},
        "grpo": TRAINING | {"max_steps": 1, "num_generations": 4, "max_completion_length": 8},
        "evaluate": {"questions": 8, "max_new_tokens": 8},
    }
    rollouts = apprentice.collect(recipe)
    return Made(recipe, rollouts, apprentice.sft(recipe, rollouts))


def test_rollouts_are_a_table_with_a_row_for_each_seed_and_a_dataset(made: Made):
    rows = made.rollouts.to_pandas()
    assert list(rows["seed"]) == list(range(12))
    assert made.rollouts.artifact.episodes == 12
    assert made.rollouts.dataset().num_rows == 12
    assert "12 episodes" in repr(made.rollouts)


def test_a_model_has_weights_a_tokenizer_curves_and_the_rows_that_it_learned_from(made: Made):
    assert made.model.model().num_parameters() == made.model.artifact.parameters
    assert made.model.tokenizer().chat_template
    assert {"step", "loss"} <= set(made.model.to_pandas())
    kept = made.model.inputs["kept"]
    assert 0 < len(kept.to_pandas()) <= 12
    assert kept.inputs["rollouts"].key == made.rollouts.key
    assert made.model.inputs["student"].to_pandas().empty, "an untrained student has no curves"


def test_the_same_call_makes_nothing_again(made: Made, capfd: pytest.CaptureFixture[str]):
    assert apprentice.sft(load_recipe(made.recipe), made.rollouts).key == made.model.key
    assert capfd.readouterr().out == "✓ 5 stages cached\n"


@pytest.mark.long
def test_grpo_and_evaluation_take_a_result_a_key_or_a_folder(made: Made):
    trained = apprentice.grpo(made.recipe, made.model)
    assert trained.inputs["checkpoint"].key == made.model.key
    by_result, by_key, by_folder = (
        apprentice.evaluate(made.recipe, each) for each in (trained, trained.key, trained.folder)
    )
    assert by_result.key == by_key.key == by_folder.key
    assert by_result.artifact.n == 8 == len(by_result.to_pandas())
    assert by_result.inputs["checkpoint"].key == trained.key


@pytest.mark.long
def test_a_folder_from_elsewhere_is_taken_by_its_content(made: Made, tmp_path: Path):
    rollouts, model = tmp_path / "rollouts", tmp_path / "model"
    shutil.copytree(made.rollouts.folder, rollouts)
    made.model.model().save_pretrained(model)
    made.model.tokenizer().save_pretrained(model)
    again = apprentice.sft(made.recipe, rollouts, model)
    ours, rows_again = (each.inputs["kept"].to_pandas() for each in (made.model, again))
    assert ours.equals(rows_again)
    assert again.inputs["student"].artifact.stage == "base"
    other = made.recipe | {"store": {"path": tmp_path / "artifacts"}}
    assert apprentice.sft(other, made.rollouts).inputs["kept"].to_pandas().equals(ours), "a result of another store"


def test_kept_rollouts_are_not_filtered_again(made: Made):
    assert apprentice.sft(made.recipe, made.model.inputs["kept"]).key == made.model.key


def test_an_artifact_is_opened_by_its_key_the_beginning_of_it_or_its_folder(made: Made):
    store = made.rollouts.store.root
    opened = [open_artifact(made.model.key[:8], store), open_artifact(made.model.folder)]
    assert [(type(each), each.key) for each in opened] == [(Model, made.model.key)] * 2
    assert isinstance(open_artifact(made.rollouts.key, store), Rows)
    lengths = made.model.inputs["lengths"]
    assert type(lengths) is Result
    assert lengths.artifact.max_length > 0


def test_what_is_no_input_is_answered_with_what_would_be(made: Made, tmp_path: Path):
    with pytest.raises(Stop, match=r"words-rollouts@\w+ is Rollouts, not a model\.\n→ Give the result of `sft`"):
        apprentice.evaluate(made.recipe, made.rollouts)
    with pytest.raises(Stop, match=r"is SftCheckpoint, not rollouts\.\n→ Give the result of `collect`"):
        apprentice.sft(made.recipe, made.model.key)
    with pytest.raises(Stop, match=r"There is no folder .*nowhere"):
        apprentice.sft(made.recipe, tmp_path / "nowhere")
    with pytest.raises(Stop, match="holds no rollouts"):
        apprentice.sft(made.recipe, tmp_path)
    with pytest.raises(Stop, match="contains no model"):
        apprentice.grpo(made.recipe, tmp_path)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "mine"}) + "\n")
    with pytest.raises(Stop, match=r"rows\.jsonl, line 1, messages: no such column"):
        apprentice.sft(made.recipe, tmp_path)
    with pytest.raises(Stop, match="is not the folder of an artifact"):
        open_artifact(tmp_path)
    with pytest.raises(Stop, match=r"No artifact has the key"):
        open_artifact("0" * 20, made.rollouts.store.root)


def test_a_stage_that_the_recipe_turns_off_or_cannot_begin_says_so(made: Made):
    for stage, call in (("sft", apprentice.sft), ("grpo", apprentice.grpo)):
        with pytest.raises(Stop, match=f"words has {stage}: off"):
            call(made.recipe | {stage: False}, made.rollouts)
    with pytest.raises(Stop, match="has no teacher to collect from"):
        apprentice.collect(made.recipe | {"teacher": None, "sft": False})


def test_a_stop_is_short_in_a_notebook():
    assert Stop("It broke.", "Mend it.")._render_traceback_() == ["Stop: It broke.\n→ Mend it."]
