"""A key that a run was given stands nowhere in what it leaves: terminal, store, report, Prefect's database and logs."""

import os
import subprocess
from pathlib import Path

import pytest

from apprentice.flows.cli.choice import server_at
from apprentice.flows.named_models import check_addresses
from apprentice.flows.recipe.loading import load_recipe
from apprentice.tasks.reporting.errors import Stop
from tests.endpoint import KEY, Endpoint, call
from tests.flows.commands import command, environment


@pytest.mark.long
@pytest.mark.parametrize(
    ("turns", "words"),
    [
        pytest.param((500, [call()]), "kept none", id="a run whose teacher stumbled"),
        pytest.param((401,), "refused the request with status 401", id="a refused key"),
    ],
)
def test_a_key_is_nowhere_in_what_a_run_leaves(tmp_path: Path, turns: tuple, words: str):
    """The endpoint quotes the key in every error, as some do."""
    endpoint = Endpoint(*turns)
    overrides = ("teacher.scripted_error_rate=null", f"teacher.base_url={endpoint.url}", "teacher.model=toy")
    done = subprocess.run(
        command(*overrides),
        cwd=tmp_path,
        env=environment(tmp_path) | {"OPENAI_API_KEY": KEY, "PREFECT_LOGGING_LEVEL": "DEBUG"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 1
    assert words in done.stdout
    assert "***" in done.stdout or "401" not in words
    assert KEY not in done.stdout + done.stderr
    files = [Path(folder) / name for folder, _, names in os.walk(tmp_path) for name in names]
    assert any("prefect.db" in file.name for file in files)
    assert not [file for file in files if KEY.encode() in file.read_bytes()]


SECRET = "s3cr3t-of-a-server"
ADDRESSES = [
    "http://someone:{}@127.0.0.1:9",
    "http://127.0.0.1:9/?token={}",
    "http://127.0.0.1:9#{}",
    "http://a:{}@[::1",
]
TOY = str(Path(__file__).parent.parent.parent / "deployments" / "recipes" / "toy.yaml")


@pytest.mark.parametrize("field", ["server.url", "teacher.base_url", "trackio.url", "grpo.generation.server_base_url"])
@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_with_a_secret_is_refused_when_the_recipe_is_read_and_not_repeated(field: str, address: str):
    overrides = ["teacher.scripted_error_rate=null"] if field.startswith("teacher") else []
    with pytest.raises(Stop, match="must not hold a user or password, query or fragment") as stopped:
        load_recipe(Path(TOY), [*overrides, f"{field}={address.format(SECRET)!r}"])
    assert field in str(stopped.value)
    assert SECRET not in str(stopped.value)


def test_a_regression_evaluations_server_is_looked_at_too():
    regression = {"name": "other", "environment": {"name": "echo"}, "server": {"url": ADDRESSES[0].format(SECRET)}}
    with pytest.raises(Stop, match=r"guards\.0\.server\.url: .*must not hold a user") as stopped:
        load_recipe(Path(TOY), [f"guards={[regression]}"])
    assert SECRET not in str(stopped.value)


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_with_a_secret_on_the_command_line_is_refused_and_not_repeated(address: str):
    endpoint = [] if "#" in address else [lambda url: check_addresses(["champion", f"{url}/v1#model"])]
    for refuse in (server_at, *endpoint):  # of an endpoint the model's name stands there
        with pytest.raises(Stop) as stopped:
            refuse(address.format(SECRET))
        assert SECRET not in str(stopped.value)


@pytest.mark.long
def test_a_secret_in_an_address_is_nowhere_in_what_the_command_leaves(tmp_path: Path):
    done = subprocess.run(
        command(f"server.url={ADDRESSES[0].format(SECRET)}"),
        cwd=tmp_path,
        env=environment(tmp_path) | {"PREFECT_LOGGING_LEVEL": "DEBUG"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 1
    assert "ssh -L" in done.stdout + done.stderr
    assert SECRET not in done.stdout + done.stderr
    files = [Path(folder) / name for folder, _, names in os.walk(tmp_path) for name in names]
    assert not [file for file in files if SECRET.encode() in file.read_bytes()]
