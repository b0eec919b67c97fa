"""Nobody is told that this software is used, whichever way it comes in; this machine is reached without a proxy."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SEEN = """
import json, os, socket, sys
asked = []

def look(name, *rest, **more):
    asked.append(str(name))
    raise OSError("no network here")

socket.getaddrinfo = look
WAY_IN
from prefect._internal.analytics.enabled import is_telemetry_enabled
from prefect.settings import get_current_settings
import huggingface_hub.constants as hub

print(json.dumps({
    "prefect's library": is_telemetry_enabled(),
    "prefect's server": get_current_settings().server.analytics_enabled,
    "hub": not hub.HF_HUB_DISABLE_TELEMETRY,
    "asked": asked,
    "no_proxy": os.environ.get("no_proxy"),
}))
"""
OURS = ("DO_NOT_TRACK", "PREFECT_SERVER_ANALYTICS_ENABLED", "HF_HUB_DISABLE_TELEMETRY", "GRADIO_ANALYTICS_ENABLED")


def seen(way_in: str, home: Path, **environment: str) -> dict[str, object]:
    """A person's first import of all: no variable of ours is set, Prefect was never here, and it is no CI."""
    unset = (*OURS, "CI", "GITHUB_ACTIONS", "no_proxy", "NO_PROXY")
    there = {name: value for name, value in os.environ.items() if name not in unset}
    done = subprocess.run(
        [sys.executable, "-c", SEEN.replace("WAY_IN", way_in)],
        env={**there, "PREFECT_HOME": str(home), **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
@pytest.mark.parametrize(
    "way_in",
    [
        "from apprentice.flows.retrain import retrain",
        "from apprentice.flows.stages import sft_stage",
        "from apprentice.flows.watch import watch",
        "from apprentice.tasks.collect import collect",
        "import apprentice.deployments.steps",
        "import apprentice.deployments.cli, apprentice.flows.retrain",
    ],
)
def test_telemetry_is_off_on_every_way_in(way_in: str, tmp_path: Path):
    found = seen(way_in, tmp_path)
    assert not found["prefect's library"]
    assert not found["prefect's server"]
    assert not found["hub"]
    assert found["asked"] == []


@pytest.mark.long
def test_a_proxy_is_not_asked_for_this_machine(tmp_path: Path):
    found = seen("import apprentice.flows.retrain", tmp_path, http_proxy="http://127.0.0.1:9", no_proxy="example.org")
    assert str(found["no_proxy"]).split(",") == ["example.org", "127.0.0.1", "localhost", "::1"]
