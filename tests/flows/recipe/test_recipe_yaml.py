"""A recipe means what a person reads in it; what could be meant otherwise is refused with both readings."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from apprentice.flows.recipe.loading import load_recipe, read_file, with_overrides
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.recipe.recipe_yaml import MAX_BYTES, MAX_DEPTH, recipe_text
from apprentice.tasks.reporting.errors import Stop

BARE = """name: bare
environment: {name: reasoning_gym, settings: {dataset: spell_backward}}
teacher: {model: some-model}
student: {build: {hidden_size: 32, intermediate_size: 64, layers: 1, heads: 2, max_positions: 256}}
windows: {collect: {size: 60}, grpo: {size: 60}, evaluate: {size: 60}}
evaluate: {questions: 40}
"""
DEFAULT = object()


def read(folder: Path, lines: str, *overrides: str) -> Recipe:
    (folder / "recipe.yaml").write_text(BARE + lines)
    return load_recipe(folder / "recipe.yaml", overrides)


def at(recipe: Recipe, path: str) -> Any:
    found: Any = recipe
    for name in path.split("."):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    return found


@pytest.mark.parametrize(
    ("lines", "path", "meant"),
    [
        ("grpo:\n", "grpo", DEFAULT),
        ("grpo:\n  # max_steps: 10\n  # beta: 0.1\n", "grpo", DEFAULT),
        ("sft:\n  # epochs: 10\n", "sft", DEFAULT),
        ("collect:\n", "collect", DEFAULT),
        ("gate: # nothing\nprobe: {questions: 16}\n", "gate", DEFAULT),
        ("guards:\n", "guards", DEFAULT),
        ("report_to:\n", "report_to", DEFAULT),
        ("seed:\n", "seed", DEFAULT),
        ("grpo:\n  generation:\n    # mode: server\n", "grpo", DEFAULT),
        ("grpo: off\n", "grpo", None),
        ("sft: false\n", "sft", None),
        ("grpo: Off\n", "grpo", None),
        ("seed: 010\n", "seed", 10),
        ("seed: 0x10\n", "seed", 16),
        ("probe: {questions: 1_000}\n", "probe.questions", 1000),
        ("seed: 1e1\n", "seed", 10),
        ("grpo: {learning_rate: 1e-5}\n", "grpo.learning_rate", 1e-5),
        ("grpo: {learning_rate: 1.e-5}\n", "grpo.learning_rate", 1e-5),
        ("sft: {args: {weight_decay: 1e-6}}\n", "sft.args.weight_decay", 1e-6),
        ("sft: {bf16: yes}\n", "sft.bf16", True),
        ("sft: {bf16: off}\n", "sft.bf16", False),
    ],
)
def test_a_value_is_what_a_person_reads_in_it(tmp_path: Path, lines: str, path: str, meant: Any):
    expected = at(read(tmp_path, ""), path) if meant is DEFAULT else meant
    assert at(read(tmp_path, lines), path) == expected


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("seed: 1\nseed: 2\n", "seed is given twice, in line 7 and in line 8"),
        ("sft: {epochs: 1}\ngrpo: {max_steps: 2}\nsft: {epochs: 3}\n", "sft is given twice, in line 7 and in line 9"),
        ("collect:\n  asks: 1\n  asks: 5\n", "collect.asks is given twice, in line 8 and in line 9"),
        ("grpo: null\n", "line 7: grpo is null.\n→ Write grpo: off, or take the line out for the defaults"),
        ("sft: ~\n", "line 7: sft is null."),
        ("seed: 1:30\n", "seed: .* not '1:30' \\(line 7\\)"),
        ("seed: yes\n", "seed: .* not 'yes' \\(line 7\\)"),
        ("collect: {asks: true}\n", "collect.asks: Input should be a number, not 'true' \\(line 7\\)"),
        ("collect: {asks: 1,5}\n", "collect.5: Keys should be strings"),
        ("collect:\n  ask:\n", "collect.ask: unknown field; did you mean asks\\? \\(line 8\\)"),
        ("grpo: {learning_rate: 1e-5f}\n", "grpo.learning_rate: .* not '1e-5f' \\(line 7\\)"),
        ("collect: {asks: 1.5}\n", "collect.asks: .* not '1.5' \\(line 7\\)"),
        ("a: &a [*a]\n", "line 7: an alias contains itself"),
        ("a: !!python/object/apply:os.system [ls]\n", "line 7: could not determine a constructor"),
        ("\tseed: 1\n", "line 7"),
        ("[a, b]: 1\n", "line 7: a key is a word"),
        ("collect: {asks:1}\n", "line 7: asks:1 has no space behind its colon: asks: 1"),
        (f"a: {'[' * (MAX_DEPTH - 1)}{']' * (MAX_DEPTH - 1)}\n", "a: unknown field"),
        (f"a: {'[' * MAX_DEPTH}1{']' * MAX_DEPTH}\n", f"line 7: it is nested deeper than {MAX_DEPTH} levels"),
        (f"a: {'[' * 2000}", f"it is nested deeper than {MAX_DEPTH} levels"),
        ("a: 'b\x07'\n", "special characters are not allowed"),
        ("---\nseed: 1\n", "another document|single document"),
        (f"seed: {'9' * 5000}\n", "a number is too long"),
        (f"# {'x' * MAX_BYTES}\n", "bytes; a recipe has at most 65,536"),
    ],
)
def test_what_could_be_meant_otherwise_is_refused_with_its_line(tmp_path: Path, lines: str, said: str):
    with pytest.raises(Stop, match=said):
        read(tmp_path, lines)


@pytest.mark.parametrize(
    ("override", "path", "meant"),
    [
        ("teacher.model=@cf/meta/llama-3.1-8b", "teacher.model", "@cf/meta/llama-3.1-8b"),
        ("teacher.model=qwen3:8b", "teacher.model", "qwen3:8b"),
        ("teacher.model=model #2", "teacher.model", "model #2"),
        ("teacher.model=*", "teacher.model", "*"),
        ("teacher.model='quoted'", "teacher.model", "quoted"),
        ("teacher.temperature=null", "teacher.temperature", None),
        ("seed=007", "seed", 7),
        ("grpo=", "grpo", DEFAULT),
        ("grpo=off", "grpo", None),
        ("sft=false", "sft", None),
        ("guards=[]", "guards", []),
    ],
)
def test_an_override_keeps_what_the_shell_gave(tmp_path: Path, override: str, path: str, meant: Any):
    expected = at(read(tmp_path, ""), path) if meant is DEFAULT else meant
    assert at(read(tmp_path, "", override), path) == expected


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed=3 # not 4", "seed: .* not '3 # not 4'"),
        ("grpo=null", "Use --set grpo=off"),
        ("guards=[", "guards=…: line 1"),
        ("environment.settings={tasks: [{task_id:one}]}", "task_id:one has no space behind its colon: task_id: one"),
        ("seed", "--set seed is not of the form path=value"),
        ("=3", "--set =3 is not of the form path=value"),
        ("name.first=3", "--set name.first=…: name has no fields"),
    ],
)
def test_an_override_that_means_nothing_is_shown(tmp_path: Path, override: str, said: str):
    with pytest.raises(Stop, match=said):
        read(tmp_path, "", override)


def test_a_file_that_cannot_be_read_is_told_and_one_that_holds_no_fields_is_no_recipe(tmp_path: Path):
    with pytest.raises(Stop, match=r"cannot be read as a recipe: .*directory"):
        read_file(tmp_path)
    (tmp_path / "list.yaml").write_text("[1]")
    with pytest.raises(Stop, match=r"list.yaml is not a recipe"):
        read_file(tmp_path / "list.yaml")


def test_a_recipe_is_changed_by_overrides_that_are_checked(tmp_path: Path):
    recipe = read(tmp_path, "")
    assert with_overrides(recipe, []) is recipe
    assert with_overrides(recipe, ["seed=7", "sft.epochs=2"]).seed == 7
    with pytest.raises(Stop, match=f"(?s)not valid for the recipe {recipe.name}:.*seed: .*-1"):
        with_overrides(recipe, ["seed=-1"])


def test_a_file_of_a_windows_editor_is_read(tmp_path: Path):
    (tmp_path / "recipe.yaml").write_bytes("\ufeff".encode() + BARE.replace("\n", "\r\n").encode())
    assert load_recipe(tmp_path / "recipe.yaml").name == "bare"
    (tmp_path / "recipe.yaml").write_bytes(BARE.encode("utf-16"))
    with pytest.raises(Stop, match="byte 0 is not UTF-8 text; save the file as UTF-8"):
        load_recipe(tmp_path / "recipe.yaml")


def test_a_recipe_with_trainings_off_is_written_and_read_back(tmp_path: Path):
    recipe = read(tmp_path, "grpo: off\nstore: {license: '1e5'}\n", "teacher.temperature=null")
    (tmp_path / "again.yaml").write_text(recipe_text(recipe.model_dump(mode="json")))
    assert load_recipe(tmp_path / "again.yaml") == recipe


BOMB = (
    "a0: &a0 {x: 1, y: 2}\n"
    + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    + "guards: [*a11]\n"
)
DEEP = "environment: " + "[" * (MAX_BYTES - 20)
MERGED = "m0: &m0 {x: 1}\n" + "".join(f"m{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}], k{n}: 1}}\n" for n in range(1, 30))
READER = """
import json, resource, sys, time
from pathlib import Path
from apprentice.flows.recipe.loading import load_recipe
from apprentice.tasks.reporting.errors import Stop
before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
try:
    load_recipe(Path(sys.argv[1]))
except Stop as stop:
    said = str(stop)
megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
print(json.dumps([said, time.process_time() - begun, megabytes]))
"""


@pytest.mark.parametrize(("text", "said"), [(BOMB, "50,000 values"), (DEEP, "64 levels"), (MERGED, "50,000 values")])
def test_a_recipe_that_would_grow_without_end_is_refused_in_little_time_and_memory(
    tmp_path: Path, text: str, said: str
):
    (tmp_path / "bomb.yaml").write_text(text)
    done = subprocess.run([sys.executable, "-c", READER, tmp_path / "bomb.yaml"], capture_output=True, check=True)
    words, seconds, megabytes = json.loads(done.stdout)
    assert said in words
    assert seconds < 5  # one on an idle machine
    assert megabytes < 200


def test_a_text_that_may_be_a_key_is_not_repeated(tmp_path: Path):
    (tmp_path / "recipe.yaml").write_text(BARE.replace("teacher: {model: some-model}", "teacher: sk-of-somebody"))
    with pytest.raises(Stop, match="line 3") as stop:
        load_recipe(tmp_path / "recipe.yaml")
    assert "sk-of-somebody" not in str(stop.value)
