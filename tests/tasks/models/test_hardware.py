"""What a training lacks is said before anything is loaded, with the way out."""

import sys
from types import ModuleType
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.grpo import grpo
from apprentice.tasks.models.memory import Machine, check_training, this_machine
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.grpo_settings import GrpoSpec
from apprentice.tasks.settings.sft_settings import SftSpec
from apprentice.tasks.settings.training import LoraSpec
from apprentice.tasks.sft import sft

LAPTOP = Machine(gpus=0, processes=1, notebook=False)
WORKSTATION = Machine(gpus=1, processes=1, notebook=False)
QLORA = SftSpec(lora=LoraSpec(quantized=True))


def test_lora_without_peft_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    check_training(SftSpec(lora=LoraSpec()), LAPTOP)
    monkeypatch.setitem(sys.modules, "peft", None)  # as Python has it for a package that cannot be imported
    with pytest.raises(Stop, match=r"sft.lora needs peft, .*\n→ .*pip install 'openenv-apprentice\[lora\]'"):
        check_training(SftSpec(lora=LoraSpec()), LAPTOP)
    check_training(SftSpec(), LAPTOP)


def test_qlora_needs_a_gpu_and_then_bitsandbytes(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(Stop, match=r"sft.lora.quantized needs an NVIDIA GPU.*\n→ Set sft.lora.quantized: false"):
        check_training(QLORA, LAPTOP)
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(Stop, match=r"needs bitsandbytes, .*\n→ .*pip install 'openenv-apprentice\[qlora\]'"):
        check_training(QLORA, WORKSTATION)


def test_liger_needs_a_gpu_and_its_package(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(Stop, match=r"grpo.liger needs an NVIDIA GPU"):
        check_training(GrpoSpec(liger=True), LAPTOP)
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    with pytest.raises(Stop, match=r"needs liger-kernel, .*\n→ .*pip install 'openenv-apprentice\[liger\]'"):
        check_training(GrpoSpec(liger=True), WORKSTATION)


def test_a_notebook_is_known_by_its_shell(monkeypatch: pytest.MonkeyPatch):
    assert not this_machine().notebook
    imported: Any = ModuleType("IPython")
    imported.get_ipython = lambda: None
    monkeypatch.setitem(sys.modules, "IPython", imported)
    assert not this_machine().notebook, "imported by a library, in a script"
    imported.get_ipython = lambda: object()
    assert this_machine().notebook


def test_the_stages_look_before_they_load(
    context: StageContext, chain_sum: EnvironmentSpec, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "peft", None)
    nothing: Any = None
    with pytest.raises(Stop, match=r"sft.lora needs peft"):
        sft.body(context, SftSpec(lora=LoraSpec()), nothing, nothing, nothing, 0)
    with pytest.raises(Stop, match=r"grpo.lora needs peft"):
        grpo.body(context, GrpoSpec(lora=LoraSpec()), nothing, chain_sum, nothing, 0)
