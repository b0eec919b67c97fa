"""Folders import in one direction only, without circles; files are short; the flow imports fast, without torch.

`python -m tests.test_rooms` prints the imports of each folder, which a failure shows as well, and how much there is.
"""

import ast
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from statistics import median

import pytest

from apprentice.envs.old_names import HOOKS, OF_PLAYER, OF_SESSION, PARTS

ROOT = Path(__file__).parent.parent
ORDER = [
    *("envs/wire", "envs", "envs/serving"),
    *(
        "tasks/reporting",
        "tasks/settings",
        "tasks/files",
        "tasks/episodes",
        "tasks/formats",
        "tasks/artifacts",
        "tasks/lineage",
        "tasks/statistics",
        "tasks/judgement",
        "tasks/analysis",
        "tasks/advice",
        "tasks/models",
        "tasks/serving",
    ),
    *("tasks/engine", "tasks/endpoints", "tasks/players", "tasks/rollouts", "tasks/training", "tasks", "tasks/cards"),
    *(
        "flows/recipe",
        "flows/runtime",
        "flows/audit/play",
        "flows/audit",
        "flows/adoption",
        "flows/pages",
        "flows",
        "flows/serving",
        "flows/cli",
    ),
    "deployments",
]
"""Every folder imports from those before it only. A folder of one environment belongs to `envs`."""


def module_of(file: Path) -> str:
    return "apprentice." + ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


FILES = {
    module_of(file): file for room in ("envs", "tasks", "flows", "deployments") for file in (ROOT / room).rglob("*.py")
}


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def imports_of(file: Path) -> set[str]:
    """The modules that a file imports anywhere in it, also within functions and for type checking only."""
    found: set[str] = set()
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name for name in inner if name in FILES} or {node.module}
    return found & FILES.keys()


@cache
def imported_at_once(file: Path) -> set[str]:
    """The modules that importing a file imports, so without those within functions."""
    names = set[str]()
    for node in tree_of(file).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names & FILES.keys()


def folder_of(module: str) -> str:
    """The entry of ORDER that a module belongs to: the longest one that its path begins with."""
    path = FILES[module].relative_to(ROOT).parent.as_posix()
    return max((each for each in ORDER if path == each or path.startswith(f"{each}/")), key=len)


def picture() -> dict[str, set[str]]:
    """The folders that each folder imports from."""
    folders: defaultdict[str, set[str]] = defaultdict(set)
    for module, file in FILES.items():
        folders[folder_of(module)] |= {folder_of(each) for each in imports_of(file)} - {folder_of(module)}
    return folders


def as_text() -> str:
    drawn = picture()
    return "\n".join(f"{folder:24} <- {', '.join(each for each in ORDER if each in drawn[folder])}" for folder in ORDER)


def test_a_folder_imports_only_from_those_before_it():
    wrong = [
        f"{file.relative_to(ROOT)} imports {each}"
        for module, file in FILES.items()
        for each in imports_of(file)
        if ORDER.index(folder_of(each)) > ORDER.index(folder_of(module))
    ]
    assert not wrong, "\n".join([*wrong, "", as_text()])


def test_no_files_import_one_another_in_a_circle():
    graph = {module: imports_of(file) - {module} for module, file in FILES.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        raise AssertionError(f"{' → '.join(circle.args[1])}\n\n{as_text()}") from None


@cache
def lengths() -> dict[str, int]:
    """The lines of every file but the packages' own."""
    return {name: len(file.read_text().splitlines()) for name, file in FILES.items() if file.name != "__init__.py"}


def test_no_file_is_too_long_to_be_one_subject():
    lines = lengths()
    assert max(lines.values()) <= 450, max(lines, key=lambda name: lines[name])


def test_the_engine_of_stages_needs_few_lines_to_be_imported():
    needed, waiting = set[str](), ["apprentice.tasks.engine.stage"]
    while waiting:
        module = waiting.pop()
        if module not in needed:
            needed.add(module)
            waiting += imported_at_once(FILES[module])
    assert sum(lengths().get(module, 0) for module in needed) <= 3_200, sorted(needed)


def chain_of(graph: dict[str, set[str]]) -> list[str]:
    """The longest way along imports, from the file that needs the others to be imported first."""

    @cache
    def longest(module: str) -> tuple[str, ...]:
        return (module, *max(map(longest, graph[module]), key=len, default=()))

    return list(max(map(longest, graph), key=len))


def test_the_chain_of_imports_is_short():
    graph = {module: imported_at_once(file) - {module} for module, file in FILES.items()}
    assert len(chain_of(graph)) <= 15, "\n".join(chain_of(graph))


@cache
def names_in(file: Path) -> set[str]:
    """The names in a file's code and the strings that are one word; no prose."""
    with tokenize.open(file) as lines:
        found = list(tokenize.generate_tokens(lines.readline))
    words = {each.string for each in found if each.type == tokenize.NAME}
    return words | {each.string[1:-1] for each in found if each.type == tokenize.STRING and each.string[1:-1].isalnum()}


@pytest.mark.parametrize(("training", "most"), [("grpo", 15), ("sft", 10), ("dpo", 4)])
def test_few_files_know_a_training(training: str, most: int):
    """Others ask its settings, or go through tasks/trainings.py."""
    word = re.compile(rf"(?i:^{training}|_{training})|{training.capitalize()}")
    knowing = [name for name, file in FILES.items() if any(map(word.search, names_in(file)))]
    assert len(knowing) <= most, knowing


def test_few_functions_take_a_whole_recipe():
    taking = [
        f"{name}: {node.name}"
        for name, file in FILES.items()
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(each.annotation).strip("'\"") == "Recipe" for each in node.args.args if each.annotation)
    ]
    assert len(taking) <= 35, taking


def test_no_model_is_found_by_its_place_in_a_mapping():
    """As in `[*models][-1]`: a model knows its name."""
    placed = [
        f"{name}:{node.lineno}"
        for name, file in FILES.items()
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.List)
        and any(isinstance(each, ast.Starred) for each in node.value.elts)
        and ast.unparse(node.slice) in ("-1", "0")
    ]
    assert placed == []


def test_a_folder_within_a_room_has_at_most_ten_files():
    files = Counter(file.parent.relative_to(ROOT).as_posix() for file in FILES.values() if file.name != "__init__.py")
    assert {name: count for name, count in files.items() if "/" in name and count > 10} == {}


def test_an_environment_and_its_player_are_used_by_their_public_names_alone():
    old = {*HOOKS, *OF_SESSION, *OF_PLAYER, *PARTS, "_under"}
    used = [
        f"{file.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}"
        for file in FILES.values()
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Attribute) and node.attr in old and ast.unparse(node.value) not in ("self", "cls")
        if file.name != "old_names.py"
    ]
    assert not used, "\n".join(used)


@pytest.mark.parametrize("stage", ["collect", "sft", "grpo"])
def test_few_places_know_a_stage_by_its_name(stage: str):
    places = [name for name, file in FILES.items() if f'"{stage}"' in file.read_text()]
    assert len(places) <= 6, places


def test_no_two_modules_have_one_name():
    """But for the parts of an environment that is a folder."""
    own = [name for name in lengths() if not (FILES[name].parent / "env.py").exists()]
    assert [name for name, count in Counter(name.rpartition(".")[2] for name in own).items() if count > 1] == []


def test_what_trl_and_transformers_keep_private_is_reached_from_one_file():
    private = re.compile(r"\b(?:trainer|config|model)\._[a-z]\w*")
    found = {
        file.relative_to(ROOT).as_posix(): names
        for file in (ROOT / "tasks").rglob("*.py")
        if (names := private.findall(file.read_text()))
    }
    assert found.keys() == {"tasks/models/trl_internals.py"}, found


def test_importing_the_flow_loads_neither_torch_nor_trl_nor_transformers():
    heavy = "{'torch', 'trl', 'transformers', 'datasets', 'openai'}"
    code = f"import sys, apprentice.flows.retrain; print(*{heavy} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""


def test_importing_every_room_and_the_command_line_loads_none_of_the_large_libraries():
    rooms = "apprentice, apprentice.envs, apprentice.tasks, apprentice.flows, apprentice.deployments.cli"
    large = "{'torch', 'trl', 'transformers', 'datasets', 'prefect', 'openai', 'openenv', 'pydantic', 'matplotlib'}"
    code = f"import sys, {rooms}; print(*{large} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""


if __name__ == "__main__":
    counted = lengths().values()
    print(as_text())
    print(f"{len(FILES)} files, of which {len(FILES) - len(counted)} only say what a folder is for; ", end="")
    print(f"median {median(counted):.0f} lines, longest {max(counted)}, all {sum(counted):,}")
