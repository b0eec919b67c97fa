"""Each wrong environment is caught by the check that is for it, and by no other of the same severity."""

from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from openenv.core.env_server.http_server import HTTPEnvServer

from apprentice.envs.catalog import CATALOGUE, EnvironmentSpec, known
from apprentice.envs.folders import FOLDERS
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Session
from apprentice.envs.wire.waiting import wait_for
from apprentice.flows.audit import asking, robustness
from apprentice.flows.audit.audit import CHECKS, Report, audit, openers
from apprentice.flows.audit.connection import sessions, shut, wire
from apprentice.flows.audit.play.audited_episodes import play, replayed
from apprentice.flows.audit.play.subject import Extent, Needs, Subject
from apprentice.flows.audit.robustness import given_back
from apprentice.flows.cli.choice import environment_of
from apprentice.flows.recipe.loading import load_recipe
from tests.flows.commands import TOY
from tests.odd_server import odd_server

FAULTY = Path(__file__).parent / "faulty"
FAULTS = {
    "forgetful": "seeds.repeat",
    "counting": "seeds.repeat",
    "stubborn": "seeds.ignored",
    "hashed": "seeds.process",
    "generator": "seeds.load",
    "few": "seeds.windows",
    "slow": "questions",
    "undocumented": "schema.tools",
    "bell": "schema.text",
    "marks": "schema.text",
    "long": "schema.lengths",
    "named": "leaks.question",
    "tells": "leaks.reply",
    "field": "leaks.hidden",
    "state": "leaks.hidden",
    "seven": "reward.range",
    "nan": "reward.range",
    "half": "reward.oracle",
    "refuses": "reward.oracle",
    "noise": "reward.repeat",
    "constant": "reward.exploit",
    "empty": "reward.exploit",
    "parrot": "reward.exploit",
    "wordy": "reward.exploit",
    "lucky": "reward.exploit",
    "uneven": "reward.exploit",
    "generous": "reward.exploit",
    "inverted": "reward.ordered",
    "shared": "isolation.interleaved",
    "carried": "isolation.reset",
    "stuck": "isolation.crash",
    "crash": "robustness.arguments",
    "hang": "robustness.arguments",
    "second try": "robustness.after_end",
    "slower": "robustness.growth",
    "grows": "robustness.growth",
    "client": "code.play",
}
"""The check that catches each fault."""


class Servers(NamedTuple):
    """Two processes of the faulty environment, which differ in their hash seed."""

    one: EnvironmentServer
    other: EnvironmentServer


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDERS, str(FAULTY))
        known.cache_clear()
        serve = "apprentice.envs.serving.serve", "faulty", "--max-sessions", "64"
        with local_server(*serve) as one, local_server(*serve, hash_seed=1) as other:
            yield Servers(*(EnvironmentServer(url=url, message_timeout=1.0, patience=2.0) for url in (one, other)))
    known.cache_clear()


def subject(servers: Servers, fault: str) -> Subject:
    """The environment with a fault, looked at briefly."""
    spec = EnvironmentSpec(name="faulty", settings={"fault": fault})
    extent = Extent(seeds=24 if fault == "uneven" else 8, samples=100, seconds=2.0)  # uneven is what many answers are
    return Subject(servers.one, spec, Needs(0, 0, 6), extent=extent, elsewhere=lambda: nullcontext(servers.other))


def caught(report: Report, severity: str) -> list[str]:
    return [each.check for each in report.of(severity)]


def test_a_sound_environment_passes_every_check_that_applies(servers: Servers):
    report = audit(subject(servers, ""))
    assert [each.check for each in report.findings if each.status == "failed"] == []
    unknown = [each.check for each in report.findings if each.status == "does not apply"]
    assert unknown == ["version.original", "robustness.capacity", "robustness.given_back"]
    assert [each.check for each in report.findings] == [each.name for each in CHECKS]
    assert report.exit_code == 0


KINDS = {check.partition(".")[0]: fault for fault, check in reversed(FAULTS.items()) if fault != "slow"}
"""A fault of each kind, which the quick tests try; the long ones try all."""


@pytest.mark.parametrize(
    ("fault", "check"),
    [pytest.param(*each, marks=() if each[0] in KINDS.values() else pytest.mark.long) for each in FAULTS.items()],
)
def test_a_fault_is_caught_by_its_check_and_by_no_other_of_its_severity(servers: Servers, fault: str, check: str):
    report = audit(subject(servers, fault))
    finding = next(each for each in report.findings if each.check == check)
    assert finding.status == "failed", finding
    assert finding.severity is not None
    assert caught(report, finding.severity) == [check]
    assert finding.effect
    assert finding.remedy
    assert report.exit_code == {"error": 1, "warning": 3}[finding.severity]
    assert check != "reward.exploit" or finding.severity == ("warning" if fault == "uneven" else "error")


@pytest.mark.parametrize("fault", ["", "slow"])
def test_a_slow_reset_is_told_with_what_it_costs(servers: Servers, fault: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(asking, "SLOW", 0.2)
    recipe = load_recipe(TOY, ["grpo.max_steps=500"])
    looked_at = subject(servers, fault)
    looked_at.recipe = recipe
    sessions.run(looked_at)
    wire.run(looked_at)
    found = asking.questions.run(looked_at)
    assert found.status == ("failed" if fault else "passed"), found
    if fault:
        assert looked_at.seen is not None
        assert min(looked_at.reset_seconds) >= 0.25
        episodes = 500 * recipe.training_sessions()
        assert f"A GRPO of {episodes:,} episodes waits " in found.found
        assert float(found.found.split(": ")[1].split(" s for 1,000")[0].replace(",", "")) >= 250
        assert found.evidence[0].seed in looked_at.many
    wait_for(shut(looked_at.sessions))


async def keep(*_: Any) -> None:
    """What a server does that forgets to end a session."""


@pytest.mark.long
@pytest.mark.parametrize("keeps", [False, True])
def test_sessions_that_are_not_given_back_are_counted(keeps: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(robustness, "FREED", 2.0)
    if keeps:
        monkeypatch.setattr(HTTPEnvServer, "_destroy_session", keep)
    with odd_server("sound") as url:
        looked_at = Subject(EnvironmentServer(url=url, patience=2.0), EnvironmentSpec(name="echo"), Needs(0, 0, 100))
        found = [each.run(looked_at) for each in (sessions, given_back)]
        assert found[0].found == "it grants 99; collection uses 100"
        assert found[1].status == ("failed" if keeps else "passed"), found
        wait_for(shut(looked_at.sessions))


def test_a_server_that_goes_away_ends_the_audit_with_an_error():
    with ExitStack() as stack:
        server = EnvironmentServer(url=stack.enter_context(odd_server("sound")), message_timeout=1.0, patience=1.0)

        def say(text: str) -> None:
            if text.startswith("reward.repeat"):
                stack.close()

        brief = Extent(seeds=4, samples=40, seconds=1.0)
        report = audit(Subject(server, EnvironmentSpec(name="echo"), Needs(0, 0, 2), extent=brief), say=say)
    assert caught(report, "error") == ["reward.repeat"]
    assert "the server was lost" in next(each.found for each in report.findings if each.check == "reward.repeat")
    assert len(report.findings) == len(CHECKS)


def test_a_server_of_another_version_differs_from_the_code_here(servers: Servers):
    looked_at = subject(servers, "hashed")
    looked_at.elsewhere, looked_at.original = None, lambda: nullcontext(servers.other)
    report = audit(looked_at)
    assert caught(report, "error") == ["version.original"]
    assert {each.check for each in report.findings if each.status == "does not apply"} >= {"seeds.process"}


def test_evidence_is_what_can_be_played_again(servers: Servers):
    report = audit(subject(servers, "constant"))
    finding = next(each for each in report.findings if each.status == "failed")
    assert "on average over 8 questions" in finding.found
    shown = finding.evidence[0]
    assert shown.calls == (("say", {"text": "yes"}),)
    assert str(shown).endswith("""say({"text": "yes"}) → 'Yes.', reward 1""")
    environment = subject(servers, "constant").spec.make(Session(servers.one))
    assert play(environment, shown.seed, replayed(shown.calls)).reward == 1.0
    environment.close()


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(CATALOGUE.keys() - {"multi"}))
def test_no_environment_of_this_project_is_flagged(name: str):
    spec, _ = environment_of(name)
    with local_server("apprentice.envs.serving.serve", name, "--max-sessions", "16") as url:
        server, (elsewhere, _) = EnvironmentServer(url=url), openers(spec, served_here=True)
        extent = Extent(seeds=8, samples=100, seconds=1.0) if name == "browsergym" else Extent()  # its steps are slow
        report = audit(Subject(server, spec, Needs(0, 0, 16), extent=extent, elsewhere=elsewhere))
    assert [each for each in report.findings if each.status == "failed"] == []
    assert {"seeds.process", "reward.exploit", "robustness.capacity"} <= {
        each.check for each in report.findings if each.status == "passed"
    }
