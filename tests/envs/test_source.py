"""An environment's code is in every key: by its sources, and by nothing of where they lie."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from apprentice.envs.catalog import ADAPTERS, CATALOGUE, EnvironmentSpec, environment_class, module_of
from apprentice.envs.source import EQUAL, SCRIPT, digest_of, digest_of_script

ROOT = Path(__file__).parent.parent.parent


def sources(at: Path) -> Path:
    (at / "server").mkdir(parents=True)
    (at / "env.py").write_text("one = 1\n")
    (at / "server" / "game.py").write_text("two = 2\n")
    return at


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "env.py").write_text("one = 2\n"),
        lambda folder: (folder / "server" / "game.py").write_text("two = 3\n"),
        lambda folder: (folder / "policy.py").write_text(""),
        lambda folder: (folder / "server" / "game.py").rename(folder / "server" / "play.py"),
    ],
    ids=["its class", "its server", "a script more", "a name"],
)
def test_other_sources_are_another_code(tmp_path: Path, change):
    before = digest_of(sources(tmp_path / "one"))
    change(sources(tmp_path / "two"))
    assert digest_of(tmp_path / "two") != before


def test_what_all_scripts_share_is_part_of_every_environments_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = digest_of(sources(tmp_path / "one"))
    other = tmp_path / "policy.py"
    other.write_text("errs = 'on every second question'\n")
    monkeypatch.setattr("apprentice.envs.source.SHARED", other)
    assert digest_of(sources(tmp_path / "two")) != before


@pytest.mark.parametrize("name", ["mistakes.py", "serving/scripted_teacher.py"])
def test_how_scripts_err_is_part_of_a_scripted_teacher_and_of_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    assert name in SCRIPT
    code, script = digest_of(sources(tmp_path / "one")), digest_of_script.__wrapped__()
    shutil.copytree(ROOT / "envs", tmp_path / "envs", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr("apprentice.envs.source.__file__", str(tmp_path / "envs" / "source.py"))
    assert digest_of_script.__wrapped__() == script
    (tmp_path / "envs" / name).write_text("mistakes = 'others'\n")
    assert digest_of_script.__wrapped__() != script
    assert digest_of.__wrapped__(tmp_path / "one") == code


def test_where_it_lies_and_how_its_lines_end_is_not_in_the_code(tmp_path: Path):
    before = digest_of(sources(tmp_path / "one"))
    other = sources(tmp_path / "elsewhere" / "two")
    (other / "env.py").write_bytes(b"one = 1\r\n")
    (other / "__pycache__").mkdir()
    (other / "__pycache__" / "env.cpython-311.pyc").write_bytes(b"\0")
    (other / "README.md").write_text("Words.\n")
    assert digest_of(other) == before


def test_an_installed_copy_has_the_code_of_the_checkout(tmp_path: Path):
    """As a wheel lays it out: the rooms below `apprentice`, without what is no package."""
    shutil.copytree(ROOT / "envs", tmp_path / "apprentice" / "envs", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "apprentice" / "__init__.py", tmp_path / "apprentice")
    script = (
        "import apprentice.envs.catalog as c; print(c.__file__)\n"
        "for name in c.CATALOGUE: print(name, c.environment_class(name).code_under({}))"
    )
    there = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=there, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    imported, *digests = done.stdout.splitlines()
    assert imported == str(tmp_path / "apprentice" / "envs" / "catalog.py")
    here = [f"{name} {environment_class(name).code_under({})}" for name in CATALOGUE]
    assert digests == here
    assert len(set(here)) == len(CATALOGUE)


def test_the_code_is_filled_in_and_other_code_is_refused(chain_sum: EnvironmentSpec):
    assert chain_sum.code == environment_class("reasoning_gym").code_under({})
    with pytest.raises(ValidationError, match="this names the code 'old' of reasoning_gym; installed is "):
        EnvironmentSpec(name="reasoning_gym", settings={"dataset": "chain_sum"}, code="old")


def test_a_mixture_has_the_code_of_its_parts(monkeypatch: pytest.MonkeyPatch):
    mixed = {"parts": {"a": {"name": "echo"}, "b": {"name": "catch"}}}
    exclusive = {"parts": {"a": {"name": "echo"}}}
    before = {str(each): EnvironmentSpec(name="multi", settings=each).code for each in (mixed, exclusive)}
    monkeypatch.setattr(environment_class("catch"), "code_under", classmethod(lambda cls, settings: "changed"))
    assert EnvironmentSpec(name="multi", settings=mixed).code != before[str(mixed)]
    assert EnvironmentSpec(name="multi", settings=exclusive).code == before[str(exclusive)]


SHIPPED = {
    "browsergym": "4c4b95903ae93a16e5df",
    "catch": "7cf6c2fc547b2c500114",
    "echo": "098496b3ae1dee9b72da",
    "multi": "73f7cee9535e2572f50e",
    "number": "0352521b48707e954208",
    "reasoning_gym": "a1ad4491728e73af3429",
    "sudoku": "09cb98801ed60f6921c1",
    "wordle": "7a39ad7d426c18ae3af0",
    "openenv": "6f9b12558dc955dc82c7",
    "verifiers": "c8cda66cb7c977c9a43a",
}
SCRIPTS = "dfa7f41cbf97570d858a"
"""Whoever changes an environment's code, and means to have everything collected anew, writes the new digest here."""


def test_the_digests_of_the_shipped_environments_are_those_in_the_keys_of_stored_results():
    assert {name: environment_class(name).code_under({}) for name in CATALOGUE | ADAPTERS} == SHIPPED
    assert digest_of_script() == SCRIPTS


def test_digests_are_equal_only_to_those_of_a_form_that_is_here_now(monkeypatch: pytest.MonkeyPatch):
    equal = dict(EQUAL)
    monkeypatch.setattr("apprentice.envs.source.EQUAL", {})
    files = [Path(str(module_of(name).__file__)) for name in CATALOGUE | ADAPTERS]
    places = {file.parent if file.name == "env.py" else file for file in files}
    computed = {digest_of.__wrapped__(place) for place in places} | {digest_of_script.__wrapped__()}
    assert equal.keys() <= computed
    assert len(set(equal.values())) == len(equal)
