"""docs/api.md in a real notebook: its cells run one after another, with bars, lines and short errors."""

import json
import re
from pathlib import Path

import pytest

from tests.flows.notebooks import Notebook

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
CELLS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
WHOLE = next(place for place, cell in enumerate(CELLS) if "import retrain" in cell)
"""The first cell that needs a Prefect server."""
SERVERS = """
import os, psutil
commands = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
print(os.environ.get("PREFECT_API_URL"), [each for each in commands if "apprentice" in each])
"""
WRONG = """
load_recipe(recipe, ["sft.epoch=3"])
"""

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def ran(home: Path) -> Notebook:
    return Notebook([*CELLS[:WHOLE], SERVERS, *CELLS[WHOLE:], WRONG], home)


def test_every_cell_of_the_page_runs_and_the_mistake_after_them_is_told_in_a_few_lines(ran: Notebook):
    (mistake,) = ran.failed()
    assert mistake.splitlines() == [
        "Stop: The overrides are not valid for the recipe spelling:",
        "  sft.epoch: unknown field; did you mean epochs?",
        "→ Correct them and run again.",
    ]


def test_the_stages_started_no_prefect_server_and_left_no_process(ran: Notebook):
    assert ran.text(WHOLE).strip() == "None []"


def test_a_stage_shows_bars_while_it_runs_and_a_line_when_it_has_ended(ran: Notebook):
    shown = "".join(ran.bars)
    for bar in ("▶ Teacher's rollouts", "episodes", "40/40", "SFT steps", "GRPO steps", "evaluate grpo"):
        assert bar in shown
    assert ran.bars[-1] == "", "no bar is left"
    assert re.search(r"✓.* Teacher's rollouts .*40 episodes", ran.text(1))
    assert "✓ 2 stages cached" in ran.text(WHOLE - 1)


def test_libraries_show_nothing_of_their_own(ran: Notebook):
    outputs = [each for cell in ran.outputs for each in cell]
    assert not [each for each in outputs if each.output_type == "stream" and each.name == "stderr"]
    assert "iframe" not in json.dumps(outputs), "Trackio's dashboard has a token in its address"


def test_a_run_finds_what_the_cells_before_it_made(ran: Notebook, home: Path):
    assert "0.0" in ran.text(WHOLE + 1)
    (report,) = (home / "runs").glob("*/report.json")
    stages = {each["name"]: each["state"] for each in json.loads(report.read_text())["stages"]}
    made_before = {"questions", "collect", "filter_rollouts", "student", "lengths", "sft", "grpo"}
    assert {name for name, state in stages.items() if state == "cached"} >= made_before
    assert stages["verdict"] == "ran"
