"""A published student at servers that we did not write: vLLM on the CPU and transformers' own, as its card says.

They give it the prompt ids of its training, and it answers as it does in an evaluation here.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from apprentice import load_recipe
from apprentice.tasks.advice.behaviour import calls_of
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.record import read_episodes
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS, chat_format, prompt_ids, row_ids, training_row
from apprentice.tasks.episodes.thinking import THOUGHT, think
from apprentice.tasks.models.tokenizer import load_tokenizer, prepare_tokenizer, reasoning_parser, vllm_parser
from apprentice.tasks.settings.spec import ThinkingSpec
from apprentice.tasks.training.template import fault_of
from tests.counterparts.servers import BIN, BUILD, ON_CPU, VLLM, free_port, ran, said, serving
from tests.students_page import TOOL, family, templates, toy_tokenizer

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "deployments/recipes"
SETTINGS = ["sft.held_out=0", "sft.control=false", "evaluate.decoding=greedy", "evaluate.questions=100"]
WORDS = {"dataset": "spell_backward", "config": {"min_word_len": 3, "max_word_len": 3}}
SPELLER = [
    f"environment.settings={json.dumps(WORDS)}",
    "windows.collect.size=300",
    "sft.epochs=12",
    "evaluate.max_new_tokens=40",
    "student.build.max_positions=512",
    "student.build.heads=2",  # vLLM's attention on the CPU begins at heads of 32
    "student.build.pretraining_steps=800",
]
NATIVE = ["student.thinking={mode: native, max_tokens: 40}", "student.chat_template=qwen3"]
STUDENTS = {
    "answers at once": (RECIPES / "echo-laptop.yaml", ["windows.collect.size=600", "sft.epochs=3"]),
    "thinks": (RECIPES / "laptop.yaml", [*SPELLER, "student.thinking={mode: text, max_tokens: 40}"]),
    "thinks natively": (RECIPES / "laptop.yaml", [*SPELLER, *NATIVE]),
}
TRAIN = """
import sys
from apprentice import collect, evaluate, load_recipe, sft
recipe = load_recipe(sys.argv[1], sys.argv[2:])
trained = sft(recipe, collect(recipe))
print("FOLDERS", trained.folder, evaluate(recipe, trained).folder, trained.artifact.key)
"""


class Student(NamedTuple):
    recipe: list[str]
    """The recipe and its settings, as of a command."""
    home: Path
    """Where the commands run: with the store."""
    folder: Path
    """The published checkpoint."""
    episodes: list[Any]
    """Its evaluation's."""
    key: str


PAIRS = [
    ("answers at once", "transformers"),
    ("thinks natively", "vllm"),
    ("thinks", "transformers"),
    ("thinks", "vllm"),
]
"""Which server answers for which student."""


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Student:
    """A student that is mostly right."""
    home = tmp_path_factory.mktemp("served")
    recipe, own = request.param
    settings = [*SETTINGS, *own, f"store.path={home / 'store'}"]
    printed = said(home, sys.executable, "-c", TRAIN, str(recipe), *settings)
    folder, evaluated, key = re.findall(r"^FOLDERS (\S+) (\S+) (\S+)$", printed, re.MULTILINE)[0]
    return Student([str(recipe), *settings], home, Path(folder), read_episodes(Path(evaluated)), key)


@pytest.fixture(scope="module")
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


@pytest.mark.parametrize(
    ("student", "served"),
    [(STUDENTS[student], server) for student, server in PAIRS],
    ids=[f"{student}, {server}" for student, server in PAIRS],
    indirect=True,
)
def test_a_served_student_has_the_prompt_ids_and_the_accuracy_of_its_evaluation(
    student: Student, served: tuple[str, str]
):
    url, name = served
    path, *settings = student.recipe
    tokenizer, environment = load_tokenizer(student.folder), load_recipe(path, settings).environment.make()
    tools = environment.schemas
    for episode in student.episodes if name == "student" else ():  # transformers' server shows no ids
        messages = prompt(environment, episode.question)
        request = {"model": name, "messages": messages, "tools": tools, "chat_template_kwargs": TEMPLATE_ARGUMENTS}
        shown = httpx.post(f"{url}/tokenize", json=request).raise_for_status().json()["tokens"]
        assert shown == prompt_ids(tokenizer, messages, tools)
    if name == "student":
        check_second_turn(student.episodes, f"{url}", tokenizer, tools)
    there = evaluated(student, f"{url}/v1#{name}")
    assert len(there) == len(student.episodes) == 100
    pairs = [pair for pair in zip(there, student.episodes, strict=True) if not pair[0].broken]
    assert len(pairs) >= 97, "transformers' server answers 500 where a call is no JSON"
    assert all(one.prompt_tokens == other.prompt_tokens for one, other in pairs)
    assert sum(each.is_right for each in student.episodes) > 50
    same = sum(one.score == other.score for one, other in zip(there, student.episodes, strict=True))
    assert same >= 97, "greedy answers differ where two tokens are as likely"
    assert abs(thoughts(there) - thoughts(student.episodes)) <= 3


@pytest.mark.parametrize("student", [STUDENTS["thinks"]], ids=["thinks"], indirect=True)
def test_serve_answers_by_vllm_as_its_evaluation_did(student: Student):
    port, log = free_port(), student.home / "serve.log"
    main = "from apprentice.deployments.cli import main; main()"
    command = [str(VLLM / "python"), "-c", main, "serve", student.key, "--engine", "vllm", "--port", str(port)]
    command += ["--store", str(student.home / "store"), "--context", "512"]
    where = {"PYTHONPATH": str(ROOT), "PREFECT_HOME": str(student.home / "prefect"), **ON_CPU}
    url = f"http://127.0.0.1:{port}"
    path, *settings = student.recipe
    environment = load_recipe(path, settings).environment.make()
    with serving(command, f"{url}/health", log, patience=400.0, **where):
        [model] = httpx.get(f"{url}/v1/models").json()["data"]
        assert model["key"] == student.key
        called = [each for each in student.episodes[:24] if each.messages[2].get("tool_calls")]
        same = 0
        for episode in called:
            body: dict[str, Any] = {"model": "student", "messages": prompt(environment, episode.question)}
            body |= {"tools": environment.schemas, "temperature": 0.0, "max_tokens": 80}
            answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60.0).raise_for_status().json()
            assert answer["usage"]["prompt_tokens"] == episode.prompt_tokens
            there, here = (
                [call for call, _ in calls_of([message])]
                for message in (answer["choices"][0]["message"], episode.messages[2])
            )
            same += there == here
    assert len(called) >= 20
    assert same >= 0.8 * len(called), "vLLM answers in bf16, so some greedy answers differ"


def check_second_turn(episodes: list[Any], url: str, tokenizer: Any, tools: list[dict[str, Any]]) -> None:
    """vLLM's own message, sent back as any client does, is rendered as training renders the turn."""
    same, reply = 0, {"role": "tool", "name": "answer", "content": "Try again."}
    for episode in [each for each in episodes if each.messages[2].get("tool_calls")][:8]:
        opening, turn = episode.messages[:2], episode.messages[2]
        body: dict[str, Any] = {"model": "student", "messages": opening, "tools": tools}
        asked = body | {"temperature": 0.0, "max_tokens": 80}
        answer = httpx.post(f"{url}/v1/chat/completions", json=asked, timeout=60.0).raise_for_status().json()
        own = answer["choices"][0]["message"]
        thought = own.get("reasoning_content") or own.get("reasoning") or own["content"] or ""
        if not own["tool_calls"] or thought.strip() != turn.get(THOUGHT, ""):
            continue  # greedy answers differ where two tokens are as likely
        back = body | {"messages": [*opening, own, reply | {"tool_call_id": own["tool_calls"][0]["id"]}]}
        shown = httpx.post(f"{url}/tokenize", json=back).raise_for_status().json()["tokens"]
        assert shown == prompt_ids(tokenizer, [*opening, turn, reply], tools)
        same += 1
    assert same >= 4


def thoughts(episodes: list[Any]) -> int:
    return sum(bool(message.get(THOUGHT)) for episode in episodes for message in episode.messages)


def evaluated(student: Student, model: str) -> list[Any]:
    """The episodes of the endpoint's evaluation by the command that the card names."""
    path, *settings = student.recipe
    sets = [word for each in (*settings, "teacher.patience=5") for word in ("--set", each)]
    before = set((student.home / "store").rglob("episodes.jsonl"))
    command = [str(BIN / "apprentice"), "evaluate", path, *sets, "--model", model, "--served-student"]
    first = ran(student.home, *command)
    if first.returncode:
        assert "Run again: only these are asked" in first.stdout + first.stderr
        said(student.home, *command)
    [made] = {each for each in set((student.home / "store").rglob("snapshots/*/episodes.jsonl")) - before}
    return read_episodes(made.parent)


PARSE = """
import json, sys
from transformers import AutoTokenizer
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser.parser_manager import ParserManager
for name, case in json.load(sys.stdin).items():
    tokenizer, parser = AutoTokenizer.from_pretrained(case["folder"]), case["parser"]
    asked, switch = [{"role": "user", "content": "user"}], {"enable_thinking": bool(case["reasons"])}
    request = ChatCompletionRequest(model="m", messages=asked, tools=[case["tool"]], tool_choice="auto")
    kind = ParserManager.get_parser(parser, case["reasons"], enable_auto_tools=True, is_harmony=parser == "openai")
    reader = kind(tokenizer, request.tools, chat_template_kwargs=switch)
    text = tokenizer.decode(case["ids"], skip_special_tokens=reader.adjust_request(request).skip_special_tokens)
    thought, _, calls = reader.parse(text, request, True, case["ids"])
    calls = [[call.name, json.loads(call.arguments)] for call in calls or []]
    print(json.dumps([name, ["" if thought is None else thought.strip("\\n"), calls]]))
"""
HARMONY = "gptoss"
"""Its parser reads the ids of gpt-oss' own tokenizer, which no byte-level one has."""


def harmony_vocabulary(tokenizer: Any, folder: Path) -> None:
    """Writes the tokenizer's tokens as the file that gpt-oss' parser otherwise downloads (and checks by its hash)."""
    byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}
    added = tokenizer.get_added_vocab()
    ranks = sorted((rank, token) for token, rank in tokenizer.get_vocab().items() if token not in added)
    lines = [f"{b64encode(bytes(map(byte_of.__getitem__, token))).decode()} {rank}\n" for rank, token in ranks]
    (folder / "o200k_base.tiktoken").write_text("".join(lines))


def test_the_parsers_that_a_card_names_read_the_calls_and_thoughts_of_its_family(tmp_path: Path):
    cases, expected = {}, {}
    for name, template in templates().items():
        if family(name, toy_tokenizer(template)).fault:
            continue
        own = AutoTokenizer.from_pretrained(BUILD / "tokenizers" / name) if name == HARMONY else None
        tokenizer = prepare_tokenizer(own or toy_tokenizer(template))
        tokenizer.add_tokens(["<|python_tag|>"], special_tokens=True)  # Llama's, which only some of its templates name
        for thought in ("", "47 + 30 = 77."):
            think(tokenizer, ThinkingSpec(mode="native") if thought else None)
            if thought and fault_of(tokenizer, [TOOL]):
                continue  # it writes no thoughts in a block of its own
            case = f"{name}, thinking" if thought else name
            tokenizer.save_pretrained(tmp_path / case)
            about = {"folder": str(tmp_path / case), "tool": TOOL, "ids": called(tokenizer, thought)}
            about |= {"parser": vllm_parser(tokenizer.chat_template), "reasons": None}
            cases[case] = about | ({"reasons": reasoning_parser(tokenizer.chat_template)} if thought else {})
            expected[case] = [thought, [["answer", {"answer": "a b", "count": 7}]]]
    harmony_vocabulary(AutoTokenizer.from_pretrained(BUILD / "tokenizers" / HARMONY), tmp_path)
    command = [str(VLLM / "python"), "-c", PARSE]
    variables = os.environ | ON_CPU | {"TIKTOKEN_ENCODINGS_BASE": str(tmp_path)}
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr
    read = dict(map(json.loads, (line for line in done.stdout.splitlines() if line.startswith("["))))
    assert read == expected
    assert sum("thinking" in case for case in cases) >= 15


def called(tokenizer: Any, thought: str) -> list[int]:
    """What a student of this family writes of a turn with a call, up to the token that ends it."""
    call = {"type": "function", "function": {"name": "answer", "arguments": {"answer": "a b", "count": 7}}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]} | ({THOUGHT: thought} if thought else {})
    messages: list[dict[str, Any]] = [{"role": "user", "content": "user"}]
    row = training_row([*messages, turn], [TOOL])
    prompt = prompt_ids(tokenizer, messages, [TOOL])
    ids = row_ids(tokenizer, row | {"messages": row["messages"][:2]})[len(prompt) :]
    end = next((at for at, token in enumerate(ids) if token in chat_format(tokenizer).ends), len(ids))
    return ids[: end + 1]
