"""A published student at servers that we did not write: vLLM on the CPU and transformers' own, as its card says.

They give it the prompt ids of its training, and it answers as it does in an evaluation here.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from apprentice import load_recipe
from apprentice.envs.base import tool_schemas
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.record import read_episodes
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS, chat_format, prompt_ids, row_ids, training_row
from apprentice.tasks.models.tokenizer import load_tokenizer, prepare_tokenizer, vllm_parser
from apprentice.tasks.training.families import TOOL, family, templates, toy_tokenizer
from tests.counterparts.servers import BIN, ON_CPU, VLLM, free_port, said, serving

RECIPE = Path(__file__).parents[2] / "deployments/recipes/echo-laptop.yaml"
SETTINGS = ["windows.collect.size=600", "sft.epochs=3", "sft.held_out=0", "sft.control=false"]
SETTINGS += ["evaluate.decoding=greedy", "evaluate.questions=100"]
TRAIN = """
import sys
from apprentice import collect, evaluate, load_recipe, sft
recipe = load_recipe(sys.argv[1], sys.argv[2:])
trained = sft(recipe, collect(recipe))
print("FOLDERS", trained.folder, evaluate(recipe, trained).folder)
"""


class Student(NamedTuple):
    home: Path
    """Where the commands run: with the store."""
    folder: Path
    """The published checkpoint."""
    episodes: list[Any]
    """Its evaluation's."""


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Student:
    """A student of three epochs, which is mostly right."""
    home = tmp_path_factory.mktemp("served")
    settings = [*SETTINGS, f"store.path={home / 'store'}"]
    printed = said(home, sys.executable, "-c", TRAIN, str(RECIPE), *settings)
    folder, evaluated = re.findall(r"^FOLDERS (\S+) (\S+)$", printed, re.MULTILINE)[0]
    return Student(home, Path(folder), read_episodes(Path(evaluated)))


@pytest.fixture(scope="module", params=["vllm", "transformers"])
def served(student: Student, request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """The address and the model's name, served by the card's own command."""
    commands = re.findall(r"```bash\n(.*?)```", (student.folder / "README.md").read_text(), re.DOTALL)[-1].splitlines()
    words = shlex.split(next(each for each in commands if each.startswith(f"{request.param} serve . ")))
    port, log = free_port(), student.home / f"{request.param}.log"
    if request.param == "vllm":  # its command line is missing in the package for the CPU
        words[:3] = [str(VLLM / "python"), "-m", "vllm.entrypoints.openai.api_server", "--model", str(student.folder)]
    else:
        words[:3] = [str(BIN / "transformers"), "serve", str(student.folder)]
    words += ["--port", str(port), "--dtype", "float32"]  # as the evaluation here computes
    with serving(words, f"http://127.0.0.1:{port}/health", log, patience=400.0, **ON_CPU):
        yield f"http://127.0.0.1:{port}", "student" if request.param == "vllm" else str(student.folder)


def test_a_served_student_has_the_prompt_ids_and_the_accuracy_of_its_evaluation(
    student: Student, served: tuple[str, str]
):
    url, name = served
    tokenizer, environment = load_tokenizer(student.folder), load_recipe(str(RECIPE)).environment.make()
    tools = tool_schemas(environment)
    for episode in student.episodes if name == "student" else ():  # transformers' server shows no ids
        messages = prompt(environment, episode.question)
        asked = {"model": name, "messages": messages, "tools": tools, "chat_template_kwargs": TEMPLATE_ARGUMENTS}
        shown = httpx.post(f"{url}/tokenize", json=asked).raise_for_status().json()["tokens"]
        assert shown == prompt_ids(tokenizer, messages, tools)
    there = evaluated(student, f"{url}/v1#{name}")
    assert len(there) == len(student.episodes) == 100
    assert [each.prompt_tokens for each in there] == [each.prompt_tokens for each in student.episodes]
    assert sum(each.is_right for each in student.episodes) > 50
    same = sum(one.reward == other.reward for one, other in zip(there, student.episodes, strict=True))
    assert same >= 97, "greedy answers differ where two tokens are as likely"


def evaluated(student: Student, model: str) -> list[Any]:
    """The episodes of the endpoint's evaluation by the command that the card names."""
    sets = [word for each in (*SETTINGS, f"store.path={student.home / 'store'}") for word in ("--set", each)]
    before = set((student.home / "store").rglob("episodes.jsonl"))
    said(student.home, str(BIN / "apprentice"), "evaluate", str(RECIPE), *sets, "--model", model, "--served-student")
    [made] = {each for each in set((student.home / "store").rglob("snapshots/*/episodes.jsonl")) - before}
    return read_episodes(made.parent)


PARSE = """
import json, sys
from transformers import AutoTokenizer
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.tool_parsers import ToolParserManager
for name, case in json.load(sys.stdin).items():
    tokenizer = AutoTokenizer.from_pretrained(case["folder"])
    asked = [{"role": "user", "content": "user"}]
    request = ChatCompletionRequest(model="m", messages=asked, tools=[case["tool"]], tool_choice="auto")
    parser = ToolParserManager.get_tool_parser(case["parser"])(tokenizer, request.tools)
    skip = parser.adjust_request(request).skip_special_tokens
    found = parser.extract_tool_calls(tokenizer.decode(case["ids"], skip_special_tokens=skip), request=request)
    calls = [[call.function.name, json.loads(call.function.arguments)] for call in found.tool_calls]
    print(json.dumps([name, calls]))
"""
HARMONY = "gptoss"
"""Its parser reads the ids of gpt-oss' own tokenizer, which no byte-level one has."""


def test_the_parser_that_a_card_names_reads_the_calls_of_its_family(tmp_path: Path):
    cases = {}
    for name, template in templates().items():
        if family(name, toy_tokenizer(template)).fault or name == HARMONY:
            continue
        tokenizer = prepare_tokenizer(toy_tokenizer(template))
        tokenizer.add_tokens(["<|python_tag|>"], special_tokens=True)  # Llama's, which only some of its templates name
        tokenizer.save_pretrained(tmp_path / name)
        call = {"type": "function", "function": {"name": "answer", "arguments": {"answer": "a b", "count": 7}}}
        asked: list[dict[str, Any]] = [{"role": "user", "content": "user"}]
        row = training_row([*asked, {"role": "assistant", "content": "", "tool_calls": [call]}], [TOOL])
        ids = row_ids(tokenizer, row | {"messages": row["messages"][:2]})[len(prompt_ids(tokenizer, asked, [TOOL])) :]
        end = next((at for at, token in enumerate(ids) if token in chat_format(tokenizer).ends), len(ids))
        about = {"folder": str(tmp_path / name), "tool": TOOL, "ids": ids[: end + 1]}
        cases[name] = about | {"parser": vllm_parser(tokenizer.chat_template)}
    command = [str(VLLM / "python"), "-c", PARSE]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, env=os.environ | ON_CPU)
    assert done.returncode == 0, done.stderr
    read = dict(map(json.loads, (line for line in done.stdout.splitlines() if line.startswith("["))))
    assert read == {name: [["answer", {"answer": "a b", "count": 7}]] for name in cases}
    assert vllm_parser(templates()[HARMONY]) == "openai"
