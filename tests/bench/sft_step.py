"""What an SFT step gains by computing once what its rows begin with: TRL's trainer with and without, taking turns.

In: nothing. Out: a table, then one line of JSON; the exit code is 1 where a gradient differs from TRL's. Takes some ten
minutes on two idle cores. A step is forward and backward pass of 16 rows; the best of two counts. Peak memory is what a
process of its own takes for one step beyond what it had when the model was there. Random weights: the
laptop recipe's student, and SmolLM2-135M's shape. Rows have a tenth of their tokens with loss, after the beginning that
all share, and a closing turn without. Gradients are compared with TRL's in fp32, relative to its length.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false"}

from apprentice.tasks.episodes.rendering import IGNORED
from apprentice.tasks.training.shared_prompts import sharing_rows

ROWS, ROUNDS = 16, 2
EXACT = 1e-5
"""A gradient in fp32 that differs by more, relative to TRL's, is another one."""


class Case(NamedTuple):
    name: str
    model: dict[str, Any]
    length: int
    """Tokens of the longest row."""
    shared: int
    """Tokens that all rows begin with."""


LAPTOP = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
LAPTOP |= {"num_key_value_heads": 4, "vocab_size": 288}
SMOLLM2 = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
SMOLLM2 |= {"num_key_value_heads": 3, "vocab_size": 49_152}
CASES = [
    Case("laptop's student", LAPTOP, 48, 33),
    Case("laptop's student", LAPTOP, 319, 256),
    Case("SmolLM2-135M's shape", SMOLLM2, 319, 256),
    Case("SmolLM2-135M's shape", SMOLLM2, 319, 64),
]


def batch(case: Case) -> dict[str, Any]:
    """Rows of slightly different lengths, padded on the right as TRL pads them."""
    import torch

    torch.manual_seed(0)
    ids = torch.randint(5, case.model["vocab_size"], (ROWS, case.length))
    ids[:, : case.shared] = ids[0, : case.shared]
    lengths = case.length - torch.arange(ROWS) % 4
    mask = (torch.arange(case.length) < lengths[:, None]).long()
    end = case.length - (case.length - case.shared) // 3
    labels = torch.full_like(ids, IGNORED)
    begin = end - max(case.length // 10, 4)
    labels[:, begin:end] = ids[:, begin:end]
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class Side:
    def __init__(self, case: Case, share: bool, bf16: bool, folder: str):
        import torch
        from datasets import Dataset
        from transformers import LlamaConfig, LlamaForCausalLM
        from trl import SFTConfig, SFTTrainer

        from apprentice.tasks.models.tokenizer import byte_level

        torch.manual_seed(0)
        row = {"input_ids": [5, 6, 7], "labels": [5, 6, 7]}
        trainer: Any = sharing_rows(SFTTrainer) if share else SFTTrainer
        self.trainer = trainer(
            model=LlamaForCausalLM(LlamaConfig(**case.model, tie_word_embeddings=True)),
            processing_class=byte_level("<|im_end|>", "<|endoftext|>"),
            train_dataset=Dataset.from_list([row]),
            args=SFTConfig(
                folder, report_to="none", use_cpu=True, bf16=False, activation_checkpointing=False, disable_tqdm=True
            ),
        )
        self.trainer.model.train()
        self.bf16 = bf16

    def step(self, inputs: dict[str, Any]) -> tuple[float, Any]:
        """Seconds of forward and backward pass, and the gradient."""
        import torch

        trainer = self.trainer
        trainer.model.zero_grad()
        began = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):  # as accelerate does around a prepared model
            loss = trainer.compute_loss(trainer.model, dict(inputs))
        loss.backward()
        took = time.perf_counter() - began
        return took, torch.cat([each.grad.flatten() for each in trainer.model.parameters() if each.grad is not None])


SIDES = {"trl": (False, False), "shared": (True, False), "shared_bf16": (True, True)}
"""By name: whether rows are shared, and whether in bf16."""


def peak(case: int, side: str) -> float:
    """Bytes that a step takes at most, the gradients included; measured in a process that has made no other."""
    share, bf16 = SIDES[side]
    with tempfile.TemporaryDirectory() as folder:
        own = Side(CASES[case], share=share, bf16=bf16, folder=folder)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew (man proc)
        before = _memory("VmRSS")
        own.step(batch(CASES[case]))
    return _memory("VmHWM") - before


def _memory(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * float(next(line.split()[1] for line in lines if line.startswith(name)))


def peaks(case: Case) -> dict[str, float]:
    found = {}
    for side in SIDES:
        command = [sys.executable, "-m", "tests.bench.sft_step", "--peak", str(CASES.index(case)), side]
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        found[side] = float(said.split()[-1])
    return found


def measured(case: Case, most: dict[str, float]) -> dict[str, Any]:
    inputs = batch(case)
    with tempfile.TemporaryDirectory() as folder:
        sides = {name: Side(case, share, bf16, folder) for name, (share, bf16) in SIDES.items()}
        taken: dict[str, list[tuple[float, Any]]] = {name: [] for name in sides}
        for _ in range(ROUNDS):
            for name, side in sides.items():
                taken[name].append(side.step(inputs))
    right = taken["trl"][0][1]
    row: dict[str, Any] = {"name": case.name, "rows": ROWS, "length": case.length, "in_common": case.shared}
    for name, steps in taken.items():
        off = float((steps[0][1] - right).norm() / right.norm())
        row[name] = {"step_s": round(min(took for took, _ in steps), 3), "gradient_off": off, "peak_bytes": most[name]}
    row |= {f"ratio_{name}": round(row["trl"]["step_s"] / row[name]["step_s"], 2) for name in ("shared", "shared_bf16")}
    print(row, file=sys.stderr, flush=True)
    return row


def main() -> None:
    if sys.argv[1:2] == ["--peak"]:
        print(peak(int(sys.argv[2]), sys.argv[3]))
        return
    most = [peaks(case) for case in CASES]  # before models fill this process
    rows = [measured(case, each) for case, each in zip(CASES, most, strict=True)]
    print(
        "| student | tokens a row, shared | TRL, s a step | shared | shared, bf16 | peak memory, GB |\n|" + " --- |" * 6
    )
    for row in rows:
        took = [f"{row[name]['step_s']:.3g} ({row[f'ratio_{name}']:.1f}×)" for name in ("shared", "shared_bf16")]
        tokens = f"{row['length']}, {row['in_common']}"
        memory = ", ".join(f"{row[name]['peak_bytes'] / 1e9:.2g}" for name in SIDES)
        print("| " + " | ".join([row["name"], tokens, f"{row['trl']['step_s']:.3g}", *took, memory]) + " |")
    print(json.dumps({"rows": rows}))
    sys.exit(any(row["shared"]["gradient_off"] > EXACT for row in rows))


if __name__ == "__main__":
    main()
