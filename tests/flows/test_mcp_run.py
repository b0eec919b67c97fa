"""A whole run in an environment whose tools only its server knows: collection, SFT and GRPO use them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.endpoint import KEY, Endpoint, call
from tests.envs.published import mcp_shop
from tests.envs.published.serving import serving
from tests.flows.commands import Ran, apprentice, read

pytestmark = pytest.mark.long


def buys(request: dict[str, Any]) -> list[dict[str, str]]:
    """The cashier's turn: apples for two cents each and, where the sum is odd, a plum for five."""
    wanted = int(re.findall(r"\d+", request["messages"][-1]["content"])[0])
    items = [{"fruit": "plum", "number": wanted % 2}, {"fruit": "apple", "number": (wanted - 5 * (wanted % 2)) // 2}]
    return [call("buy", json.dumps({"items": items}))]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def ran(home: Path) -> Iterator[Ran]:
    teacher = Endpoint(buys)
    shop = {"name": "mcp", "settings": {"reward_range": [0, 8], "max_turns": 2, "reset": {"most": 100_000}}}
    with pytest.MonkeyPatch.context() as patch, serving(mcp_shop.app()) as url:
        patch.setenv("OPENAI_API_KEY", KEY)
        yield apprentice(
            home,
            "name=shop",
            f"environment={json.dumps(shop)}",
            f"server.url={url}",
            "teacher.scripted_error_rate=null",
            f"teacher.base_url={teacher.url}",
            "teacher.model=cashier",
            "student.build.max_positions=2048",
            "grpo.max_completion_length=48",
            "guards=[]",
        )


def test_every_stage_ran_and_the_models_are_compared(ran: Ran):
    assert ran.code == 0, ran.out
    assert {name for name, _ in ran.states} >= {"collect", "filter_rollouts", "sft", "grpo", "evaluate", "verdict"}
    assert set(ran.report["models"]) == {"base", "sft", "grpo"}


def test_the_teacher_buys_with_the_servers_tools_and_every_purchase_is_kept(ran: Ran, home: Path):
    kept = [json.loads(line) for line in read(home / "artifacts/datasets/local/shop-kept-rollouts", "kept.jsonl")]
    assert [each["reward"] for each in kept] == [1.0] * 60


def test_the_key_of_what_was_bought_names_the_server_and_its_tools(ran: Ran, home: Path):
    (record,) = home.glob("artifacts/datasets/local/shop-rollouts/snapshots/*/artifact.json")
    assert '"served_by": "shop 1.2"' in record.read_text()
    assert all(f'"name": "{tool}"' in record.read_text() for tool in ("buy", "price", "wait_for_stock"))
