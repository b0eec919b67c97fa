"""The image of an environment, built from what is committed, is played by this project's client."""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from apprentice.envs.serving.container import container
from tests.docker.images import ROOT
from tests.scripted import a_task, play

pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", ["echo", "reasoning_gym", "catch"])
def test_the_scripted_policy_plays_an_environments_image_and_is_right(
    name: str, environment_image: Callable[[str], str]
):
    with container(environment_image(name), sessions=2, patience=60) as url:
        episodes = [play(a_task(name), url, seed) for seed in (1, 2)]
    assert [episode.reward for episode in episodes] == [1.0, 1.0]


def test_an_image_is_audited_by_its_name_and_nothing_is_found(environment_image: Callable[[str], str]):
    image = f"{environment_image('echo')}:latest"
    program = "from apprentice.deployments.cli import main; main()"
    command = [sys.executable, "-c", program, "env", "audit", image, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    status = {each["check"]: each["status"] for each in report["findings"]}
    assert (report["environment"], report["ok"]) == ("echo", True)
    assert "failed" not in status.values()
    made = ("wire", "seeds.load", "version.original", "reward.oracle", "reward.exploit", "robustness.arguments")
    assert {status[name] for name in made} == {"passed"}
