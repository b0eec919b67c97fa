"""Servers of others are judged by what a call earns there, whatever range their rewards have and whatever they show."""

import random
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.flows.audit.audit import audit
from apprentice.flows.audit.play.findings import CheckResult
from apprentice.flows.audit.play.guesses import any_value
from apprentice.flows.audit.play.subject import Extent, Needs, Subject
from apprentice.flows.runtime.servers import completed
from tests.envs.published import oddities
from tests.envs.published.parity import app, parity
from tests.envs.published.serving import serving

EXTENT = Extent(seeds=24, samples=30, seconds=2.0)


def secret() -> Any:
    return oddities.served(oddities.Secret, oddities.Guess)


CASES: list[tuple[str, Callable[[], Any], dict[str, Any], str, str, str]] = [
    ("penalties", lambda: app(parity(low=-1.0)), {}, "reward.exploit", "passed", "earns more than partial credit"),
    ("any deal", lambda: oddities.served(oddities.Paid, oddities.Deal), {}, "reward.exploit", "failed", "earns 1.00"),
    ("timed", lambda: oddities.served(oddities.Timed), {}, "seeds.repeat", "passed", "the same question"),
    ("secret", secret, {}, "seeds.ignored", "failed", ""),
    ("secret tasks", secret, {"tasks": 100}, "seeds.ignored", "passed", "lead elsewhere"),
]


@pytest.mark.parametrize(
    ("served", "settings", "check", "status", "said"), [each[1:] for each in CASES], ids=[each[0] for each in CASES]
)
def test_a_server_of_others_is_judged_by_what_its_calls_earn(
    served: Callable[[], Any], settings: dict[str, Any], check: str, status: str, said: str
):
    found = judged(served, settings, quick=check.startswith("seeds"))[check]
    assert found.status == status
    assert said in found.found


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "integer", "exclusiveMinimum": 3, "maximum": 9},
        {"type": "integer", "maximum": -4},
        {"type": "string", "minLength": 3},
        {"type": "array", "items": {"type": "string"}, "minItems": 2},
        {"anyOf": [{"type": "integer", "minimum": 2}, {"type": "null"}]},
    ],
)
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_value_that_is_guessed_fits_its_schema(schema: dict[str, Any], seed: int | None):
    jsonschema.validate(any_value(schema, None if seed is None else random.Random(seed)), schema)


def test_seeds_that_no_start_shows_can_be_tasks():
    remedy = judged(secret, {}, quick=True)["seeds.ignored"].remedy
    assert "environment.tasks: 100" in remedy


def judged(served: Callable[[], Any], settings: dict[str, Any], quick: bool) -> dict[str, CheckResult]:
    with serving(served()) as url:
        server = EnvironmentServer(url=url, message_timeout=60)
        spec = completed(EnvironmentSpec(settings=settings), server)
        report = audit(Subject(server, spec, Needs(0, 0, 4), range(5), EXTENT), quick=quick)
    return {each.check: each for each in report.findings}
