"""Ctrl-C is heard wherever it comes."""

import signal
import sys
import threading

import pytest

from apprentice.flows.cli import interrupted_once_more


class Cleaned:
    """An object in whose cleaning away the key is pressed."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_is_heard_though_python_drops_it_while_an_object_is_cleaned_away(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "unraisablehook", interrupted_once_more)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have put the tests into the background
    Cleaned()
    with pytest.raises(KeyboardInterrupt):
        threading.Event().wait(60)


def test_any_other_error_that_python_drops_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    class Broken:
        def __del__(self):
            raise ValueError("in cleaning away")

    monkeypatch.setattr(sys, "unraisablehook", interrupted_once_more)
    Broken()
    assert "ValueError: in cleaning away" in capsys.readouterr().err
