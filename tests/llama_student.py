"""A small untrained Llama with a tokenizer that has merges, in a folder of transformers: what llama.cpp can read.

`build` students have a tokenizer of single bytes, which llama.cpp's format does not take.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

TEMPLATE = "qwen3"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEXT = """You are given a text. Say exactly that text again, by calling the tool `echo` once. {"type": "function",
"function": {"name": "echo", "description": "Says the text.", "parameters": {"type": "object", "properties": {"text":
{"type": "string", "description": "The text."}}, "required": ["text"]}}} You may call one or more functions to assist
with the user query. You are provided with function signatures within <tools></tools> XML tags: For each function call,
return a json object with function name and arguments within <tool_call></tool_call> XML tags: {"name": <function-name>,
"arguments": <args-json-object>} system user assistant # Tools Done."""


def write_llama(
    folder: Path, hidden: int = 128, layers: int = 2, positions: int = 512, spans: Sequence[str] = ()
) -> Path:
    """Writes the model; returns its folder.

    Args:
        spans: Texts that are one token each, so that a short training learns what matters.
    """
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=[*SPECIAL], initial_alphabet=alphabet)
    core.train_from_iterator([TEXT], trainer)
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
    )
    tokenizer.add_tokens([AddedToken(each, normalized=False) for each in spans])
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    tokenizer.save_pretrained(folder)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def spans_of(environment: Any, seeds: range) -> list[str]:
    """The fixed texts of an environment's episodes in the student's template."""
    from apprentice.tasks.models.tokenizer import prepare_tokenizer, template_spans
    from tests.students_page import templates, toy_tokenizer

    tokenizer = prepare_tokenizer(toy_tokenizer(templates()[TEMPLATE]))
    return template_spans(tokenizer, [(environment.make(), [f"{seed}" for seed in seeds])])
