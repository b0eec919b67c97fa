"""A small training as a process of its own: `python -m tests.tasks.logging_training FOLDER [SPACE]`.

In: HF_ENDPOINT, which is read when the client is imported; a Space that the training is to log to. Out:
FOLDER/artifacts/trackio; a last line with the number of steps that were done.
"""

import sys
from pathlib import Path

import huggingface_hub.constants  # before the tests' own settings, which are offline

from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.settings.sft_settings import SftSpec
from apprentice.tasks.settings.trackers import TrackioSpec
from apprentice.tasks.training.trainer import arguments, train
from tests.conftest import TASKS
from tests.tasks.test_one_prompt import tiny_model
from tests.tokenizers import build_tokenizer


def main(folder: Path, space: str | None = None) -> None:
    assert not (space and huggingface_hub.constants.HF_HUB_OFFLINE)
    store = LocalStore(folder / "artifacts", project="toy")
    work = RunContext(store, StandingServers({}, None), trackio=TrackioSpec(space_id=space))
    from datasets import Dataset
    from trl import GRPOTrainer, SFTConfig, SFTTrainer

    assert GRPOTrainer  # imports Trackio, as it does where GRPO is the only stage that is left
    context = StageContext(work, "0" * 20, folder / "out", folder / "scratch")
    tokenizer = build_tokenizer(TASKS["chain_sum"], ["1 + 1 =", "2 + 2 ="])
    rows = [{"messages": [{"role": "user", "content": f"{n} + 1 ="}]} for n in range(8)]
    spec = SftSpec(batch_size=4, gradient_accumulation=1, logging_steps=2, checkpoint_steps=2)
    trainer = SFTTrainer(
        model=tiny_model(tokenizer),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows),
        args=SFTConfig(**arguments(context, spec, 0), num_train_epochs=2, max_length=64),
    )
    train(context, "SFT steps", trainer, 4)
    print(trainer.state.global_step)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
