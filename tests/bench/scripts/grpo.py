"""TRL's GRPOTrainer in the environment."""

from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.files.question_lists import TrainedQuestions
from apprentice.tasks.rollouts.live_rollouts import LiveRollouts
from apprentice.tasks.rollouts.question_rows import row_of
from apprentice.tasks.rollouts.rewards import EnvironmentReward
from apprentice.tasks.rollouts.rollout_modes import ROLLOUT_MODES
from tests.bench.scripts.given import Given, Row


def main(given: Given) -> None:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, set_seed
    from trl import GRPOConfig

    spec, instance = given.recipe.grpo, given.recipe.environment.make()
    assert spec
    set_seed(given.recipe.seed)
    with given.pool(spec.batch_size * spec.gradient_accumulation) as pool, LiveRollouts(pool) as rollouts:
        pool.open_all()
        trainer_class, way = ROLLOUT_MODES[spec.rollouts](instance, rollouts)
        trainer = trainer_class(
            model=AutoModelForCausalLM.from_pretrained(given.folder / "sft", dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(given.folder / "sft"),
            train_dataset=Dataset.from_list(
                [row_of(spec.rollouts, instance, row["seed"], row["question"]) for row in shuffled(given)]
            ),
            reward_funcs=EnvironmentReward(spec, TrainedQuestions(given.folder / "asked.jsonl"), rollouts),
            args=GRPOConfig(
                **given.trainer_arguments("grpo"),
                max_steps=spec.max_steps,
                shuffle_dataset=False,
                num_generations=spec.num_generations,
                max_completion_length=spec.max_completion_length,
                max_grad_norm=spec.max_grad_norm,
                temperature=spec.temperature,
                beta=spec.beta,
                chat_template_kwargs=TEMPLATE_ARGUMENTS,
            ),
            **way,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    given.write("grpo-log.jsonl", trainer.state.log_history)
    trainer.save_model(str(given.folder / "grpo"))


def shuffled(given: Given) -> list[Row]:
    """The questions in a new order for each pass."""
    import torch

    spec, rows, order = given.recipe.grpo, given.read("grpo.jsonl"), []
    assert spec
    generator = torch.Generator().manual_seed(given.recipe.seed)
    while len(order) < spec.max_steps * spec.batch_size * spec.gradient_accumulation // spec.num_generations:
        order += torch.randperm(len(rows), generator=generator).tolist()
    return [rows[place] for place in order]
