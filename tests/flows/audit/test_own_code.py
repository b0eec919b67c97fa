"""Each method that an author writes fails in its way: the audit names the file, the line and the method."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from apprentice.envs.catalog import known
from apprentice.envs.folders import FOLDERS
from apprentice.flows.audit.play.faults import fault_of, is_deliberate
from apprentice.flows.cli.app import app
from tests.flows.audit.conftest import GAMES, Served

Games = Callable[[str], Served]
SOURCE = (GAMES / "broken.py").read_text().splitlines()
DESK = (GAMES / "order_desk.py").read_text()


def line_of(text: str) -> int:
    """The number of the line that has this text."""
    return next(number for number, line in enumerate(SOURCE, 1) if text in line)


INIT, NAMED = 'raise KeyError("init")', 'self._letters["there is none"]'
METHODS = {
    "init raises": ("code.class", INIT, "Broken.__init__", "KeyError: 'init'"),
    "instructions raise": ("code.class", 'KeyError("instructions")', "Broken.instructions", "KeyError"),
    "no instructions": ("code.class", "def instructions", "Broken.instructions", "instructions is None, not a text"),
    "no turns": ("code.class", "", "Broken.max_turns", "max_turns is 0, not a whole number, 1 or more"),
    "ask raises": ("wire", NAMED, "Broken.ask", "KeyError: 'there is none'"),
    "ask raises on some": ("wire", NAMED, "Broken.ask", "KeyError: 'there is none'"),
    "ask returns nothing": ("wire", "def ask", "Broken.ask", "text is None"),
    "a near miss raises": ("code.play", "not L-10", "Broken.look", "KeyError"),
    "a tool raises": ("reward.range", "LETTERS[ord", "Broken.say", "IndexError"),
    "a tool returns nothing": ("code.play", "def look", "Broken.look", "it returns None, not the text"),
    "the right answer is a number": ("reward.range", "def say", "Broken.say", "correct is 7"),
    "the reward is text": ("reward.range", "def say", "Broken.say", "reward is 'all'"),
    "done is nothing": ("reward.range", "def say", "Broken.say", "TypeError"),
    "traits raise": ("code.traits", '"letter": self._letters[self._name]', "Broken.traits", "AttributeError"),
    "traits are exhausted": ("code.traits", "if name in question", "Broken.traits", "StopIteration"),
    "traits are wrong": ("code.traits", "def traits", "Broken.traits", "it returns {'letter': ['The"),
    "check raises": ("code.script", 'settings["nothing"]', "check", "KeyError: 'nothing'"),
    "call raises": ("code.script", "", "call", "KeyError: 'nothing'"),
    "call converts": ("code.script", "int(told[0])", "call", "ValueError: invalid literal"),
    "call is exhausted": ("code.script", "for text in told if not text", "call", "StopIteration"),
    "call fails where it is to be wrong": ("code.script", "", "call", "KeyError: 'nothing'"),
    "call returns nothing": ("code.script", "def call", "call", "it returns None, not a tool's name and"),
    "call returns a name": ("code.script", "def call", "call", "it returns 'look', not a tool's name and"),
    "call names an unknown tool": ("code.script", "def call", "call", "it calls lok, and the tools are look, say"),
    "call gives another argument": ("code.script", "def call", "call", "'name' is a required property"),
    "call gives another type": ("code.script", "def call", "call", "7 is not of type 'string'"),
    "call gives no JSON": ("code.script", "def call", "call", "whose arguments are no JSON"),
    "call gives a list": ("code.script", "def call", "call", "whose arguments are no dict"),
}
"""The check that finds each fault, a part of its line (empty: several have it), its method, and what is said."""
QUICK = ("ask raises", "a tool raises", "traits raise", "no turns", "the right answer is a number")


@pytest.mark.parametrize(
    "fault", [pytest.param(each, marks=() if each in QUICK else pytest.mark.long) for each in METHODS]
)
def test_a_method_that_fails_is_a_finding_with_file_line_and_method(served: Games, fault: str):
    check, line, method, said = METHODS[fault]
    failed = served("broken").failed(fault)
    found = next((each for each in failed if each.check == check), None)
    assert found, failed
    assert found.severity == "error"
    place = re.search(r"([\w/.-]+broken\.py), line (\d+), in ([\w.]+): ", found.found)
    assert place, found.found
    assert Path(place[1]).name == "broken.py"
    assert place[3] == method
    assert not line or int(place[2]) == line_of(line)
    assert said in found.found
    assert found.remedy.startswith("Correct it there.")
    assert found.effect
    assert not [each for each in failed if "could not be made" in each.found], "no check failed itself"


@pytest.mark.long
def test_a_game_with_two_tools_in_turn_is_sound(served: Games):
    assert served("broken").failed("") == []


@pytest.mark.long
def test_a_generator_that_is_exhausted_on_the_server_never_answers_and_is_named(served: Games):
    """OpenEnv's server cannot hand a StopIteration on, so it does not answer at all."""
    found = served("broken").failed("a tool is exhausted")[-1]
    assert found.check == "wire"
    assert re.search(r"broken\.py, line \d+, in Broken.look: StopIteration$", found.found)


FILES = {
    "def find(": ("def find((", "SyntaxError"),
    "NAMES = (": ("X = NOTHING\nNAMES = (", "NameError: name 'NOTHING' is not defined"),
    "import random\n": ("import random\nimport nothing_such\n", "No module named 'nothing_such'"),
    "max_turns = 5": ("max_turns = 5\n    version = 2", "in Desk.version: version is 2, not a text"),
    'fault: str = ""': (
        'fault: str = ""\n\n    def model_post_init(self, _):\n        raise KeyError("s")',
        "in Settings.model_post_init: KeyError: 's'",
    ),
    "class Settings(EnvironmentSettings)": ("class Settings", "'Settings' has no attribute 'model_validate'"),
    "class Desk(Game)": ("class Desk", "it has no subclass of Game, and no class Environment"),
}
"""What is replaced in the file of a sound game, by what, and what is then said."""


@pytest.fixture
def no_folders(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(FOLDERS, "")
    known.cache_clear()
    yield
    known.cache_clear()


AT_IMPORT = ("def find(", "NAMES = (", "import random\n", "class Desk(Game)")


@pytest.mark.parametrize(
    "replaced", [pytest.param(each, marks=() if each in AT_IMPORT else pytest.mark.long) for each in FILES]
)
def test_a_file_that_cannot_be_served_is_a_finding_with_its_line(replaced: str, tmp_path: Path, no_folders: None):
    by, said = FILES[replaced]
    file = tmp_path / f"desk_{[*FILES].index(replaced)}.py"
    assert replaced in DESK
    file.write_text(DESK.replace(replaced, by, 1))
    ran = CliRunner().invoke(app, ["env", "audit", str(file)], env={"COLUMNS": "300"})
    assert ran.exit_code == 1
    assert re.search(rf"code\.class +error +\S*{file.name}, line \d+.*: ", ran.output), ran.output
    assert said in ran.output
    assert f"{file} cannot be audited: code.class." in ran.output
    assert "unexpected" not in ran.output


def raised(code: str, file: Path) -> Exception:
    """What the code of a file raises."""
    file.write_text(code)
    try:
        exec(compile(code, str(file), "exec"), {})
    except Exception as error:
        return error
    raise AssertionError("it raises nothing")


def test_a_value_error_that_the_author_raises_is_an_answer_and_one_that_happens_is_a_fault(tmp_path: Path):
    meant = raised("def call():\n    raise ValueError('not known')\n\n\ncall()\n", tmp_path / "meant.py")
    happens = raised("def call():\n    return int('x')\n\n\ncall()\n", tmp_path / "happens.py")
    files = (tmp_path,)
    assert is_deliberate(meant, files)
    assert not is_deliberate(happens, files)
    assert not is_deliberate(KeyError("x"), files)


def test_a_fault_is_in_the_authors_file_whoever_raises_and_nowhere_else(tmp_path: Path):
    file = tmp_path / "game.py"
    error = raised("import json\n\n\ndef ask():\n    return json.loads('{')\n\n\nask()\n", file)
    fault = fault_of(error, (file,))
    assert fault
    assert (fault.file, fault.line, fault.method) == (file, 5, "")
    assert fault_of(error, (tmp_path / "other",)) is None
