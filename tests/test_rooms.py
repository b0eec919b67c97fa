"""The rooms import in one direction only, and the flow imports quickly without torch."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
ORDER = ["envs", "tasks", "flows", "deployments"]


def imported_rooms(file: Path) -> set[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return {name.split(".")[1] for name in names if name.startswith("apprentice.")}


def test_a_room_imports_only_from_rooms_to_its_left():
    for place, room in enumerate(ORDER):
        for file in (ROOT / room).rglob("*.py"):
            wrong = imported_rooms(file) - set(ORDER[: place + 1])
            assert not wrong, f"{file.relative_to(ROOT)} imports {wrong}"


def test_importing_the_flow_loads_neither_torch_nor_trl_nor_transformers():
    heavy = "{'torch', 'trl', 'transformers', 'datasets', 'openai'}"
    code = f"import sys, apprentice.flows.retrain; print(*{heavy} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""
