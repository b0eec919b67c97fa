"""FSDP2 without GPUs: a trial of a sharded training on the CPU, before a GPU is paid for.

In: the environment of a process that `accelerate launch` started. Out: an accelerate that shards there. accelerate 1.15
ignores FSDP without GPUs and trains with the whole model in each process.
"""

import os
from typing import Any


def shards_on_cpu(config: Any) -> bool:
    """Whether a configuration of accelerate (`ClusterConfig`) asks for FSDP2 on the CPU."""
    return bool(config.use_cpu) and (config.fsdp_config or {}).get("fsdp_version") == 2


def shard_on_cpu() -> None:
    """Makes accelerate shard in this process if its configuration asks for FSDP and it trains on the CPU: accelerate
    `AcceleratorState.__init__`, which considers FSDP for GPUs only."""
    if os.environ.get("ACCELERATE_USE_FSDP") != "true":
        return
    from accelerate.state import AcceleratorState, DistributedType, PartialState

    begin = AcceleratorState.__init__

    def sharding(self: Any, *given: Any, fsdp_plugin: Any = None, **named: Any) -> None:
        begin(self, *given, fsdp_plugin=fsdp_plugin, **named)
        if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            if self.mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self.mixed_precision)
            self.fsdp_plugin = fsdp_plugin
            self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = sharding
