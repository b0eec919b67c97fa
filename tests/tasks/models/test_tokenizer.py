"""What a card writes of a chat template, for vLLM's command; and TRL's templates in place of a model's own."""

import pytest

from apprentice.tasks.models.student_model import named_model
from apprentice.tasks.models.tokenizer import PARSERS, byte_level, commands, switches, trl_template, vllm_parser
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import StudentSpec


@pytest.mark.parametrize(
    ("template", "word"),
    [("{% if enable_thinking %}", "'{\"enable_thinking\": false}'"), ("{% if thinking %}", ""), ("", "")],
)
def test_a_template_with_a_switch_is_served_with_thinking_off(template: str, word: str):
    assert switches(template) == word


def test_the_parser_is_the_first_whose_mark_the_template_has():
    assert {mark: vllm_parser(f"a {mark} b") for mark in PARSERS} == PARSERS
    assert vllm_parser("<tool_call> <function=") == "qwen3_coder"
    assert vllm_parser("no calls") == ""


@pytest.mark.parametrize(
    ("template", "vllm", "transformers"),
    [
        ("<tool_call>", " --tool-call-parser hermes", "--host 127.0.0.1"),
        (
            "<tool_call> enable_thinking",
            " --tool-call-parser hermes --default-chat-template-kwargs '{\"enable_thinking\": false}'",
            "--host 127.0.0.1 --chat-template-kwargs '{\"enable_thinking\": false}'",
        ),
    ],
)
def test_a_student_is_served_as_it_was_trained(template: str, vllm: str, transformers: str):
    of_vllm, of_transformers = commands(template, "me/model", "c0ffee")
    assert of_vllm.startswith("vllm serve me/model --revision c0ffee --served-model-name student --host 127.0.0.1 ")
    assert of_vllm.endswith(f"--enable-auto-tool-choice{vllm}")
    assert of_transformers == f"transformers serve me/model@c0ffee {transformers}"


def test_a_model_without_tools_in_its_template_is_trained_with_one_of_trls(tmp_path):
    from transformers import LlamaConfig

    own = byte_level("<|im_end|>", "<|endoftext|>", bos_token="<|im_start|>")
    own.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    own.save_pretrained(tmp_path)
    LlamaConfig(vocab_size=300).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    spec = StudentSpec(model=str(tmp_path), content="0" * 40)
    with pytest.raises(Stop, match=r"renders no tool calls"):
        named_model(spec)
    _, tokenizer = named_model(spec.model_copy(update={"chat_template": "qwen2_5"}))
    assert "<tool_call>" in tokenizer.chat_template
    assert spec.in_key() == {**spec.model_copy(update={"chat_template": None}).in_key()}
    assert spec.model_copy(update={"chat_template": "qwen2_5"}).in_key()["chat_template"] == "qwen2_5"


@pytest.mark.parametrize(
    ("name", "says", "do"),
    [
        ("qwen2.5", r"no chat template 'qwen2\.5'", "qwen2_5"),
        ("../secret", "no chat template", "student.chat_template to one of"),
        ("llama3_1", "has no <|end_header_id|>, <|eom_id|>, <|eot_id|>", "special tokens"),
    ],
)
def test_a_template_that_trl_or_the_vocabulary_lacks_is_refused(name: str, says: str, do: str):
    with pytest.raises(Stop, match=says.replace("|", r"\|")) as stop:
        trl_template(name, byte_level("<|im_end|>", "<|endoftext|>"))
    assert do in str(stop.value)
