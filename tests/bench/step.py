"""What a GRPO step gains by computing once what its prompts share: TRL's trainer with and without, taking turns.

In: nothing. Out: a table, then one line of JSON; the exit code is 1 where a completion differs. Takes about ten minutes
on two idle cores. A step is generation, forward and backward pass and the optimizer; the reward is the number of
different letters, so that no environment takes part. Models with random weights: the laptop recipe's student, one of
Qwen3-0.6B's shape with a seventh of its layers and all of its vocabulary, and SmolLM2-135M's shape. Prompts differ in
their last characters only, as those that begin with the same instructions and tools. `shared` is the time of a step
with `share_prompts`, `shared_bf16` that in bf16, `trl` that without either; the median of the steps after the first
counts, or the only one. What generation and loss (with the backward pass) leave of a step is the optimizer's.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from typing import Any, NamedTuple

os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false"}

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.rollouts.generation import with_engine
from apprentice.tasks.settings.generation_engine import GenerationSpec
from apprentice.tasks.training.shared_prompts import sharing_prompts
from tests.tokenizers import build_tokenizer

TASK = EnvironmentSpec(name="reasoning_gym", settings={"dataset": "spell_backward", "config": {}})
GROUP = 8


class Case(NamedTuple):
    name: str
    model: dict[str, Any]
    rollouts: int
    prompt: int
    """Tokens that all prompts begin with, about."""
    new: int
    """Tokens of a completion."""
    steps: int
    at_once: int = 0
    """Rollouts of a pass of plain TRL, where all of a step are too many for 24 GB; 0 for all."""


LAPTOP = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
LAPTOP |= {"num_key_value_heads": 4, "head_dim": 16}
QWEN = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 4, "num_attention_heads": 16}
QWEN |= {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936}
SMOLLM2 = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
SMOLLM2 |= {"num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49_152}
CASES = [
    Case("laptop's student", LAPTOP, 256, 12, 16, steps=20),
    Case("laptop's student", LAPTOP, 256, 290, 16, steps=6),
    Case("Qwen3-0.6B's shape, 4 layers", QWEN, 8, 290, 32, steps=3),
    Case("Qwen3-0.6B's shape, 4 layers", QWEN, 8, 290, 128, steps=3),
    Case("SmolLM2-135M's shape", SMOLLM2, 32, 290, 32, steps=1, at_once=8),
]
SIDES = ("trl", "shared", "shared_bf16")


def letters(completions: list[Any], **_: Any) -> list[float]:
    return [float(len(set(each[0]["content"]))) for each in completions]


class Side:
    """One training, step by step."""

    def __init__(self, case: Case, share: bool, bf16: bool, folder: str):
        import torch
        from datasets import Dataset
        from transformers import PrinterCallback, Qwen3Config, Qwen3ForCausalLM
        from trl.trainer.grpo_config import GRPOConfig
        from trl.trainer.grpo_trainer import GRPOTrainer

        self.said: list[list[int]] = []
        self.generating = self.training = 0.0
        side = self

        class Noting(GRPOTrainer):
            def _generate(self, prompts: Any) -> Any:
                began = time.perf_counter()
                generated = super()._generate(prompts)
                side.generating += time.perf_counter() - began
                side.said.extend(generated[1])
                return generated

            def training_step(self, *given: Any, **named: Any) -> Any:
                began = time.perf_counter()
                loss = super().training_step(*given, **named)
                side.training += time.perf_counter() - began
                return loss

        tokenizer = build_tokenizer(TASK, ["one", "two"])
        torch.manual_seed(0)
        ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
        config = Qwen3Config(**{"vocab_size": len(tokenizer), "tie_word_embeddings": True} | case.model | ends)
        batch = case.rollouts if share else case.at_once or case.rollouts
        questions = case.rollouts // GROUP * (case.steps + 1)
        beginning = ("These are the instructions, and these are the tools. " * 6)[: case.prompt]
        rows = [{"prompt": [{"role": "user", "content": f"{beginning}{n:05}"}]} for n in range(questions)]
        shared = sharing_prompts(Noting, generates=True, fast=False) if share else Noting
        self.trainer = with_engine(shared, GenerationSpec(), bf16)(
            model=Qwen3ForCausalLM(config),
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(rows),
            reward_funcs=[letters],
            args=GRPOConfig(
                folder,
                report_to="none",
                use_cpu=True,
                bf16=bf16,
                activation_checkpointing=False,
                max_steps=1,
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                learning_rate=1e-6,
                per_device_train_batch_size=batch,
                gradient_accumulation_steps=case.rollouts // batch,
                num_generations=GROUP,
                max_completion_length=case.new,
                generation_kwargs={"min_new_tokens": case.new},
            ),
        )

        self.trainer.remove_callback(PrinterCallback)

    def step(self) -> tuple[float, float, float]:
        """Seconds of a step, of its generation, and of its loss with the backward pass."""
        from transformers import set_seed

        set_seed(len(self.said))
        self.generating = self.training = 0.0
        began = time.perf_counter()
        self.trainer.train()
        return time.perf_counter() - began, self.generating, self.training - self.generating


def measured(case: Case) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        sides = {name: Side(case, name != "trl", name == "shared_bf16", folder) for name in SIDES}
        taken: dict[str, list[tuple[float, float, float]]] = {name: [] for name in sides}
        for _ in range(case.steps):
            for name, side in sides.items():
                taken[name].append(side.step())
    said = [sides[name].said for name in ("trl", "shared")]
    row: dict[str, Any] = {"name": case.name, "rollouts": case.rollouts, "prompt": case.prompt, "new": case.new}
    row["same_completions"] = sum(map(list.__eq__, *said)) / len(said[0])
    for name, seconds in taken.items():
        whole, generating, loss = (statistics.median(each) for each in zip(*(seconds[1:] or seconds), strict=True))
        row[name] = {"step_s": round(whole, 3), "generation_s": round(generating, 3), "loss_s": round(loss, 3)}
    for name in SIDES[1:]:
        row[f"ratio_{name}"] = round(row["trl"]["step_s"] / row[name]["step_s"], 2)
    print(row, file=sys.stderr, flush=True)
    return row


def main() -> None:
    rows = [measured(case) for case in CASES]
    print(
        "| student | rollouts | prompt, completion | TRL, s a step (generation, loss) | shared | shared, bf16 |\n|"
        + " --- |" * 6
    )
    for row in rows:
        took = [
            f"{row[name]['step_s']:.2f} ({row[name]['generation_s']:.2f}, {row[name]['loss_s']:.2f})" for name in SIDES
        ]
        took[1:] = [f"{each}: {row[f'ratio_{name}']:.1f}×" for name, each in zip(SIDES[1:], took[1:], strict=True)]
        lengths = f"{row['prompt']}, {row['new']} tokens"
        print("| " + " | ".join([row["name"], str(row["rollouts"]), lengths, *took]) + " |")
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
