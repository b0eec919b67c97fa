"""How a command ends: a message with a remedy instead of a traceback, and an exit code that scripts can read."""

import errno
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import httpx2
import pytest
import typer
from huggingface_hub.errors import OfflineModeIsEnabled
from prefect.exceptions import PrefectHTTPStatusError

from apprentice.flows.cli import common
from apprentice.flows.cli.common import exit_with_message
from apprentice.flows.cli.runs import _window
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.runtime.servers import check_runs, run_folder
from apprentice.flows.runtime.work_pool import _is_passing
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import Window
from tests.flows.commands import TOY


def prefects(status: int) -> PrefectHTTPStatusError:
    request = httpx.Request("GET", "http://prefect")
    return PrefectHTTPStatusError("said", request=request, response=httpx.Response(status, request=request))


@pytest.fixture(autouse=True)
def uninterrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "_reported", threading.Event())
    monkeypatch.setattr(common, "_received", threading.Event())


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (Stop("Nothing was kept.", "Look at the filter."), 1, "Nothing was kept.\nLook at the filter.\n"),
        (OfflineModeIsEnabled("offline"), 1, "and HF_HUB_OFFLINE is set.\nUnset it"),
        (httpx2.ConnectError("refused"), 1, "The Hub does not answer (ConnectError).\nRun again when it is back."),
        (prefects(401), 1, "401"),
        (prefects(403), 1, "403"),
        (prefects(404), 1, "PrefectHTTPStatusError: said\nThis is unexpected"),
        (ZeroDivisionError("[bold] no markup"), 1, "ZeroDivisionError: [bold] no markup\nThis is unexpected"),
        (ZeroDivisionError(), 1, "ZeroDivisionError\nThis is unexpected"),
        (KeyboardInterrupt(), 130, "Interrupted. Run the same command again: it resumes from"),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, BaseException) else None,
)
def test_an_error_is_a_cause_and_a_remedy(
    error: BaseException, code: int, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended, exit_with_message():
        raise error
    assert ended.value.code == code
    output = capsys.readouterr()
    assert words in output.out
    assert "Traceback" not in output.out + output.err


@pytest.mark.parametrize("ending", [SystemExit(3), typer.Exit(3), typer.Abort(), typer.BadParameter("no")])
def test_an_exit_code_that_a_command_chose_is_its_own(ending: BaseException):
    with pytest.raises(type(ending)) as ended, exit_with_message():
        raise ending
    assert ended.value is ending


def test_an_interruption_is_told_once(capsys: pytest.CaptureFixture[str]):
    common.say_interrupted("Nothing was written.")
    common.say_interrupted("Run again.")
    assert capsys.readouterr().out == "Interrupted. Nothing was written.\n"


def test_the_first_signal_interrupts_and_the_next_ones_do_not():
    with pytest.raises(KeyboardInterrupt):
        common._interrupt(signal.SIGINT, None)
    common._interrupt(signal.SIGTERM, None)


def test_an_interruption_that_a_finalizer_swallowed_comes_again_and_another_error_does_not(
    monkeypatch: pytest.MonkeyPatch,
):
    came, shown = threading.Event(), []
    before = signal.signal(signal.SIGTERM, lambda *_: came.set())
    monkeypatch.setattr("sys.__unraisablehook__", shown.append)
    try:
        common.interrupt_again(SimpleNamespace(exc_type=ValueError))
        assert (len(shown), came.wait(0.2)) == (1, False)
        common.interrupt_again(SimpleNamespace(exc_type=KeyboardInterrupt))
        assert came.wait(20)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(shown) == 1


@pytest.fixture
def full() -> Iterator[Any]:
    """A stream to a device that is always full."""
    descriptor = os.open("/dev/full", os.O_WRONLY)
    yield common._Lenient(descriptor, "w", closefd=False)
    os.close(descriptor)


def test_what_cannot_be_written_is_dropped_and_the_first_reason_kept(full: Any, tmp_path: Path):
    assert full.write(b"four") == 4
    first = full.failed
    assert first.errno == errno.ENOSPC
    assert full.write(b"again") == 5
    assert full.failed is first
    with common._Lenient(str(tmp_path / "out"), "w") as whole:
        assert whole.write(b"four") == 4
        assert whole.failed is None


@pytest.mark.parametrize(
    ("number", "code", "ends"), [(errno.ENOSPC, 0, 1), (errno.EPIPE, 0, 0), (errno.EIO, 0, 0), (errno.ENOSPC, 3, 3)]
)
def test_a_command_whose_output_is_lost_does_not_end_as_if_it_were_read(
    number: int, code: int, ends: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    failed = OSError(number, os.strerror(number))
    monkeypatch.setattr(common, "_kept", [SimpleNamespace(fileno=lambda: 1, failed=failed)])
    with pytest.raises(SystemExit) as ended, common.report_write_errors():
        raise SystemExit(code)
    assert (ended.value.code or 0) == ends
    assert ("could not be written" in capsys.readouterr().err) == (ends == 1)


def test_without_a_failed_write_a_command_ends_as_it_would(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(common, "_kept", [SimpleNamespace(fileno=lambda: 2, failed=OSError(errno.ENOSPC, "full"))])
    with pytest.raises(SystemExit) as ended, common.report_write_errors():
        raise SystemExit(0)
    assert ended.value.code == 0


def test_the_questions_are_the_window_s_unless_a_first_seed_is_given():
    recipe = load_recipe(TOY, [])
    window = recipe.seed_windows().evaluate
    assert (
        _window(recipe.seed_windows().evaluate, 1, None)
        == _window(recipe.seed_windows().evaluate, window.size, None)
        == window
    )
    assert _window(recipe.seed_windows().evaluate, 3, 7) == Window(start=7, size=3)
    assert _window(recipe.seed_windows().evaluate, window.size + 1, 0).size == window.size + 1
    with pytest.raises(Stop, match=f"has {window.size} seeds"):
        _window(recipe.seed_windows().evaluate, window.size + 1, None)


@pytest.mark.parametrize(("status", "passes"), [(500, True), (503, True), (429, True), (499, False), (404, False)])
def test_prefects_server_is_asked_again_where_it_may_answer_later(status: int, passes: bool):
    assert _is_passing(prefects(status)) is passes


def test_a_server_that_is_not_there_is_asked_again_and_a_mistake_is_not():
    assert _is_passing(httpx.ConnectError("refused"))
    assert not _is_passing(ValueError("no"))


def test_a_run_s_folder_has_its_recipe_and_goes_where_the_run_fails(tmp_path: Path):
    recipe = load_recipe(TOY, [])
    with run_folder(tmp_path / "runs", recipe) as kept:
        assert kept.parent == tmp_path / "runs"
        assert kept.name.startswith("toy-seed0-")
    assert load_recipe(kept / "recipe.yaml", []) == recipe
    with pytest.raises(KeyboardInterrupt), run_folder(tmp_path / "runs", recipe) as failed:
        raise KeyboardInterrupt
    assert [*(tmp_path / "runs").iterdir()] == [kept] != [failed]


def test_where_no_folder_can_be_made_it_is_told_before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    check_runs(tmp_path / "new" / "runs")
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(Stop, match="file is a file"):
        check_runs(tmp_path / "file" / "runs")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK | os.X_OK)
    with pytest.raises(Stop, match="cannot be written"):
        check_runs(tmp_path / "runs")
