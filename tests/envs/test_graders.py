"""The audit's checks as graders of openenv 0.10: registered under its names, run by its own scheduler.

`make test-openenv` runs these; with openenv-core 0.3, which has no validation, they are skipped.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from apprentice.envs.serving.process import local_server
from apprentice.flows.audit import graders
from tests.odd_server import odd_server
from tests.wheel import unpacked

validation: Any = pytest.importorskip("openenv.validation", reason="needs openenv 0.10: make test-openenv")

from openenv.validation.graders import Grader, GraderRegistry, Subject  # type: ignore[import-not-found]  # noqa: E402
from openenv.validation.report import CheckResult  # type: ignore[import-not-found]  # noqa: E402
from openenv.validation.runner import default_grader_registry  # type: ignore[import-not-found]  # noqa: E402
from openenv.validation.runtime.scheduler import execute_graders  # type: ignore[import-not-found]  # noqa: E402

GRADERS = [each for each in vars(graders).values() if isinstance(each, graders.AuditGrader)]
STARTED = CheckResult(check_id="runtime.startup", status="pass", duration_s=0)
LISTED = """
from openenv.validation.graders import GraderRegistry
registry = GraderRegistry()
print(registry.load_entry_points(), *sorted(registry._graders))
"""


@pytest.fixture(scope="module")
def number() -> Iterator[str]:
    with local_server("apprentice.envs.serving.serve", "number", "--max-sessions", "16") as url:
        yield url


def graded(name: str, url: str | None) -> dict[str, Any]:
    """The results of all graders for a package whose server runs at `url`, by OpenEnv's scheduler."""
    running: Any = SimpleNamespace(base_url=url) if url else None
    subject = Subject(
        root=Path(), manifest=SimpleNamespace(name=name), image_ref=None, running=running, outputs_dir=Path()
    )  # type: ignore[arg-type]
    return {each.check_id: each for each in execute_graders(list(GRADERS), subject, prior=[STARTED])}


def test_each_has_a_name_that_openenvs_policy_knows_and_none_of_its_own_graders():
    policy = validation.load_policy("v2")
    local = policy.entries_for_lane(validation.Lane.LOCAL)
    registry = default_grader_registry(policy)
    for each in GRADERS:
        assert isinstance(each, Grader)
        assert local[each.check_id].level == each.level
        registry.register(each)  # refuses a check id that is taken


def test_a_sound_environment_passes_all_of_them(number: str):
    results = graded("number", number)
    assert {each.status.value for each in results.values()} == {"pass"}, results
    assert results["semantic.oracle_max"].evidence == ["reward.oracle: the script earns 1 in 12 of 12 episodes"]


def test_a_server_that_ignores_seeds_fails_the_check_of_seeds_with_evidence_and_remedy():
    with odd_server("forgetful") as url:
        results = graded("echo_env", url)
    seeds = results["runtime.seed_control"]
    assert seeds.status.value == "fail"
    assert "seed 0: reset" in " ".join(seeds.evidence)
    assert seeds.remediation
    others = {each.status.value for each in results.values() if each is not seeds}
    assert others == {"skip", "pass"}, "its tools are described; the rest cannot be judged"


def test_without_a_server_they_are_skipped_with_the_reason():
    assert {each.evidence[0] for each in graded("echo", None).values()} == {
        "the audit plays the package's server, and none runs"
    }


@pytest.mark.long
def test_openenv_finds_them_in_the_wheel(tmp_path: Path):
    environment = os.environ | {"PYTHONPATH": str(unpacked(tmp_path))}
    done = subprocess.run([sys.executable, "-c", LISTED], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(GRADERS)), *sorted(each.check_id for each in GRADERS)]


def test_openenv_validate_does_not_load_graders_of_others_yet():
    """If this fails, a newer openenv does: `openenv validate` shows them, and docs/audit.md can say so."""
    assert "load_entry_points" in vars(GraderRegistry)
    sources = Path(validation.__file__).parent.rglob("*.py")
    assert [each.name for each in sources if "load_entry_points(" in each.read_text()] == ["__init__.py"]
