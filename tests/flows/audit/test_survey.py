"""`make audit` writes what it found: a page for people, a file for the preflight."""

import json

import pytest

from apprentice.envs.catalog import CATALOGUE, EnvironmentSpec, known
from apprentice.envs.folders import FOLDERS
from apprentice.envs.wire.reply import one_line
from apprentice.flows.audit.audit import CHECKS, KNOWN, found_before
from apprentice.flows.audit.play.findings import CheckEvidence, CheckResult
from tests.bench.audit import (
    GAME as GAME_FILE,
)
from tests.bench.audit import (
    GAMES,
    HEAD,
    PAGE,
    Audited,
    Case,
    as_known,
    cases,
    known_now,
    merged,
    page,
    row,
    rows_in,
    wrong,
)
from tests.bench.textarena_game import TextArenaGame, made_here

SHOWN = CheckEvidence(3, (("answer", {"answer": "yes"}),), "reward 1")
EXPLOIT = CheckResult("reward.exploit", "failed", "error", "yes earns 0.5", (SHOWN,), "GRPO finds this.", "Score it.")
FULL = CheckResult("robustness.capacity", "failed", "warning", "it hangs", (), "It waits.", "Refuse.")
ONE = Audited(Case("Reasoning Gym", "reasoning_gym", {"dataset": "gcd"}), [EXPLOIT, FULL], "200 seeds", 2.0)


def test_a_finding_is_on_the_page_with_a_command_that_shows_it_and_in_the_file():
    written = page([row(ONE)])
    assert written.startswith("# Is my environment sound?\n\n```bash\napprentice env audit ")
    assert "| `gcd` | **reward.exploit** (error) | 200 seeds | 2 | 2 |" in written
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
        assert any(one_line(each["found"]) in line for line in found_before(spec))
        assert f"**{each['check']}**" in PAGE.read_text()


def test_every_check_is_on_the_page():
    head = HEAD.read_text().replace(", `.reset`, `.crash`", ", `isolation.reset`, `isolation.crash`")
    assert [each.name for each in CHECKS if f"`{each.name}`" not in head] == []


def test_errors_come_before_warnings():
    mixed = ONE._replace(findings=[FULL._replace(check="schema.text"), EXPLOIT])
    assert [each.severity for each in wrong(mixed)] == ["error", "warning"]


GAME = Audited(
    Case(GAMES, "textarena_game", {"game": "Nim|v0"}),
    [EXPLOIT._replace(evidence=(CheckEvidence(7, (("say", {"move": "1 2"}),), "reward 1"),))],
    "5 seeds | 3 questions",
    1.0,
)


def test_a_page_is_read_as_it_was_written():
    rows = [row(ONE), row(GAME), row(ONE._replace(case=ONE.case._replace(settings={"dataset": "lcm"}), findings=[]))]
    assert rows_in(page(rows)) == sorted(rows, key=lambda each: [ONE.case.group, GAMES].index(each.group))
    assert page(rows_in(PAGE.read_text())).partition("### ours")[2] == PAGE.read_text().partition("### ours")[2]


def test_some_rows_are_audited_again_and_the_others_stay():
    lcm = ONE._replace(case=ONE.case._replace(settings={"dataset": "lcm"}))
    before = [row(ONE), row(lcm)]
    sound = ONE._replace(findings=[], seconds=9.0)
    now = merged(before, [row(sound), row(GAME)])
    assert [(each.name, each.result) for each in now] == [
        ("gcd", "sound"),
        ("lcm", "**reward.exploit** (error)"),
        ("Nim|v0", "**reward.exploit** (error)"),
    ]
    known = known_now(as_known([ONE, lcm]), [sound, GAME])
    assert [each["settings"] for each in known] == [{"dataset": "lcm"}], "no run can name a game of TextArena's"


def test_a_games_finding_has_a_command_that_shows_it_in_textarena():
    shown = row(GAME).evidence
    assert "g = t.make('Nim|v0'); g.reset(num_players=1, seed=7); print([g.step(m)[0] for m in ['[1 2]']]" in shown


@pytest.mark.long
def test_every_game_for_one_player_has_a_row_or_a_reason_on_the_page(monkeypatch: pytest.MonkeyPatch):
    made, failed = made_here()
    assert len(made) > 20
    assert [name for name in failed if f"`{name}`" not in HEAD.read_text()] == []
    monkeypatch.setenv(FOLDERS, str(GAME_FILE))
    known.cache_clear()
    try:
        environment = EnvironmentSpec(name="textarena_game", settings={"game": "Mastermind-v0"}).make()
        assert [each["function"]["name"] for each in environment.schemas] == ["say"]
    finally:
        known.cache_clear()


def test_a_games_answers_and_rewards_are_read():
    game = TextArenaGame(TextArenaGame.Settings(game="GuessTheNumber-v0"))
    question = game.ask(3)
    assert question.startswith("Game ")
    assert "number between 1 and 20" in question
    again = TextArenaGame(TextArenaGame.Settings(game="GuessTheNumber-v0"))
    assert again.ask(3) == question
    assert len({again.ask(seed) for seed in range(10)}) > 1
    again.ask(3)
    again.say(str(again.correct))
    assert (again.done, again.reward) == (True, 1.0)


def test_a_game_whose_reward_is_a_text_is_broken():
    game = TextArenaGame(TextArenaGame.Settings(game="Cryptarithm-v0"))
    game.ask(0)
    game.say("nothing")
    with pytest.raises(TypeError, match="the game's reward is not a number: 'Bad action format"):
        game.say("nothing")
