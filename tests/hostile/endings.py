"""How a row of the hostile suite may end: survived, or a clear stop with nothing lost, spent or believed.

Each file of this folder is one table: counterparts (servers, endpoints, repositories, surroundings) that misbehave on
purpose, a row each, and the ending that the row must have.
"""

import subprocess

from apprentice.tasks.reporting.errors import Stop

LONGEST = 600
"""Characters of a message that a person still reads."""


def assert_clear(stop: Stop) -> None:
    """A stop is one line of cause and one of remedy, without a traceback."""
    cause, arrow, remedy = str(stop).partition("\n→ ")
    assert arrow, f"no remedy: {stop}"
    assert cause.strip(), f"no cause: {stop}"
    assert remedy.strip(), f"no remedy: {stop}"
    assert "\n" not in cause, f"the cause is more than one line: {stop}"
    assert "\n" not in remedy, f"the remedy is more than one line: {stop}"
    assert len(str(stop)) <= LONGEST, f"too long to read: {stop}"
    assert "Traceback" not in str(stop)


def assert_clear_exit(ended: "subprocess.CompletedProcess[str]", code: int = 1) -> None:
    """A command that stopped says why in its last two lines and shows no traceback.

    Args:
        ended: The whole command, run as a process with its output captured as text.
        code: 1 for an error, 130 for an interruption.
    """
    output = (ended.stdout or "") + (ended.stderr or "")
    assert "Traceback (most recent call last)" not in output, output
    assert ended.returncode == code, f"exit code {ended.returncode}\n{output}"
    assert output.strip(), "it ended without a word"
