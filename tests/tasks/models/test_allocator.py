"""Memory that a large tensor had is that of the next one, without a page from the kernel."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tasks.models.test_shared_prefix import written

PAGES = """
import resource
import sys
from pathlib import Path
import torch
from apprentice.tasks.players.local_model import LocalModel
from apprentice.tasks.players.protocols import Parity
from apprentice.tasks.settings.spec import EvaluateSpec

def taken():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.ones(2**24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = taken()
LocalModel(Path(sys.argv[1]), EvaluateSpec(), Parity(), seed=0)
taken()
print(first, taken())
"""
OF_A_TENSOR = 2**24 * 4 // 4096
"""Pages."""


@pytest.mark.skipif(sys.platform != "linux", reason="another C library allocates")
def test_a_process_in_which_a_checkpoint_answers_gets_the_memory_of_its_large_tensors_once(tmp_path: Path):
    loading = [sys.executable, "-c", PAGES, written(tmp_path)]
    done = subprocess.run(loading, capture_output=True, text=True, timeout=120)
    before, after = map(int, done.stdout.split())
    assert before > 3 * OF_A_TENSOR
    assert after < OF_A_TENSOR / 8
