"""Ctrl-C is heard wherever it comes."""

import signal
import sys
import threading

import pytest

from apprentice.flows.cli_parts import interrupted_once_more


class Cleaned:
    """An object in whose cleaning away the key is pressed."""

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


def test_ctrl_c_is_heard_though_python_drops_it_while_an_object_is_cleaned_away(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "unraisablehook", interrupted_once_more)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as the command has it
    Cleaned()
    with pytest.raises(KeyboardInterrupt):
        threading.Event().wait(60)
    signal.signal(signal.SIGTERM, before)


def test_any_other_error_that_python_drops_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    class Broken:
        def __del__(self):
            raise ValueError("in cleaning away")

    monkeypatch.setattr(sys, "unraisablehook", interrupted_once_more)
    Broken()
    assert "ValueError: in cleaning away" in capsys.readouterr().err
