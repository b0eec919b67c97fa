"""Ctrl-C and signals end a command once, wherever they come."""

import signal
import threading
from types import SimpleNamespace

import pytest

from apprentice.flows.runtime import interruption


@pytest.fixture(autouse=True)
def uninterrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruption, "_reported", threading.Event())
    monkeypatch.setattr(interruption, "_received", threading.Event())


def test_an_interruption_is_told_once(capsys: pytest.CaptureFixture[str]):
    interruption.say_interrupted("Nothing was written.")
    interruption.say_interrupted("Run again.")
    assert capsys.readouterr().out == "Interrupted. Nothing was written.\n"


def test_the_first_signal_interrupts_and_the_next_ones_do_not():
    with pytest.raises(KeyboardInterrupt):
        interruption._interrupt(signal.SIGINT, None)
    interruption._interrupt(signal.SIGTERM, None)


def test_an_interruption_that_a_finalizer_swallowed_comes_again_and_another_error_does_not(
    monkeypatch: pytest.MonkeyPatch,
):
    came, shown = threading.Event(), []
    before = signal.signal(signal.SIGTERM, lambda *_: came.set())
    monkeypatch.setattr("sys.__unraisablehook__", shown.append)
    try:
        interruption.interrupt_again(SimpleNamespace(exc_type=ValueError))
        assert (len(shown), came.wait(0.2)) == (1, False)
        interruption.interrupt_again(SimpleNamespace(exc_type=KeyboardInterrupt))
        assert came.wait(20)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(shown) == 1
