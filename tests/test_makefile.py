"""`make help` lists every target, a page names only targets that there are, and an unknown NAME lists the names."""

import os
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()
NAMES = {target: names.split() for target, names in re.findall(r"^NAMES_([\w-]+) := (.*)$", MAKEFILE, re.MULTILINE)}
TARGETS = set(re.findall(r"^([a-z0-9-]+):", MAKEFILE, re.MULTILINE))
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("deployments/*.md"), ROOT / ".ci" / "run"]
FILES = [
    *PAGES,
    *(file for room in ("envs", "tasks", "flows", "deployments", "tests") for file in ROOT.glob(f"{room}/**/*.py")),
]
NAMED = re.compile(
    r"`make ([a-z][a-z0-9-]*)(?![/\w])(?: NAME=(\w+))?|^make ([a-z][a-z0-9-]*)(?![/\w])(?: NAME=(\w+))?", re.MULTILINE
)


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make where it builds nothing: with a target that needs nothing, or with an argument that it refuses."""
    outer = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return subprocess.run(["make", *arguments], cwd=ROOT, env=outer, capture_output=True, text=True, check=False)


def test_help_lists_every_target_in_a_line_and_there_are_at_most_20():
    lines = [line.split(maxsplit=2) for line in make("help").stdout.splitlines() if line.startswith("  make ")]
    assert {target for _, target, _ in lines} == TARGETS
    assert len(lines) <= 20
    assert all(len(line) == 3 and line[2] for line in lines)


@pytest.mark.parametrize("target", NAMES)
def test_an_unknown_name_is_refused_before_anything_is_built_with_the_names_that_there_are(target: str):
    done = make(target, "NAME=nonsense")
    assert done.returncode == 2
    assert f"make {target} has no NAME=nonsense. Its names are: {' '.join(NAMES[target])}." in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("short", ["bench-flywheel", "faults-train", "e2e-weeks"])
def test_a_name_may_follow_a_hyphen(short: str):
    target, name = short.split("-")
    last = make("--dry-run", short).stdout.splitlines()[-1]
    assert last == make("--dry-run", target, f"NAME={name}").stdout.splitlines()[-1]


def test_every_benchmark_and_every_end_to_end_run_is_a_module():
    modules = dict(re.findall(r"^BENCH_(\w+) := (\w+)$", MAKEFILE, re.MULTILINE))
    assert all(find_spec(f"tests.bench.{modules.get(name, name)}") for name in NAMES["bench"])
    assert all(find_spec(f"tests.e2e.{name}") for name in NAMES["e2e"])


def test_a_target_or_name_that_a_page_or_a_docstring_gives_exists():
    given = {
        (file.relative_to(ROOT).as_posix(), match[1] or match[3], match[2] or match[4])
        for file in FILES
        for match in NAMED.finditer(file.read_text())
    }
    assert len(given) > 50
    hyphened = {f"{target.removesuffix('-counterparts')}-{name}" for target, names in NAMES.items() for name in names}
    assert [each for each in sorted(given, key=str) if each[1] not in TARGETS | hyphened] == []
    assert [each for each in sorted(given, key=str) if each[2] and each[2] not in NAMES[each[1]]] == []
