"""docs/laws.md names the tests that hold each law, and they exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
LAWS = re.split(r"^## (\d+)\. ", (ROOT / "docs/laws.md").read_text(), flags=re.M)[1:]


def test_every_law_names_tests_that_exist():
    numbers, texts = LAWS[::2], LAWS[1::2]
    assert [int(number) for number in numbers] == list(range(1, len(numbers) + 1))
    for number, text in zip(numbers, texts, strict=True):
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
        assert named, f"law {number} names no test"
        for file, test in named:
            assert f"def {test}(" in (ROOT / file).read_text(), f"law {number}: {file} has no {test}"


def test_every_law_that_the_code_points_to_is_on_the_page():
    known = set(LAWS[::2])
    for room in ("envs", "tasks", "flows", "deployments", "tests"):
        for file in (ROOT / room).rglob("*.py"):
            for number in re.findall(r"\b[Ll]aw (\d+)\b", file.read_text()):
                assert number in known, f"{file.relative_to(ROOT)} points to law {number}"
