"""The table of an audit stays readable in 80 columns, in 60, and in a pipe."""

import pytest

from apprentice.flows.audit.play.findings import CheckEvidence, CheckResult
from apprentice.flows.cli.environments import print_findings, print_sentence

FOUND = (
    "stopping after 2 calls earns 0.2 on average, a wrong last call 0, the right one 1, over 24 episodes: who is right "
    "in less than 20% of the last calls earns more by breaking off"
)
REMEDY = "Let a wrong last call earn no less than the stop, or give no reward for looking."
SHOWN = CheckEvidence(3, (("find", {"name": "Ada"}), ("refund", {"order": "O-1663", "amount": 79})), "reward 0")
EFFECT = "GRPO learns to break off: it earns more than a call that may be wrong."
FINDINGS = [
    CheckResult(
        "robustness.given_back", "does not apply", "error", "how many sessions it grants is not known", (), "", ""
    ),
    CheckResult("reward.stopping", "failed", "error", FOUND, (SHOWN, SHOWN), EFFECT, REMEDY),
]


def printed(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    print_findings(FINDINGS)
    print_sentence("http://127.0.0.1:43301 does not work for desk: reward.stopping, reward.near_miss, reward.exploit.")
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 300])
def test_no_line_is_longer_than_the_terminal_and_no_word_is_cut(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    lines = printed(width, monkeypatch, capsys)
    assert max(map(len, lines)) <= width
    assert not any(line != line.rstrip() for line in lines)
    said = {word for line in lines for word in line.split()}
    wanted = " ".join([FOUND, REMEDY, EFFECT, str(SHOWN), *(each.check for each in FINDINGS)])
    assert set(wanted.split()) <= said


@pytest.mark.parametrize(("width", "least"), [(60, 45), (80, 30), (120, 65)])
def test_what_is_found_has_room(
    width: int, least: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    lines = printed(width, monkeypatch, capsys)
    first = next(number for number, line in enumerate(lines) if "stopping after 2 calls" in line)
    shown = lines[first][lines[first].index("stopping after") :]
    assert len(shown) >= least
    assert len(lines[first + 1].strip()) > 20


def test_the_remedy_stands_under_what_is_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    lines = printed(300, monkeypatch, capsys)
    row = next(number for number, line in enumerate(lines) if line.startswith("reward.stopping"))
    assert lines[row].endswith(FOUND)
    assert lines[row + 1].strip() == f"→ {REMEDY}"
