"""Files for llama.cpp are whole or not there, and a model that it cannot serve is refused with the reason."""

import errno
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from apprentice.tasks.artifacts.foreign.models import ModelSource, name_code
from apprentice.tasks.artifacts.store_files import disk_errors
from apprentice.tasks.episodes.thinking import THOUGHT, think
from apprentice.tasks.models.tokenizer import load_tokenizer, prepare_tokenizer
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.serving import gguf
from apprentice.tasks.serving.engine import LLAMA_CPP, engine_for, llama_cpp_file, llama_server
from apprentice.tasks.serving.gguf import check_exportable, check_tools
from apprentice.tasks.serving.modelfile import modelfile
from apprentice.tasks.serving.to_gguf import NO_MERGES, split_name
from apprentice.tasks.settings.spec import ThinkingSpec
from tests.llama_student import write_llama
from tests.students_page import templates, toy_tokenizer


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama that was prepared as a student is."""
    folder = write_llama(tmp_path_factory.mktemp("llama"), hidden=32, layers=1)
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = templates()["qwen2_5"]
    prepare_tokenizer(tokenizer).save_pretrained(folder)
    return folder


def test_a_trained_llama_can_be_exported(checkpoint: Path):
    check_exportable(checkpoint, load_tokenizer(checkpoint), "toy")


def refusal(checkpoint: Path, tokenizer: Any) -> str:
    with pytest.raises(Stop, match=r"--engine transformers") as stopped:
        check_exportable(checkpoint, tokenizer, "toy@abc")
    assert stopped.value.cause.startswith("toy@abc cannot be exported: ")
    return stopped.value.cause


def test_an_unknown_template_is_refused(checkpoint: Path):
    tokenizer = load_tokenizer(checkpoint)
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    assert "chat template is unknown" in refusal(checkpoint, tokenizer)
    tokenizer.chat_template = None
    assert "no chat template" in refusal(checkpoint, tokenizer)


def test_a_built_students_tokenizer_of_single_bytes_is_refused_by_name(checkpoint: Path, tmp_path: Path):
    tokenizer = load_tokenizer(checkpoint)
    whole = json.loads((checkpoint / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole | {"model": whole["model"] | {"merges": []}}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert NO_MERGES in refusal(tmp_path, tokenizer)


def test_a_models_own_python_code_and_weights_elsewhere_are_refused(checkpoint: Path, tmp_path: Path):
    tokenizer = load_tokenizer(checkpoint)
    assert "weights are not here" in refusal(tmp_path, tokenizer)
    (tmp_path / "model.safetensors").write_bytes(b"")
    name_code(tmp_path, ModelSource("owner/odd", "a" * 40))
    assert "Python code of owner/odd" in refusal(tmp_path, tokenizer)


@pytest.mark.parametrize(
    ("steps", "name"),
    [
        ({"type": "ByteLevel", "add_prefix_space": False, "use_regex": True, "trim_offsets": True}, "gpt-2"),
        (
            {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Digits", "individual_digits": True},
                    {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
                ],
            },
            "smollm",
        ),
        ({"type": "Whitespace"}, None),
        (None, None),
    ],
)
def test_how_a_text_is_split_is_read_from_the_tokenizers_file(steps: Any, name: str | None):
    assert split_name({"pre_tokenizer": steps}) == name


HALF = "import sys; open(sys.argv[1], 'w').write('half'); {end}"


def written(to: Path, end: str) -> None:
    gguf._write(lambda file: [sys.executable, "-c", HALF.format(end=end), str(file)], to, 1, "toy")


def test_a_file_appears_whole_and_is_not_made_again(tmp_path: Path):
    written(tmp_path / "a.gguf", "pass")
    written(tmp_path / "a.gguf", "raise SystemExit(1)")
    assert [each.name for each in tmp_path.iterdir()] == ["a.gguf"]


@pytest.mark.parametrize(
    "text", ["OSError: [Errno 28] No space left on device", "write failed: no space left on device"]
)
def test_a_disk_that_fills_up_leaves_no_half_of_a_file_and_says_to_make_room(tmp_path: Path, text: str):
    with pytest.raises(Stop, match=r"No space left on device[^→]*\n→ Make room"), disk_errors(tmp_path):
        written(tmp_path / "a.gguf", f"sys.exit({text!r})")
    assert not [*tmp_path.iterdir()]


def test_a_disk_without_room_is_noticed_before_anything_is_written(tmp_path: Path):
    with pytest.raises(OSError, match="MB are needed") as failed:
        gguf._write(lambda file: [sys.executable, "-c", "1/0"], tmp_path / "a.gguf", 10**18, "toy")
    assert failed.value.errno == errno.ENOSPC


def test_a_model_that_the_converter_does_not_know_is_refused_by_name(tmp_path: Path):
    with pytest.raises(Stop, match=r"toy cannot be exported: .*Model OddForCausalLM is not supported[^→]*\n→ Serve it"):
        written(tmp_path / "a.gguf", "sys.exit('ERROR:hf-to-gguf:Model OddForCausalLM is not supported')")
    with pytest.raises(Stop, match=r"wrote no a\.gguf: Segmentation fault"):
        written(tmp_path / "a.gguf", "sys.exit('Segmentation fault')")
    assert not [*tmp_path.iterdir()]


def test_missing_programs_are_named_with_where_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(LLAMA_CPP, raising=False)
    with pytest.raises(
        Stop, match=r"llama-server and convert_hf_to_gguf.py and llama-quantize are not found[^→]*\n→.*LLAMA_CPP"
    ):
        check_tools(["f16", "q8_0"])
    with pytest.raises(Stop, match=r"engine llama\.cpp is not installed.\n→ Install llama\.cpp"):
        engine_for("llama.cpp")
    (tmp_path / "build/bin").mkdir(parents=True)
    (tmp_path / "build/bin/llama-server").write_text("")
    monkeypatch.setenv(LLAMA_CPP, str(tmp_path))
    assert llama_cpp_file("llama-server") == tmp_path / "build/bin/llama-server"


def test_an_engine_that_is_not_installed_names_the_extra():
    with pytest.raises(
        Stop, match=r"engine vllm is not installed.\n→ Install it: pip install 'openenv-apprentice\[vllm\]'"
    ):
        engine_for("vllm")
    assert engine_for(None) == "transformers"


def test_a_modelfile_has_the_stop_tokens_the_sampling_and_the_tools_of_training(checkpoint: Path):
    decoding = {"decoding": "sampled", "temperature": 0.7, "max_new_tokens": 40}
    text = modelfile("toy-q8_0.gguf", load_tokenizer(checkpoint), decoding, 512)
    lines = text.splitlines()
    assert "FROM ./toy-q8_0.gguf" in lines
    assert 'PARAMETER stop "<|im_end|>"' in lines
    assert {"PARAMETER temperature 0.7", "PARAMETER top_k 0", "PARAMETER repeat_penalty 1.0"} <= {*lines}
    assert {"PARAMETER num_predict 40", "PARAMETER num_ctx 512"} <= {*lines}
    template = text.split('"""')[1]
    assert template.startswith("<|im_start|>system\n{{ .System }}{{- if .Tools }}\n\n# Tools")
    assert "%" not in template, "every mark was replaced"
    assert template.count("{{") == template.count("}}")


def in_ollama(family: str, mode: Any) -> tuple[list[str], str]:
    """The lines of a student's Modelfile, and what its template writes of an earlier turn before the call."""
    spec = ThinkingSpec(mode=mode, max_tokens=96) if mode else None
    tokenizer = think(prepare_tokenizer(toy_tokenizer(templates()[family])), spec)
    text = modelfile("a.gguf", tokenizer, {"temperature": 1.0, "max_new_tokens": 48}, 512)
    _, _, turn = text.partition('{{ else if eq .Role "assistant" }}<|im_start|>assistant')
    return text.splitlines(), turn.partition("{{ if .Content }}")[0]


EMPTY, OWN = "\n<think>\n\n</think>\n", "\n<think>\n{{ .Thinking }}\n</think>\n"


@pytest.mark.parametrize(
    ("family", "mode", "most", "before"),
    [
        ("qwen2_5", None, 48, ""),
        ("qwen2_5", "text", 48 + 96, ""),
        ("qwen3", None, 48, EMPTY),
        ("qwen3", "text", 48 + 96, EMPTY),
        ("qwen3", "native", 48 + 96, f"{{{{ if .Thinking }}}}{OWN}{{{{ end }}}}"),
    ],
)
def test_a_modelfile_has_room_for_a_thought_and_keeps_those_of_earlier_turns(
    family: str, mode: Any, most: int, before: str
):
    lines, found = in_ollama(family, mode)
    assert f"PARAMETER num_predict {most}" in lines
    assert found == before


@pytest.mark.parametrize("mode", ["text", "native"])
def test_an_earlier_turn_is_in_ollama_what_it_is_in_training(mode: str):
    _, before = in_ollama("qwen3", mode)
    call = {"type": "function", "function": {"name": "answer", "arguments": {"answer": "85", "count": 7}}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call], THOUGHT: "47 + 38 = 85."}
    tokenizer = think(prepare_tokenizer(toy_tokenizer(templates()["qwen3"])), ThinkingSpec(mode=mode))  # type: ignore[arg-type]
    trained = tokenizer.apply_chat_template([{"role": "user", "content": "u"}, turn], tokenize=False)
    block = before.replace("{{ if .Thinking }}", "").replace("{{ end }}", "").replace("{{ .Thinking }}", turn[THOUGHT])
    text = f"\n{turn[THOUGHT]}" if mode == "text" else ""  # the answer's text, as Ollama reads it
    assert f"<|im_start|>assistant{block}{text}\n<tool_call>" in trained


def test_a_template_of_another_family_has_no_modelfile():
    assert modelfile("a.gguf", toy_tokenizer(templates()["llama3_1"]), {}, 512) == ""


def test_llama_server_is_told_of_thinking_only_where_the_template_has_a_switch():
    assert "--chat-template-kwargs" in llama_server("llama-server", "a", templates()["qwen3"], 1, 512)
    plain = llama_server("llama-server", "a", templates()["qwen2_5"], 4, 512)
    assert "--chat-template-kwargs" not in plain
    assert plain[plain.index("--ctx-size") + 1] == "2048", "of four requests together"
