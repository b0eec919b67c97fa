"""Students as they are published: composite configurations, named templates, adapters, settings of their own."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from apprentice import Stop, collect, evaluate, grpo, load_recipe, sft
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.models.checkpoints import check_targets
from apprentice.tasks.models.configuration import UNBOUNDED, auto_class, context_length
from apprentice.tasks.models.student_model import check_rows
from apprentice.tasks.models.tokenizer import prepare_tokenizer
from apprentice.tasks.settings.grpo_settings import GrpoSpec
from apprentice.tasks.settings.sft_settings import SftSpec
from apprentice.tasks.settings.training import LoraSpec, TrainerSpec
from apprentice.tasks.training.first_step import check_arguments
from apprentice.tasks.trainings import training_of
from tests.students_page import templates, toy_tokenizer
from tests.tasks.test_one_prompt import tiny_model


def check(spec: TrainerSpec, tokenizer: Any, tools: list[dict[str, Any]]) -> None:
    check_arguments(spec, lambda given: training_of(spec.section).first_step(spec, given, tokenizer, tools))


SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16}
SMALL |= {"num_key_value_heads": 2, "max_position_embeddings": 4096}
EYES = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 32}
EYES |= {"num_position_embeddings": 16}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 16}
LINEAR |= {"linear_value_head_dim": 16, "layer_types": ["linear_attention", "full_attention"]}


def recipe(student: Path, **sections: Any) -> Any:
    """A whole small run on echo in the folder beside the student."""
    given: dict[str, Any] = {
        "name": "student",
        "environment": {"name": "echo", "settings": {"words": 1}},
        "store": {"path": str(student.parent / "store")},
        "report_to": [],
        "teacher": {"scripted_error_rate": 0.0},
        "student": {"model": str(student)},
        "windows": {"collect": {"size": 8}, "grpo": {"size": 16}, "evaluate": {"size": 16}},
        "sft": {"epochs": 1, "batch_size": 4, "gradient_accumulation": 1, "warmup_steps": 0, "logging_steps": 1},
        "grpo": {"max_steps": 1, "batch_size": 4, "gradient_accumulation": 1, "num_generations": 2, "warmup_steps": 0},
        "evaluate": {"questions": 4, "max_new_tokens": 8, "batch_size": 4},
    }
    given["grpo"] |= {"max_completion_length": 16}
    for name, section in sections.items():
        given[name] = given[name] | section
    return load_recipe(given)


def written(folder: Path, template: str = "qwen3", **settings: Any) -> Path:
    """A tiny Qwen3 with these settings in its generation_config.json."""
    tokenizer = toy_tokenizer(templates()[template])
    tiny_model(tokenizer, positions=settings.pop("positions", 2048)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    own = folder / "generation_config.json"
    own.write_text(json.dumps(json.loads(own.read_text()) | settings))
    return folder


def composite(family: str, folder: Path) -> Path:
    import transformers

    template, config, model, sight = {
        "qwen3_5": ("qwen3_5_nothink", "Qwen3_5Config", "Qwen3_5ForConditionalGeneration", EYES),
        "qwen3_vl": (
            *("qwen3_vl", "Qwen3VLConfig", "Qwen3VLForConditionalGeneration"),
            EYES | {"deepstack_visual_indexes": [0]},
        ),
        "gemma4": ("gemma4_v5", "Gemma4Config", "Gemma4ForConditionalGeneration", None),
    }[family]
    tokenizer = toy_tokenizer(templates()[template])
    text: dict[str, Any] = SMALL | {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    text |= {"eos_token_id": tokenizer.eos_token_id} | (LINEAR if family == "qwen3_5" else {})
    if family == "gemma4":
        text |= {"vocab_size_per_layer_input": len(tokenizer), "hidden_size_per_layer_input": 16}
    else:
        text["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}
    made = getattr(transformers, config)(text_config=text, **({"vision_config": sight} if sight else {}))
    torch.manual_seed(0)
    getattr(transformers, model)(made).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_vl", "gemma4"])
def test_a_composite_model_is_collected_for_trained_and_evaluated(family: str, tmp_path: Path):
    chosen = recipe(composite(family, tmp_path / "student"))
    rows = collect(chosen)
    learned = sft(chosen, rows)
    improved = grpo(chosen, learned)
    assert len(evaluate(chosen, improved).to_pandas()) == 4
    assert context_length(json.loads((improved.folder / "config.json").read_text())) == 4096


@pytest.mark.long
@pytest.mark.parametrize("family", ["llama3_1", "gemma4_v5", "qwen3"])
def test_every_published_model_ends_where_its_template_ends_a_turn(family: str, tmp_path: Path):
    """Also where the student's own settings are such that transformers refuses to save them again."""
    from apprentice.tasks.episodes.rendering import chat_format

    chosen = recipe(written(tmp_path / "student", family, temperature=0.6, do_sample=False))
    learned = sft(chosen, collect(chosen))
    for model in (learned, grpo(chosen, learned)):
        own = json.loads((model.folder / "generation_config.json").read_text())
        ends = own["eos_token_id"] if isinstance(own["eos_token_id"], list) else [own["eos_token_id"]]
        assert set(chat_format(model.tokenizer()).ends) <= set(ends)
        assert "temperature" not in own


@pytest.mark.long
def test_answers_and_completions_end_with_the_context(tmp_path: Path):
    student = written(tmp_path / "student", positions=860)
    chosen = recipe(student, evaluate={"max_new_tokens": 400}, grpo={"max_completion_length": 400})
    rows = evaluate(chosen).to_pandas()
    assert all(rows.prompt_tokens + rows.completion_tokens <= 860)
    longest = rows.prompt_tokens.max()
    assert max(grpo(chosen).to_pandas()["completions/max_length"]) <= 860 - longest + 2


@pytest.mark.long
def test_of_several_named_templates_the_one_with_tools_is_used(tmp_path: Path):
    tokenizer = toy_tokenizer(templates()["qwen2_5"])
    tiny_model(tokenizer, positions=2048).save_pretrained(tmp_path / "student")
    plain = "{% for message in messages %}{{ message.content }}{% endfor %}"
    tokenizer.chat_template = {"default": plain, "tool_use": templates()["qwen2_5"]}
    tokenizer.save_pretrained(tmp_path / "student")
    assert (tmp_path / "student/additional_chat_templates/tool_use.jinja").exists()
    chosen = recipe(tmp_path / "student")
    assert len(evaluate(chosen).to_pandas()) == 4
    learned = sft(chosen, collect(chosen))
    assert "<tools>" in learned.tokenizer().chat_template
    assert not (learned.folder / "additional_chat_templates").exists()


@pytest.mark.long
def test_an_adapters_folder_is_named_and_not_our_copy_of_it(tmp_path: Path):
    student = written(tmp_path / "student")
    (student / "adapter_config.json").write_text("{}")
    with pytest.raises(Stop, match=rf"^{student} holds an adapter of another model.*\n.*merge_and_unload"):
        evaluate(recipe(student))


@pytest.mark.parametrize(
    ("targets", "tied", "said"),
    [
        (["q_proj", "v_proj"], True, ""),
        (["embed_tokens"], False, ""),
        (["embed_tokens"], True, "'embed_tokens' is also the output layer"),
        (["q_proj", "q_prj"], False, r"no layer 'q_prj'.\n→ Did you mean 'q_proj'"),
        (["c_attn"], False, r"no layer 'c_attn'.\n→ Its layers: .*down_proj"),
    ],
)
def test_a_target_of_an_adapter_is_a_layer_whose_weights_are_its_own(targets: list[str], tied: bool, said: str):
    model = tiny_model(toy_tokenizer(templates()["qwen3"]))
    model.config.tie_word_embeddings = tied
    if not said:
        check_targets(model, LoraSpec(targets=targets))
        return
    with pytest.raises(Stop, match=said):
        check_targets(model, LoraSpec(targets=targets))


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"max_position_embeddings": 512}, 512),
        ({"text_config": {"max_position_embeddings": 256}}, 256),
        ({"n_positions": 1024}, 1024),
        ({"state_size": 16}, UNBOUNDED),
        ({"max_position_embeddings": None, "text_config": None}, UNBOUNDED),
    ],
)
def test_the_context_is_found_under_each_of_its_names(config: dict[str, Any], tokens: int):
    assert context_length(config) == tokens


def test_a_model_that_writes_no_text_is_refused_by_name():
    from transformers import ViTConfig

    with pytest.raises(Stop, match="some/vit is a vit model, which transformers cannot train to write text"):
        auto_class(ViTConfig(), "some/vit")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"weight_decay": 0.1}, ""),
        ({"packing": True}, ""),
        ({"max_steps": 5}, ""),
        ({"eos_token": "<nope>"}, "refuses sft.args .eos_token.: .*<nope>"),
        (
            {"lr_scheduler_kwargs": {"x": 1}},
            "refuses sft.args .lr_scheduler_kwargs.: .*unexpected keyword",
        ),
        ({"padding_free": True}, "refuses sft.args .padding_free.: .*packing"),
        ({"dataset_kwargs": {"skip_prepare_dataset": True}}, ""),  # the rows are tokens already
    ],
)
def test_arguments_that_only_the_trainer_refuses_are_told_before_anything_is_bought(arguments: Any, said: str):
    tokenizer = prepare_tokenizer(toy_tokenizer(templates()["qwen3"]))
    tools = EnvironmentSpec(name="echo").make().schemas
    spec = SftSpec.model_validate({"args": arguments})
    if not said:
        check(spec, tokenizer, tools)
        return
    with pytest.raises(Stop, match=said):
        check(spec, tokenizer, tools)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"weight_decay": 0.1}, ""),
        ({"loss_type": "cispo"}, ""),
        ({"loss_type": "nonsense"}, "refuses grpo.args .loss_type.: .*nonsense"),
        ({"importance_sampling_level": "word"}, "refuses grpo.args .importance_sampling_level.: .*word"),
        ({"lr_scheduler_kwargs": {"x": 1}}, "refuses grpo.args .lr_scheduler_kwargs.: .*unexpected keyword"),
    ],
)
def test_so_are_those_of_grpo(arguments: Any, said: str):
    tokenizer = prepare_tokenizer(toy_tokenizer(templates()["qwen3"]))
    spec = GrpoSpec.model_validate({"args": arguments})
    if not said:
        check(spec, tokenizer, [])
        return
    with pytest.raises(Stop, match=said):
        check(spec, tokenizer, [])


def test_a_tokenizer_with_more_tokens_than_embeddings_is_refused_with_both_numbers():
    tokenizer = toy_tokenizer(templates()["qwen3"])
    model = tiny_model(tokenizer)
    check_rows(model, tokenizer, "mine")
    model.resize_token_embeddings(100)
    with pytest.raises(Stop, match=r"mine has 100 embedding rows, and its tokenizer 2\d\d tokens"):
        check_rows(model, tokenizer, "mine")
    model.resize_token_embeddings(len(tokenizer))
    tokenizer.add_tokens(["<never-shown>"])
    check_rows(model, tokenizer, "mine")
    tokenizer.add_tokens(["<shown>"])
    tokenizer.chat_template += "<shown>"
    with pytest.raises(Stop, match="embedding rows"):
        check_rows(model, tokenizer, "mine")
