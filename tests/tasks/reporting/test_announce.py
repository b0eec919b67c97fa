"""What a run says must not end it."""

import io
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect import artifacts
from rich.console import Console

from apprentice.tasks.artifacts.types import Checkpoint, GrpoCheckpoint, SftCheckpoint
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.announce import StageRun, duration_text

SPEAKS = """
import sys
from apprentice.tasks.reporting import announce
from prefect.logging import get_logger
announce.warn("one")
sys.stdin.readline()
for _ in range(3):
    announce.warn("x" * 100_000)
    announce.say("# said")
    get_logger("flow_runs").info("x" * 100_000)
open(sys.argv[1], "w").close()
"""


def test_a_run_goes_on_when_whoever_read_its_output_is_gone(tmp_path: Path):
    run = subprocess.Popen(
        [sys.executable, "-c", SPEAKS, str(tmp_path / "went-on")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert run.stdin is not None
    assert run.stdout is not None
    assert "one" in run.stdout.readline()
    run.stdout.close()
    run.stdin.write("\n")
    run.stdin.flush()
    assert run.wait(60) in (0, 120)  # 120: Python could not flush what nobody reads
    assert (tmp_path / "went-on").exists()


def test_a_duration_is_told_as_a_person_would():
    assert [duration_text(seconds) for seconds in (0.2, 45, 200, 9000)] == [
        *("about 1 s", "about 45 s", "about 3 min", "about 2.5 h")
    ]


LONG = "Evaluation of grpo in reasoning_gym spell_backward, of a round, with a title that goes on and on, and on and on"


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> io.StringIO:
    """What the terminal shows: not one, but a log of 80 columns, or of as many as are asked for."""
    text = io.StringIO()
    monkeypatch.setattr(announce, "console", Console(file=text, width=getattr(request, "param", 80)))
    return text


def ended(title: str, state: str = "ran", figure: str = "") -> None:
    announce.stage_ended(title, StageRun("toy", state, 3725.04, "0123"), figure, emit=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("shown", [80, 120], indirect=True)
def test_a_stage_is_one_line_with_its_seconds_and_its_figure_in_columns(shown: io.StringIO):
    ended("SFT", figure="18,912 parameters")
    ended(LONG, figure="89.5% of 1,000")
    first, second = shown.getvalue().splitlines()
    assert first.index("3,725.0 s") == second.index("3,725.0 s")
    assert first.index("18,912") == second.index("89.5%")


def test_cached_stages_share_a_line_before_the_next_one_that_runs(shown: io.StringIO):
    for title in ("Questions", "Student"):
        ended(title, "cached")
    assert shown.getvalue() == ""
    with announce.stage_running("SFT"):
        pass
    ended("GRPO", "cached")
    announce.show_cached()
    announce.show_cached()
    assert shown.getvalue().splitlines() == ["✓ 2 stages cached", "▶ SFT", "✓ 1 stage cached"]


def test_what_a_stage_shows_of_itself_is_for_a_verbose_run(shown: io.StringIO, monkeypatch: pytest.MonkeyPatch):
    rows = [{"rollouts": "kept", "count": 3}]
    announce.rows("toy", "Filter", rows)
    announce.detail("a sample")
    assert shown.getvalue() == ""
    monkeypatch.setattr(announce, "_verbose", True)
    announce.rows("toy", "Filter", rows)
    announce.detail("a sample")
    ended("Student", "cached")
    assert ["kept" in shown.getvalue(), "a sample" in shown.getvalue(), "cached" in shown.getvalue()] == [True] * 3


def test_a_bar_counts_what_is_counted_and_else_only_pulses(monkeypatch: pytest.MonkeyPatch):
    text = io.StringIO()
    monkeypatch.setattr(announce, "console", Console(file=text, width=80, force_terminal=True))
    bars = announce.Bars(announce.console)
    with bars.bar("▶ GRPO", None, 0) as _, bars.bar("  GRPO steps", 40, 3) as advance:
        advance(1)
        bars._display.refresh()
    assert "GRPO steps" in text.getvalue()
    assert " 4/40" in text.getvalue()
    assert "/?" not in text.getvalue()


@pytest.mark.parametrize(
    ("kind", "counts", "figure"),
    [
        (SftCheckpoint, {"loss": 0.012345}, "last loss 0.0123"),
        (GrpoCheckpoint, {"reward": 0.9375}, "last reward 0.938"),
        (GrpoCheckpoint, {}, "18,912 parameters"),  # of older code
    ],
)
def test_a_training_tells_its_last_loss_or_reward(kind: type[Checkpoint], counts: dict[str, float], figure: str):
    made = kind(repository="local/toy", revision="r", key="k", parameters=18_912, **counts)  # type: ignore[arg-type]
    assert made.figure == figure


def test_brackets_in_a_title_are_no_markup(shown: io.StringIO):
    ended("Rollouts of [/red] and [bold]words")
    assert "[/red] and [bold]words" in shown.getvalue()


def test_a_log_gets_a_line_every_half_minute(shown: io.StringIO, monkeypatch: pytest.MonkeyPatch):
    now = 0.0
    monkeypatch.setattr(announce, "monotonic", lambda: now)
    with announce.progress("SFT steps", 10) as advance:
        for _ in range(10):
            now += 12.0
            advance(1)
    lines = [line.strip() for line in shown.getvalue().splitlines()]
    assert lines == [
        "SFT steps: 3 of 10, about 84 s left",
        "SFT steps: 6 of 10, about 48 s left",
        "SFT steps: 9 of 10, about 12 s left",
    ]


def test_a_quick_stage_does_not_wait_for_prefect_at_every_tenth(shown: io.StringIO, monkeypatch: pytest.MonkeyPatch):
    now, updates = 0.0, []
    monkeypatch.setattr(announce, "monotonic", lambda: now)
    monkeypatch.setattr(announce, "in_prefect", lambda: True)
    monkeypatch.setattr(artifacts, "create_progress_artifact", lambda **_: "artifact")
    monkeypatch.setattr(artifacts, "update_progress_artifact", lambda progress, **_: updates.append((now, progress)))
    with announce.progress("Episodes", 100) as advance:
        for _ in range(100):  # the first half in a second, the other one with a second each
            now += 0.02 if now < 1.0 else 1.0
            advance(1)
    assert [progress for _, progress in updates] == [51.0, 61.0, 71.0, 81.0, 91.0, 100.0]
    assert all(later - earlier >= announce.SOONEST_S for (earlier, _), (later, _) in pairwise(updates))


def test_a_slow_stage_tells_prefect_of_less_than_a_tenth(shown: io.StringIO, monkeypatch: pytest.MonkeyPatch):
    now, updates = 0.0, []
    monkeypatch.setattr(announce, "monotonic", lambda: now)
    monkeypatch.setattr(announce, "in_prefect", lambda: True)
    monkeypatch.setattr(artifacts, "create_progress_artifact", lambda **_: "artifact")
    monkeypatch.setattr(artifacts, "update_progress_artifact", lambda progress, **_: updates.append(progress))
    with announce.progress("Episodes", 100) as advance:
        for _ in range(3):
            now += 20.0
            advance(1)
    assert updates == [2.0]


ROUNDS = [{"round": n, "accuracy": "53.5% (49.5% to 57.5%)", "tokens": "33,550,000", "why not": ""} for n in (1, 2)]


@pytest.mark.parametrize("shown", [24, 100], indirect=True)
def test_what_was_warned_of_is_kept_once_with_how_often_and_forgotten_when_a_run_begins(shown: io.StringIO):
    announce.forget_warnings()
    for text in ("The Hub\nfailed.", "A log.", "The Hub\nfailed."):
        announce.warn(text)
    assert announce.warned() == ["The Hub failed. (2 times)", "A log."]
    announce.forget_warnings()
    assert announce.warned() == []


def test_a_narrow_terminal_cuts_no_number_of_a_table(shown: io.StringIO):
    announce.table("rounds", "Rounds", ROUNDS)
    lines = [line.rstrip() for line in shown.getvalue().splitlines()]
    assert "…" not in shown.getvalue()
    assert sum("33,550,000" in line for line in lines) == 2
    assert any(line.split() == ["round", "2"] for line in lines) == (announce.console.width == 24)


def test_another_process_says_here_what_it_says_there_and_its_bars_end_with_the_block(
    shown: io.StringIO, monkeypatch: pytest.MonkeyPatch
):
    sent: list[Any] = []
    bars: list[Any] = []

    @contextmanager
    def bar(title: str, total: int, done: int) -> Iterator[Any]:
        bars.append((title, total, done))
        yield bars.append
        bars.append("ended")

    monkeypatch.setattr(announce, "_teller", lambda *said: sent.append(said))
    announce.warn("careful")
    announce.event("name", "it", {})
    with announce.progress("Steps", 9, 2) as advance:
        advance(3)
    assert sent[0] == ("warn", "careful")
    assert sent[2:] == [("progress", "Steps", 9, 2), ("advance", 3), ("progress ended",)]
    assert not shown.getvalue()
    monkeypatch.setattr(announce, "_teller", None)
    monkeypatch.setattr(announce, "progress", bar)
    with announce.relaying() as show:
        for said in [sent[0], *sent[2:], ("progress", "more", 1, 0), ("advance", 1)]:
            show(*said)
        assert bars == [("Steps", 9, 2), 3, "ended", ("more", 1, 0), 1]
    assert bars[-1] == "ended"
    assert "careful" in shown.getvalue()


@pytest.mark.parametrize("through", [True, False])
def test_what_is_held_back_is_printed_only_where_it_is_let_through(shown: io.StringIO, through: bool):
    with announce.held() as say:
        announce.say("said")
        ended("a cached stage", state="cached")
        if through:
            say()
    lines = [line.rstrip() for line in shown.getvalue().split("\n")]
    assert lines == (["said", ""] if through else [""])
    announce.show_cached()
    assert "cached" not in shown.getvalue()


def test_a_dispatched_stage_is_a_line_after_those_that_are_cached(shown: io.StringIO, monkeypatch: pytest.MonkeyPatch):
    logged: list[str] = []
    monkeypatch.setattr(announce, "_log", logged.append)
    ended("cached", state="cached")
    announce.dispatched("SFT [x]", "a100", "the-run")
    assert shown.getvalue() == "✓ 1 stage cached\n▶ SFT [x]: on a100, flow run the-run\n"
    assert logged[-1] == "SFT [x]: on a100, flow run the-run"


@pytest.mark.parametrize("inside", [True, False])
def test_a_link_is_for_prefect(inside: bool, monkeypatch: pytest.MonkeyPatch):
    made: list[Any] = []
    monkeypatch.setattr(announce, "in_prefect", lambda: inside)
    monkeypatch.setattr(artifacts, "create_link_artifact", lambda **given: made.append(given))
    announce.link("space", "http://there", "The Space")
    expected = {"key": "space", "link": "http://there", "link_text": "The Space", "description": "The Space"}
    assert made == ([expected] if inside else [])


def test_a_verbose_run_is_one_that_was_asked_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(announce, "_verbose", False)
    announce.be_verbose()
    assert announce._verbose


@pytest.mark.parametrize("bars", [True, False])
def test_a_stage_that_runs_is_a_bar_on_a_terminal_and_a_line_in_a_log(
    bars: bool, shown: io.StringIO, monkeypatch: pytest.MonkeyPatch
):
    bars_drawn: list[Any] = []
    drawn = SimpleNamespace(shown=bars, bar=lambda *given: nullcontext(bars_drawn.append(given)))
    monkeypatch.setattr(announce, "_bars", drawn)
    with announce.stage_running("SFT [x]"):
        pass
    assert bars_drawn == ([("[bold]▶ SFT \\[x]", None, 0)] if bars else [])
    assert shown.getvalue() == ("" if bars else "▶ SFT [x]\n")
