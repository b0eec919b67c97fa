"""What a run says must not end it."""

import subprocess
import sys
from pathlib import Path

from apprentice.tasks.reporting.announce import duration_text

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
