"""A training is one of several processes only where the recipe says so."""

import os

import pytest

from apprentice.tasks.engine.processes import forget_launcher

SHELLS: dict[str, dict[str, str]] = {
    "torchrun": {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "x", "TORCHELASTIC_RUN_ID": "y"},
    "a pod of Kubeflow": {"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "23456"},
    "MPI": {"OMPI_COMM_WORLD_SIZE": "4", "PMI_SIZE": "4", "MV2_COMM_WORLD_RANK": "1"},
    "accelerate": {"ACCELERATE_MIXED_PRECISION": "fp16", "FSDP_VERSION": "2", "PARALLELISM_CONFIG_CP_SIZE": "2"},
}


@pytest.mark.parametrize("shell", SHELLS.values(), ids=SHELLS)
def test_what_a_launcher_left_in_the_shell_is_removed_and_said_once(
    shell: dict[str, str], monkeypatch: pytest.MonkeyPatch, capfd
):
    for name, value in shell.items():
        monkeypatch.setenv(name, value)
    forget_launcher()
    said = capfd.readouterr().out
    assert not shell.keys() & os.environ.keys()
    assert all(name in said for name in shell)
    forget_launcher()
    assert not capfd.readouterr().out


def test_what_chooses_devices_and_threads_is_left_to_the_shell(monkeypatch: pytest.MonkeyPatch):
    kept = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "NCCL_DEBUG": "INFO"}
    for name, value in kept.items():
        monkeypatch.setenv(name, value)
    forget_launcher()
    assert kept.items() <= os.environ.items()
