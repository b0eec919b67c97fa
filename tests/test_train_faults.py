"""The judge of `make faults NAME=train` sees what it judges by."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.digests import digest_of_some
from tests.faults.train import Run


def test_two_runs_without_weights_are_not_alike(tmp_path: Path):
    with pytest.raises(SystemExit, match="nothing to compare"):
        digest_of_some(tmp_path, "*.safetensors")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert digest_of_some(tmp_path, "*.safetensors")


def test_a_torn_checkpoint_that_is_written_again_is_seen_as_begun(tmp_path: Path):
    run = Run(tmp_path / "run")
    checkpoint = run.folder / "artifacts" / ".scratch" / "sft" / "checkpoint-5"
    checkpoint.mkdir(parents=True)
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(b"half")
    torn = run.started_checkpoints()
    assert not run.started_checkpoints() - torn
    while weights.stat().st_mtime_ns <= max(at for _, at in torn):
        weights.write_bytes(b"anew")
    [(path, _)] = run.started_checkpoints() - torn
    assert path == str(checkpoint)


@pytest.mark.long
def test_only_a_run_that_was_at_work_counts_as_killed(tmp_path: Path):
    run = Run(tmp_path / "run")
    ended = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.DEVNULL)
    while psutil.Process(ended.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    run.kill(ended)
    assert run.kills == 0
    run.kill(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.DEVNULL))
    assert run.kills == 1
