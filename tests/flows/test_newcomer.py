"""Somebody's own game, in a folder, and an endpoint of their own that is right in 85%: what the first run says helps.

The first run learns nothing, says so before GRPO and promotes nobody; whoever follows what it says reaches the goal.
"""

import json
import os
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.endpoint import Endpoint
from tests.flows.commands import BIN
from tests.flows.newcomer.units.server.game import FACTORS
from tests.prefect_database import prefect_home

pytestmark = pytest.mark.long

HERE = Path(__file__).parent / "newcomer"
RUNS = 6
"""At most so many runs, each with the change that the one before asked for."""


def teacher(request: dict[str, Any]) -> list[dict[str, str]]:
    """Looks the unit up, then answers; wrong on some fifteen of a hundred questions."""
    messages = request["messages"]
    number, unit = messages[1]["content"].split()
    if messages[-1]["role"] != "tool":
        return [{"name": "look_up", "arguments": json.dumps({"unit": unit})}]
    wrong = zlib.crc32(messages[1]["content"].encode()) % 100 >= 85
    value = str(int(number) * FACTORS[unit] + wrong)
    return [{"name": "answer", "arguments": json.dumps({"value": value})}]


def test_the_first_run_stops_early_and_what_it_says_leads_to_a_champion(tmp_path: Path):
    endpoint = Endpoint(teacher)
    home = Path(shutil.copytree(HERE, tmp_path / "home", ignore=shutil.ignore_patterns("__pycache__")))
    own = {"PREFECT_HOME": prefect_home(home), "OPENAI_API_KEY": "sk-mine", "COLUMNS": "200"}
    sets = [f"teacher.base_url={endpoint.url}"]
    said, reports, bought = [], [], []
    for _ in range(RUNS):
        command = [str(BIN / "apprentice"), "run", "recipe.yaml", *(part for each in sets for part in ("--set", each))]
        done = subprocess.run(command, cwd=home, env=os.environ | own, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        said.append(done.stdout)
        bought.append(len(endpoint.requests))
        reports.append(json.loads((Path(done.stdout.strip().splitlines()[-1]) / "report.json").read_text()))
        if reports[-1]["ending"]["state"] == "promoted":
            break
        change = reports[-1]["ending"]["change"]
        assert change["value"], "a value, too, where a number will do"
        sets.append(f"{change['field']}={change['value'].partition(' ')[0]}")

    first, last = reports[0], reports[-1]
    assert first["ending"]["state"] == "stopped early"
    assert "grpo" not in first["models"]
    assert not first["gate"]["promoted"]
    assert "GRPO did not start" in said[0]
    assert "Change first: sft.epochs: 32 (4 now)." in said[0]
    assert last["ending"]["state"] == "promoted"
    assert last["models"]["grpo"]["accuracy"] >= last["gate"]["floor"]["at_least"] >= 0.4
    sizes = [report["seeds"]["collect"]["size"] for report in reports]
    for size, requests in zip(sizes, bought, strict=True):
        assert requests <= bought[0] * size / sizes[0], (
            "the teacher is paid once for a question, however often it is tried"
        )
