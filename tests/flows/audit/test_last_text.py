"""An audit plays last texts as it plays calls: those of a script, and those that know nothing of the question."""

import sys
from collections.abc import Iterator

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.game import Game
from apprentice.envs.wire.waiting import wait_for
from apprentice.flows.audit import asking, exploits, near_misses, own_code
from apprentice.flows.audit.connection import sessions, shut, wire
from apprentice.flows.audit.play.check import Check
from apprentice.flows.audit.play.findings import CheckResult
from apprentice.flows.audit.play.subject import Extent, Needs, Subject
from tests.served_desk import FILE, ServedDesk, served_desk


@pytest.fixture(scope="module")
def desk() -> Iterator[ServedDesk]:
    with served_desk() as running:
        yield running


def found(check: Check, desk: ServedDesk, task: EnvironmentSpec | None = None) -> CheckResult:
    """What one check says of the desk."""
    brief = Extent(seeds=16, samples=16, seconds=2.0)
    subject = Subject(desk.server, task or desk.task, Needs(0, 0, 2), extent=brief)
    try:
        for each in (sessions, wire):
            assert each.run(subject).status == "passed"
        return check.run(subject)
    finally:
        wait_for(shut(subject.sessions))


def test_a_script_that_ends_with_texts_wins_every_episode_and_again(desk: ServedDesk):
    assert found(exploits.oracle, desk).found == "the script earns 1 in 16 of 16 episodes"
    assert found(exploits.repeatable, desk).status == "passed"


@pytest.mark.parametrize(
    "check",
    [near_misses.ordered, near_misses.near_miss, own_code.declared, own_code.script, own_code.played],
    ids=lambda check: check.name,
)
def test_a_sound_desk_passes_the_checks_of_wrong_calls_and_of_its_code(desk: ServedDesk, check: Check):
    verdict = found(check, desk)
    assert verdict.status == "passed", verdict.found


def test_a_sound_desk_pays_for_no_text_that_knows_nothing(desk: ServedDesk):
    assert found(exploits.exploit, desk).status == "passed"


def test_a_desk_that_pays_for_any_text_is_found(desk: ServedDesk, monkeypatch: pytest.MonkeyPatch):
    def any_text(game: Game, text: str) -> None:
        game.reward = 1.0

    monkeypatch.setattr(sys.modules["desk"].Desk, "say", any_text)
    verdict = found(exploits.exploit, desk)
    assert (verdict.status, verdict.severity) == ("failed", "error")
    assert verdict.found.startswith(("a message without a call earns 1.00 of 1", "say("))


@pytest.mark.parametrize(
    ("tool", "argument", "unlisted"),
    [("respond", "message", False), ("refund", "message", False), ("respond", "message", True)],
)
def test_a_setting_that_names_no_tool_for_the_text_stops_a_run_before_it_begins(
    desk: ServedDesk, tool: str, argument: str, unlisted: bool
):
    say = {"tool": tool, "argument": argument, "unlisted": unlisted}
    task = EnvironmentSpec(path=FILE, say=say)  # type: ignore[arg-type]
    verdict = found(asking.tools, desk, task)
    assert verdict.status == "failed"
    assert verdict.found.startswith(f"environment.say names {tool}({argument})")
    assert verdict.remedy.endswith("the tools are look_up, refund.")
