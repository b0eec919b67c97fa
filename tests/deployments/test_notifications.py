"""What fails tells somebody: the message says how it ended and where to look. A real server, a real webhook."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.settings.models.root import Settings

from tests.deployments.test_templates import services
from tests.e2e.cluster import BIN, until
from tests.e2e.hub_machines import prefect_server
from tests.webhook import BLOCK, receiver, save_block

FAILS = """
from prefect import flow, tags
from apprentice.tasks.reporting.errors import Stop

@flow(name="retrain", flow_run_name="toy-seed0")
def retrain():
    raise Stop("The account is empty.", "Top it up and run again.")

with tags("retrain"):
    retrain(return_state=True)
"""


@pytest.mark.long
def test_a_failure_is_told_with_its_cause_its_remedy_and_its_link(tmp_path: Path):
    with receiver() as (address, messages), prefect_server(tmp_path / "prefect") as server:
        env = os.environ | server | {"PREFECT_HOME": str(tmp_path / "home")}
        client = SyncPrefectClient(server["PREFECT_API_URL"])
        until("the server knows its blocks", lambda: save_block(client, address))
        subprocess.run([BIN / "apprentice", "setup", "--notify", BLOCK], env=env, check=True, capture_output=True)
        subprocess.run([sys.executable, "-c", FAILS], env=env, check=True, capture_output=True)
        (text,) = until("somebody is told", lambda: messages[:1])
        (run,) = client.read_flow_runs()
    assert "toy-seed0 failed: " in text
    assert "The account is empty." in text
    assert "Top it up and run again." in text
    assert f"{server['PREFECT_API_URL'].removesuffix('/api')}/runs/flow-run/{run.id}" in text


def test_the_server_of_the_compose_file_knows_the_address_for_its_links(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        monkeypatch.delenv(name)
    server = services()["server"]
    for name, value in server["environment"].items():
        if "$" not in value and name != "PREFECT_HOME":
            monkeypatch.setenv(name, value)
    (port,) = server["ports"]
    assert Settings().ui_url == f"http://{port.rpartition(':')[0]}"
