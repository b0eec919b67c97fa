"""A trained model in llama.cpp: its own converter, quantizer and server, as `apprentice export` runs them.

`make test-counterparts NAME=llamacpp` builds them. The student is a small Llama that learns to repeat a word in a
minute, so its answers are worth comparing.
"""

import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from apprentice import load_recipe
from apprentice.tasks.episodes.record import read_episodes
from apprentice.tasks.serving.exported import ExportContents, read_export
from tests.counterparts.servers import BUILD, free_port, said, serving
from tests.llama_student import TEMPLATE, spans_of, write_llama

LLAMA_CPP = BUILD / "llamacpp"
PYTHON = LLAMA_CPP / "venv/bin/python"
COMMAND = (str(PYTHON), "-c", "from apprentice.deployments.cli import main; main()")
SETTINGS = ["grpo=off", "sft.epochs=8", "sft.control=false", "sft.held_out=0", "windows.collect.size=800"]
SETTINGS += ["windows.grpo.size=10", "evaluate.questions=100", "evaluate.decoding=greedy", "evaluate.max_new_tokens=16"]
TRAIN = """
import sys
from apprentice import collect, evaluate, load_recipe, sft
recipe = load_recipe("echo-laptop", sys.argv[1:])
trained = sft(recipe, collect(recipe))
print("KEY", trained.artifact.key, evaluate(recipe, trained).folder)
"""
QUESTIONS = 50

pytestmark = pytest.mark.skipif(
    not (LLAMA_CPP / "ready").exists(), reason="make test-counterparts NAME=llamacpp compiles it"
)


class Student(NamedTuple):
    home: Path
    key: str
    evaluation: Path
    overrides: list[str]


class Files(NamedTuple):
    folder: Path
    contents: ExportContents
    printed: str


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Student:
    home = tmp_path_factory.mktemp("llamacpp")
    spans = spans_of(load_recipe("echo-laptop").environment, range(9))
    model = write_llama(home / "llama", spans=spans)
    overrides = [*SETTINGS, f"student={{model: {model}, chat_template: {TEMPLATE}}}", f"store.path={home / 'store'}"]
    printed = said(home, str(PYTHON), "-c", TRAIN, *overrides, HF_HUB_OFFLINE="1")
    key, evaluation = re.findall(r"^KEY (\S+) (\S+)$", printed, re.MULTILINE)[0]
    return Student(home, key, Path(evaluation), overrides)


@pytest.fixture(scope="module")
def files(student: Student) -> Files:
    """Two forms, by the command."""
    to = student.home / "files"
    command = ["export", student.key, "--format", "gguf", "--quantize", "f16,q4_k_m", "--to", str(to)]
    printed = said(
        student.home,
        *COMMAND,
        *command,
        "--store",
        str(student.home / "store"),
        LLAMA_CPP=str(LLAMA_CPP),
        COLUMNS="200",
    )
    return Files(to, read_export(to), printed)


def test_every_prompt_has_the_ids_of_training_in_llama_cpp(files: Files):
    assert [(each.prompts_same, each.prompts) for each in files.contents.files] == [(100, 100)] * 2


def test_sixteen_bits_answer_as_the_checkpoint_and_the_table_shows_each_form(student: Student, files: Files):
    assert sum(each.is_right for each in read_episodes(student.evaluation)) > 50
    full, small = files.contents.files
    assert abs(full.difference.delta) <= 0.02
    assert full.bytes > small.bytes
    assert min(full.written_per_s, full.read_per_s, full.memory, small.written_per_s) > 0
    assert "export.margin" in full.sentence
    card = (files.folder / "README.md").read_text()
    assert "base_model_relation: quantized" in card
    assert all(each.sentence in card and each.command in card for each in files.contents.files)
    assert "100 of 100" in files.printed
    assert {each.name for each in files.folder.glob("Modelfile-*")} == {"Modelfile-f16", "Modelfile-q4_k_m"}


def test_50_questions_are_played_through_llama_server_with_tools_by_the_cards_command(student: Student, files: Files):
    full, port = files.contents.files[0], free_port()
    words = shlex.split(full.command)
    words[0] = str(LLAMA_CPP / "out/bin/llama-server")
    words[words.index("--model") + 1] = str(files.folder / full.name)
    words[words.index("--port") + 1] = str(port)
    before = set((student.home / "store").rglob("snapshots/*/episodes.jsonl"))
    sets = [word for each in student.overrides for word in ("--set", each)]
    with serving(words, f"http://127.0.0.1:{port}/health", student.home / "server.log"):
        asked = ["--model", f"http://127.0.0.1:{port}/v1#student", "--served-student", "--questions", str(QUESTIONS)]
        said(student.home, *COMMAND, "evaluate", "echo-laptop", *sets, *asked)
    [there] = {each for each in set((student.home / "store").rglob("snapshots/*/episodes.jsonl")) - before}
    played, here = read_episodes(there.parent), read_episodes(student.evaluation)[:QUESTIONS]
    assert [each.question for each in played] == [each.question for each in here]
    assert [each.prompt_tokens for each in played] == [each.prompt_tokens for each in here]
    assert all(message.get("tool_calls") for each in played if each.is_right for message in each.messages[2:3])
    assert sum(one.reward == other.reward for one, other in zip(played, here, strict=True)) >= QUESTIONS - 2


def test_serve_answers_by_the_exported_file(student: Student, files: Files):
    port = free_port()
    command = [*COMMAND, "serve", student.key, "--engine", "llama.cpp", "--port", str(port)]
    url, log = f"http://127.0.0.1:{port}", student.home / "serve.log"
    where = {"LLAMA_CPP": str(LLAMA_CPP), "PREFECT_HOME": str(student.home / "prefect")}
    with serving([*command, "--store", str(student.home / "store")], f"{url}/health", log, 120.0, **where):
        [model] = httpx.get(f"{url}/v1/models").json()["data"]
        assert model["key"] == student.key
        tools = [{"type": "function", "function": {"name": "echo", "parameters": {"type": "object"}}}]
        body = {"model": "student", "messages": [{"role": "user", "content": "bada"}], "tools": tools, "max_tokens": 8}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60.0).raise_for_status().json()
        assert answer["usage"]["completion_tokens"] > 0
        assert json.dumps(answer).count(str(student.home)) == 0
