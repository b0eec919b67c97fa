"""Shards a training on the CPU, with FSDP2 or ZeRO-3, by private members of accelerate: a trial without GPUs."""

import os
from typing import Any


def shards_on_cpu(config: Any) -> bool:
    """Whether a configuration of accelerate (`ClusterConfig`) asks for FSDP2 or DeepSpeed on the CPU."""
    of_fsdp = config.fsdp_config or {}
    return bool(config.use_cpu and (config.deepspeed_config or of_fsdp.get("fsdp_version") == 2))


def shard_on_cpu() -> None:
    """Makes accelerate shard in this process if its configuration asks for it and it trains on the CPU: accelerate
    `AcceleratorState.__init__`, which considers FSDP and DeepSpeed for GPUs only."""
    if "true" not in (os.environ.get("ACCELERATE_USE_FSDP"), os.environ.get("ACCELERATE_USE_DEEPSPEED")):
        return
    from accelerate.state import AcceleratorState, DistributedType, PartialState

    begin = AcceleratorState.__init__

    def sharding(self: Any, *given: Any, fsdp_plugin: Any = None, deepspeed_plugin: Any = None, **named: Any) -> None:
        begin(self, *given, fsdp_plugin=fsdp_plugin, deepspeed_plugin=deepspeed_plugin, **named)
        if self.distributed_type != DistributedType.MULTI_CPU:
            return
        if deepspeed_plugin is not None:
            _use_deepspeed(self, deepspeed_plugin)
            self.distributed_type = DistributedType.DEEPSPEED
        else:
            if self.mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self.mixed_precision)
            self.fsdp_plugin = fsdp_plugin
            self.distributed_type = DistributedType.FSDP
        PartialState._shared_state["distributed_type"] = self.distributed_type

    AcceleratorState.__init__ = sharding


def _use_deepspeed(state: Any, plugin: Any) -> None:
    from deepspeed import comm  # type: ignore[import-not-found]

    comm.init_distributed(dist_backend=state.backend, auto_mpi_discovery=False)
    plugin.set_mixed_precision(state.mixed_precision)
    plugin.select(_from_accelerator_state=True)
    state._mixed_precision = "no"  # DeepSpeed does it
    state.deepspeed_plugins = plugin
