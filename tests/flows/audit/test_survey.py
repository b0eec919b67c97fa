"""`make audit` writes what it found: a page for people, a file for the preflight."""

import json

from apprentice.envs.catalog import CATALOGUE, EnvironmentSpec
from apprentice.envs.wire.reply import one_line
from apprentice.flows.audit.audit import CHECKS, KNOWN, found_before
from apprentice.flows.audit.subject import Evidence, Finding
from tests.bench.audit import HEAD, PAGE, Audited, Case, as_known, cases, page, wrong

SHOWN = Evidence(3, (("answer", {"answer": "yes"}),), "reward 1")
EXPLOIT = Finding("reward.exploit", "failed", "error", "yes earns 0.5", (SHOWN,), "GRPO finds this.", "Score it.")
FULL = Finding("robustness.capacity", "failed", "warning", "it hangs", (), "It waits.", "Refuse.")
ONE = Audited(Case("Reasoning Gym", "reasoning_gym", {"dataset": "gcd"}), [EXPLOIT, FULL], "200 seeds", 2.0)


def test_a_finding_is_on_the_page_with_a_command_that_shows_it_and_in_the_file():
    written = page([ONE], 60.0)
    assert written.startswith("# Is my environment sound?\n\n```bash\napprentice env audit ")
    assert "| `gcd` | **reward.exploit** (error) | 200 seeds | 2 |" in written
    assert "seed=3, size=1); print(d.score_answer('yes', d[0]))" in written
    assert [each["check"] for each in as_known([ONE])] == ["reward.exploit"], "capacity is the server's"


def test_every_case_names_an_environment_that_there_is():
    chosen = list(cases())
    assert all(EnvironmentSpec(name=each.environment, settings=each.settings) for each in chosen)
    assert len([each for each in chosen if each.group == "Reasoning Gym"]) == 106
    assert {each.environment for each in chosen if each.group == "ours"} == CATALOGUE.keys() - {"multi"}
    assert len({each.name for each in chosen if each.group != "ours"}) == len([e for e in chosen if e.group != "ours"])


def test_the_page_in_the_checkout_is_made_of_its_head_and_the_file_names_checks_that_there_are():
    assert PAGE.read_text().startswith(HEAD.read_text().rstrip())
    known = json.loads(KNOWN.read_text())
    assert {each["check"] for each in known} <= {each.name for each in CHECKS}
    for each in known:
        spec = EnvironmentSpec(name=each["environment"], settings=each["settings"])
        assert any(one_line(each["found"]) in told for told in found_before(spec))
        assert f"**{each['check']}**" in PAGE.read_text()


def test_every_check_is_on_the_page():
    head = HEAD.read_text().replace(", `.reset`, `.crash`", ", `isolation.reset`, `isolation.crash`")
    assert [each.name for each in CHECKS if f"`{each.name}`" not in head] == []


def test_errors_come_before_warnings():
    mixed = ONE._replace(findings=[FULL._replace(check="schema.text"), EXPLOIT])
    assert [each.severity for each in wrong(mixed)] == ["error", "warning"]
