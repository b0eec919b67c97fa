"""A recipe names an environment of an installed package by its class, as module:Class."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from apprentice.envs.catalog import EnvironmentSpec, NoServer, environment_class, policy_of, server_app
from apprentice.envs.echo.env import Environment as Echo
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.serving.process import local_server
from apprentice.envs.source import digest_of
from apprentice.envs.wire.server import EnvironmentServer

PACKAGE = "some_games"
NAME = f"{PACKAGE}.shouting:Shouting"
CLASS = '''
from typing import Any

from pydantic import BaseModel

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.echo.env import Environment as Echo


class Settings(BaseModel):
    loud: bool = True


class Shouting(ToolEnvironment):
    Settings = Settings
    version = "3"

    @property
    def instructions(self) -> str:
        return "Shout."

    def reset(self, *, seed: int, **row: Any) -> str:
        return str(seed)

    def shout(self, text: str) -> str:
        """Shout.

        Args:
            text: What.
        """
        return text.upper()


class Louder(Echo):
    pass


class Unfinished(ToolEnvironment):
    pass


class Whatever:
    pass


number = 7
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a package, and beside it a module that belongs to none."""
    folder = tmp_path / PACKAGE
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "shouting.py").write_text(CLASS)
    (tmp_path / "alone.py").write_text(CLASS)
    (tmp_path / "beside.py").write_text("never = 'read'")
    monkeypatch.syspath_prepend(tmp_path)
    digest_of.cache_clear()
    yield folder
    for module in [each for each in sys.modules if each.partition(".")[0] in (PACKAGE, "alone")]:
        del sys.modules[module]


def test_it_is_played_under_its_version_and_the_digest_of_its_packages_source(installed: Path):
    spec = EnvironmentSpec(name=NAME, settings={"loud": False})
    assert (spec.version, spec.code) == ("3", digest_of(installed))
    assert [tool.name for tool in spec.make().tools] == ["shout"]
    assert spec.in_key()["name"] == NAME
    (installed / "helper.py").write_text("edited = True")
    digest_of.cache_clear()
    assert EnvironmentSpec(name=NAME, settings={"loud": False}).code != spec.code


def test_of_a_module_without_a_package_its_file_is_the_source(installed: Path):
    spec = EnvironmentSpec(name="alone:Shouting")
    assert spec.code == digest_of(installed.parent / "alone.py")
    (installed.parent / "beside.py").write_text("never = 'read, edited'")
    digest_of.cache_clear()
    assert EnvironmentSpec(name="alone:Shouting").code == spec.code


def test_the_source_of_the_class_that_it_extends_counts_too(installed: Path, monkeypatch: pytest.MonkeyPatch):
    spec = EnvironmentSpec(name=f"{PACKAGE}.shouting:Louder")
    assert spec.code not in (digest_of(installed), Echo.code_under({}))
    (installed / "shouting.py").write_text(CLASS.replace("apprentice.envs.echo.env", "apprentice.envs.catch.env"))
    for module in [each for each in sys.modules if each.startswith(PACKAGE)]:
        del sys.modules[module]
    other = environment_class(f"{PACKAGE}.shouting:Louder")
    monkeypatch.setattr("apprentice.envs.base.digest_of", lambda place: place.name)
    assert other.code_under({}) != environment_class(NAME).code_under({}) == PACKAGE


def test_a_server_and_a_script_are_found_beside_it_or_said_to_be_missing(installed: Path):
    for name in (NAME, "alone:Shouting"):
        with pytest.raises(NoServer, match=r"has no server here: set server\.url or server\.image"):
            server_app(name, 1)
        with pytest.raises(ValueError, match="has no scripted teacher"):
            policy_of(name)
    (installed / "policy.py").write_text("TAKES_SEED = True")
    assert policy_of(NAME).TAKES_SEED


GAME = """
from apprentice.envs.echo.game import EchoEnvironment


class Alone(EchoEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = False
"""


@pytest.mark.long
def test_a_server_whose_class_takes_one_session_grants_one_and_is_played_with_it(
    installed: Path, monkeypatch: pytest.MonkeyPatch
):
    (installed / "server").mkdir()
    (installed / "server" / "__init__.py").touch()
    (installed / "server" / "game.py").write_text(GAME)
    monkeypatch.setenv("PYTHONPATH", str(installed.parent))
    name = f"{PACKAGE}.shouting:Louder"
    with (
        local_server("apprentice.envs.serving.serve", name, "--max-sessions", "128") as url,
        EnvironmentPool(EnvironmentSpec(name=name), EnvironmentServer(url=url), size=8) as pool,
    ):
        questions = dict(pool.map(lambda environment, seed: environment.ask(seed), range(5)))
    assert len(set(questions.values())) == 5


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f"{PACKAGE}.shouting:Whatever", "is no subclass of apprentice.envs.base.ToolEnvironment"),
        (f"{PACKAGE}.shouting:number", "has no class 'number'"),
        (f"{PACKAGE}.shouting:Missing", "has no class 'Missing'"),
        (f"{PACKAGE}.shouting:Unfinished", "it lacks Settings, version, instructions, reset"),
        ("no_such_package.env:Environment", "no_such_package.env cannot be imported .* install its package"),
        (":Environment", "is no module:Class"),
    ],
)
def test_what_is_no_environment_is_refused(installed: Path, name: str, words: str):
    with pytest.raises(ValidationError, match=words):
        EnvironmentSpec(name=name)
