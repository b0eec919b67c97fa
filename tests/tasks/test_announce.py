"""What a run says must not end it."""

import subprocess
import sys

from apprentice.tasks.announce import in_words

SPEAKS = """
import sys
from apprentice.tasks import announce
announce.warn("one")
sys.stdin.readline()
for _ in range(3):
    announce.warn("x" * 100_000)
    announce.say("# said")
print("went on", file=sys.stderr)
"""


def test_a_run_goes_on_when_whoever_read_its_output_is_gone():
    run = subprocess.Popen(
        [sys.executable, "-c", SPEAKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stdin is not None
    assert run.stdout is not None
    assert run.stderr is not None
    assert "one" in run.stdout.readline()
    run.stdout.close()
    run.stdin.write("\n")
    run.stdin.flush()
    assert "went on" in run.stderr.read()
    run.wait()


def test_a_duration_is_told_as_a_person_would():
    assert [in_words(seconds) for seconds in (0.2, 45, 200, 9000)] == [
        *("about 1 s", "about 45 s", "about 3 min", "about 2.5 h")
    ]
