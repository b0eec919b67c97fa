"""A student with random weights of Qwen3's shape, or a pretrained one from a folder, and what it trains on.

In: a size, the environment's server. Out: model, tokenizer, played episodes, questions; nothing is downloaded.
Without a folder the tokenizer is the project's built one, but that its tokens are words, not whole stretches: so a
prompt is about as long as in Qwen3's own tokens. What the model writes is mostly no token of it, and is read as
nothing.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from apprentice.envs.player import Player
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.reasoning_gym import env
from apprentice.tasks.episodes.episode import Episode
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS, training_row
from apprentice.tasks.models.tokenizer import load_tokenizer, prepared, trl_template
from tests.bench.gpu_settings import TASK, Size
from tests.tokenizers import build_tokenizer

MARKS = ("<|im_start|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""What Qwen3's tokenizer has as one token each."""
WORDS = 2_000
TEMPLATE = "qwen2_5"
"""TRL's chat template of a pretrained model, as in the recipe smollm2-addition: its own shows no tools."""


def played(pool: EnvironmentPool, seeds: Iterable[int]) -> list[Episode]:
    """An episode a seed, by the scripted policy, in the order of the seeds."""

    def play(player: Player, seed: int) -> Episode:
        episode = Episode(player, seed)
        name, arguments = env.call(TASK.settings, episode.messages, 0.0)
        call = {"type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        episode.step({"role": "assistant", "content": "", "tool_calls": [call]})
        return episode

    return [episode for _, episode in sorted(pool.map(play, seeds), key=lambda pair: pair[0])]


def rows_of(episodes: list[Episode]) -> list[dict[str, Any]]:
    """What SFT trains on."""
    return [training_row(episode.messages, episode.tools) for episode in episodes]


def pretrained(size: Size) -> Path | None:
    """The folder of the student's own weights, if there is one."""
    return size.folder if size.folder is not None and size.folder.is_dir() else None


def tokenizer_of(rows: list[dict[str, Any]], questions: list[str], size: Size) -> Any:
    """Its ids are all within the model's vocabulary."""
    from tokenizers import AddedToken, pre_tokenizers

    if folder := pretrained(size):
        own = load_tokenizer(folder)
        own.chat_template = trl_template(TEMPLATE, own)
        return prepared(own, folder.name)

    built = build_tokenizer(TASK, questions)
    built.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    texts = [
        built.apply_chat_template(row["messages"], tools=json.loads(row["tools"]), tokenize=False, **TEMPLATE_ARGUMENTS)
        for row in rows
    ]
    tokenizer = built.train_new_from_iterator([texts], vocab_size=WORDS - len(MARKS), show_progress=False)
    tokenizer.chat_template, tokenizer.response_template = built.chat_template, built.response_template
    marks: Any = [AddedToken(mark, normalized=False) for mark in MARKS]
    tokenizer.add_tokens(marks)
    assert len(tokenizer) <= min(WORDS, size.shape.vocabulary)
    return tokenizer


def model_of(size: Size, tokenizer: Any, attention: str) -> Any:
    """Made on the device where it is trained, in fp32: where the optimizer steps, bf16 weights do not move."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    device, shape = "cuda" if torch.cuda.is_available() else "cpu", size.shape
    if folder := pretrained(size):
        read: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention)
        return read.to(device)
    config = Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.positions,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention)
