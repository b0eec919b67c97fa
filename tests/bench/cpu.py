"""What makes a training faster on this CPU, and what does not: bf16, the optimizer, threads, torch.compile.

In: nothing. Out: a table of seconds, then one line of JSON. Takes about three minutes on idle cores. A model of
SmolLM2-135M's shape with random weights: AdamW's update of all weights, the passes of SFT over 16 rows of 64 tokens,
and one token of 64 completions after 256 others. The quickest of several passes counts, without the first one.
"""

import json
import os
import time
from collections.abc import Callable
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

from tests.bench.step import SMOLLM2

PASSES = 3
ROWS, TOKENS = 16, 64
COMPLETIONS, BEFORE = 64, 256


def best(run: Callable[[], object], passes: int = PASSES) -> float:
    times = []
    for _ in range(passes + 1):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times[1:])


def student() -> Any:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    shape: Any = SMOLLM2
    return Qwen3ForCausalLM(Qwen3Config(**shape, tie_word_embeddings=True))


def update(model: Any, **kind: Any) -> float:
    """Seconds of AdamW's update."""
    import torch

    for each in model.parameters():
        each.grad = torch.full_like(each, 1e-3)
    seconds = best(torch.optim.AdamW(model.parameters(), lr=0.0, **kind).step)
    model.zero_grad()
    return seconds


def passes(model: Any, bf16: bool) -> float:
    """Seconds of the forward and the backward pass."""
    import torch

    ids = torch.randint(0, SMOLLM2["vocab_size"], (ROWS, TOKENS))

    def run() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        model.zero_grad()

    return best(run)


def token(model: Any, forward: Any) -> tuple[float, float]:
    """Seconds until the first token is there, and of a further one; each has the same keys before it."""
    import torch
    from transformers.cache_utils import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=BEFORE + 8)
    with torch.inference_mode():
        ids = torch.randint(0, SMOLLM2["vocab_size"], (COMPLETIONS, BEFORE))
        model(input_ids=ids, past_key_values=cache, logits_to_keep=1)

        def run() -> None:
            place = torch.full((COMPLETIONS, 1), BEFORE)
            forward(input_ids=ids[:, :1], position_ids=place, past_key_values=cache)

        began = time.perf_counter()
        run()
        return time.perf_counter() - began, best(run)


def main() -> None:
    import torch

    from apprentice.tasks.models.memory import in_bf16

    cores, model = torch.get_num_threads(), student()
    rows: dict[str, float] = {}
    for name, kind in (("loop", {"foreach": False}), ("foreach", {"foreach": True}), ("fused", {"fused": True})):
        rows[f"AdamW, {name}"] = update(model, **kind)
    for threads in sorted({1, cores, 2 * cores}):
        torch.set_num_threads(threads)
        for name, bf16 in (("fp32", False), ("bf16", True)):
            rows[f"passes, {name}, {threads} threads"] = passes(model, bf16)
    torch.set_num_threads(cores)
    with in_bf16(model):
        rows["a token"] = token(model, model)[1]
        rows["a token, compiled: the first"], rows["a token, compiled"] = token(model, torch.compile(model))
    for name, seconds in rows.items():
        print(f"| {name} | {seconds:.3f} |")
    print(json.dumps({"cores": cores, "rows": {name: round(seconds, 4) for name, seconds in rows.items()}}))


if __name__ == "__main__":
    main()
