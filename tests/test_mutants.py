"""The sampler of `make mutants`: which faults its operators find, which tests it takes, what it counts."""

import ast
from pathlib import Path

import pytest

from tests.mutants.collected import Server
from tests.mutants.operators import mutants_of
from tests.mutants.reach import Lines
from tests.mutants.run import ROOT, equivalents, report, sample

FAULTS = {
    "if a > 1:\n    f()": {"if (not a > 1):", "if (a >= 1):", "if a > 2:", "pass"},
    "if not a:\n    b.c = d": {"if (a):", "pass"},
    "def f():\n    return a and b": {"return None", "return (a or b)"},
    "f(a, b=c, help=d)": {"pass", "f(a, help=d)"},
    "x = [y for y in z if y is None]": {"x = [y for y in z if (not y is None)]"},
    "x = y is None": {"x = (y is not None)"},
    "x = a if b else True": {"x = a if (not b) else True", "x = a if b else False"},
    "while True:\n    break": {"while False:", "pass"},
    "def f(a: Literal[1] = 0.5) -> b[2]:\n    a += c\n    for x in a:\n        x()": {
        "def f(a: Literal[1] = 1.0) -> b[2]:",
        "pass",
        "return None",
    },
    "raise ValueError(f(a, b=1)) from c": {"pass"},
    "a = 999 + 1_000 + f(timeout=30)": {"a = 1000 + 1_000 + f(timeout=30)", "a = 999 + 2000 + f(timeout=30)"}
    | {"a = 999 + 1_000 + f()"},
}
"""Code, and the lines that its mutants have instead of one of its own."""
NONE = [
    "assert a is None",
    "print_ = zip(a, b, strict=True)",
    '"""A text."""',
    "log.info('%d', a > 1)",
    "note('a line', a=1)",
    "print_ = wait_exponential(multiplier=0.5, max=9) + tenacity.wait_random(0, 1)",
    "x: Literal[1]",
    "print_ = json.dumps(a, indent=2)",
    "print_ = f'{a + 1}'",
    "if TYPE_CHECKING:\n    f()",
]


@pytest.mark.parametrize("code", FAULTS)
def test_the_operators_find_these_faults(code: str):
    assert FAULTS[code] - {mutant.new for mutant in mutants_of("a.py", code)} == set()


@pytest.mark.parametrize("code", NONE)
def test_texts_annotations_and_log_lines_stay_as_they_are(code: str):
    assert not [mutant for mutant in mutants_of("a.py", code) if "print" not in mutant.new]


@pytest.mark.long
def test_every_mutant_of_the_product_is_python_and_differs():
    drawn = sample(seed=3, number=100, within=["tasks", "flows", "envs", "deployments"])
    for mutant in drawn:
        text = (ROOT / mutant.file).read_text()
        assert ast.dump(ast.parse(mutant.broken(text))) != ast.dump(ast.parse(text)), mutant


@pytest.mark.long
def test_a_seed_names_a_sample():
    assert sample(7, 5, ["tasks"]) == sample(7, 9, ["tasks"])[:5] != sample(8, 5, ["tasks"])


def test_a_line_keeps_its_name_when_lines_before_it_change():
    code = "class A:\n    def b(self):\n        return 1\n"
    before, after = Lines(code), Lines("import c\n\n\n" + code)
    assert before.name(3) == after.name(6) == "A.b|return 1"
    assert before.imported[2]
    assert not before.imported[3]


def test_a_function_gets_the_code_of_the_broken_text_unless_its_closure_changes(tmp_path: Path):
    file, made = tmp_path / "tasks" / "a.py", {}
    file.parent.mkdir()
    text = "def f(a):\n    return [b for b in a if b > 1]\n\n\ndef g(a):\n    return lambda: a\n"
    file.write_text(text)
    exec(compile(text, file, "exec"), made)
    server = Server(tmp_path, None)  # type: ignore[arg-type]
    server.functions["tasks/a.py"] = [made["f"], made["g"](0)]
    file.write_text(text.replace("> 1", ">= 1"))
    assert server.breaks("tasks/a.py", 2)
    assert made["f"]([0, 1]) == [1]
    assert not server.breaks("tasks/a.py", 9)
    made = {}
    exec(compile(text, file, "exec"), made)
    server.functions["tasks/a.py"] = [made["f"], made["g"](0)]
    file.write_text(text.replace("lambda: a", "lambda: 0"))
    assert not server.breaks("tasks/a.py", 6)


def test_an_equivalent_does_not_count_and_a_test_that_hangs_kills(capsys: pytest.CaptureFixture[str]):
    drawn = sample(1, 4, ["tasks"])
    outcomes = ("killed", "hung", "SURVIVED", "equivalent")
    code = report([(mutant, {"outcome": each}) for mutant, each in zip(drawn, outcomes, strict=True)], "seed 1")
    assert "| tasks | 3 | 2 | 66.7% | 20.8% to 93.9% | 1 |" in capsys.readouterr().out
    assert code == 1


def test_every_equivalent_is_still_a_mutant_and_has_a_reason():
    for (file, function, old, new), reason in equivalents().items():
        names = {(each.function, each.old, each.new) for each in mutants_of(file, (ROOT / Path(file)).read_text())}
        assert (function, old, new) in names
        assert reason
