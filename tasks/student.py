"""The student before training: an existing model (student_model.py), or a small Qwen3 built here from a seed.

In: the recipe's student settings, the task's prompt, the questions. Out: `BaseStudent`.
The built student has its own tokenizer: a model of a million weights has no capacity to spare for copying the prompt.
Letters and digits are single tokens; every text span that is the same in all episodes is one token.
"""

from pathlib import Path
from typing import Any

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.artifacts.types import BaseStudent, Questions
from apprentice.tasks.engine.stage import StageContext, stage
from apprentice.tasks.episodes.questions import read_questions
from apprentice.tasks.models.checkpoints import save
from apprentice.tasks.models.pretraining import pretrain
from apprentice.tasks.models.student_model import from_model
from apprentice.tasks.models.tokenizer import tokenizer_of
from apprentice.tasks.settings.stages import BuiltStudent, StudentSpec


@stage(produces=BaseStudent, version=4, title="Student")
def student(
    context: StageContext, spec: StudentSpec, environment: EnvironmentSpec, questions: Questions, seed: int
) -> dict[str, Any]:
    """Publishes the model and a tokenizer prepared for training."""
    if spec.build is not None:
        rows = read_questions(context.fetch(questions), "collect")
        parameters = _build(spec.build, _by_part(environment.make(), rows), seed, context.out)
    else:
        parameters = from_model(spec, context.out)
    return {"parameters": parameters, "stage": "base"}


def _by_part(instance: ToolEnvironment, rows: list[dict[str, Any]]) -> list[tuple[ToolEnvironment, list[str]]]:
    return [
        (part, [row["question"] for row in rows if instance._part(row["seed"]) is part]) for part in instance._parts()
    ]


def _build(spec: BuiltStudent, asked: list[tuple[ToolEnvironment, list[str]]], seed: int, out: Path) -> int:
    tokenizer = tokenizer_of(asked)
    return save(built_model(spec, tokenizer, seed), tokenizer, out)["parameters"]


def built_model(spec: BuiltStudent, tokenizer: Any, seed: int) -> Any:
    """A Qwen3 of these sizes with seeded random weights, pretrained where the settings say so."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.heads,
        head_dim=spec.hidden_size // spec.heads,
        max_position_embeddings=spec.max_positions,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=spec.initializer_range,
        rope_parameters={"rope_type": "default", "rope_theta": spec.rope_theta},
    )
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    if spec.pretraining_steps:
        pretrain(model, tokenizer, spec.pretraining_steps, seed)
    return model
