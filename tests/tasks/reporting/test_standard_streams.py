"""Output that cannot be written fails no command on the way, and is told at its end."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from apprentice.tasks.reporting import standard_streams


@pytest.fixture
def full() -> Iterator[Any]:
    """A stream to a device that is always full."""
    descriptor = os.open("/dev/full", os.O_WRONLY)
    yield standard_streams._Lenient(descriptor, "w", closefd=False)
    os.close(descriptor)


def test_what_cannot_be_written_is_dropped_and_the_first_reason_kept(full: Any, tmp_path: Path):
    assert full.write(b"four") == 4
    first = full.failed
    assert first.errno == errno.ENOSPC
    assert full.write(b"again") == 5
    assert full.failed is first
    with standard_streams._Lenient(str(tmp_path / "out"), "w") as whole:
        assert whole.write(b"four") == 4
        assert whole.failed is None


@pytest.mark.parametrize(
    ("number", "code", "ends"), [(errno.ENOSPC, 0, 1), (errno.EPIPE, 0, 0), (errno.EIO, 0, 0), (errno.ENOSPC, 3, 3)]
)
def test_a_command_whose_output_is_lost_does_not_end_as_if_it_were_read(
    number: int, code: int, ends: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    failed = OSError(number, os.strerror(number))
    monkeypatch.setattr(standard_streams, "_kept", [SimpleNamespace(fileno=lambda: 1, failed=failed)])
    with pytest.raises(SystemExit) as ended, standard_streams.report_write_errors():
        raise SystemExit(code)
    assert (ended.value.code or 0) == ends
    assert ("could not be written" in capsys.readouterr().err) == (ends == 1)


def test_without_a_failed_write_a_command_ends_as_it_would(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        standard_streams, "_kept", [SimpleNamespace(fileno=lambda: 2, failed=OSError(errno.ENOSPC, "full"))]
    )
    with pytest.raises(SystemExit) as ended, standard_streams.report_write_errors():
        raise SystemExit(0)
    assert ended.value.code == 0
