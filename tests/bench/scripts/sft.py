"""TRL's SFTTrainer on the kept rollouts."""

import json
from typing import Any

from apprentice.tasks.episodes.rendering import training_row
from apprentice.tasks.sft import training_dataset
from tests.bench.scripts.given import Given


def main(given: Given) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback, set_seed
    from trl import SFTConfig, SFTTrainer

    spec = given.recipe.sft
    assert spec

    class Enough(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            accuracy = (logs or {}).get("mean_token_accuracy", 0.0)
            control.should_training_stop |= accuracy >= (spec.stop_at_token_accuracy or 2.0)

    set_seed(given.recipe.seed)
    tokenizer = AutoTokenizer.from_pretrained(given.folder / "base")
    kept = given.read("kept.jsonl")[: spec.max_rows]
    rows = [training_row(row["messages"], json.loads(row["tools"])) for row in kept]
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(given.folder / "base", dtype=torch.float32),
        processing_class=tokenizer,
        train_dataset=training_dataset(tokenizer, rows),
        callbacks=[Enough()],
        args=SFTConfig(
            **given.trainer_arguments("sft"),
            num_train_epochs=spec.epochs,
            max_length=given.read("lengths.jsonl")[0]["max_length"],
        ),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    given.write("sft-log.jsonl", trainer.state.log_history)
    trainer.save_model(str(given.folder / "sft"))
