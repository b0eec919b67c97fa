"""Tokenizers: the one of a built student, and how any is prepared and loaded.

In: rendered episodes to build from, or a checkpoint. Out: a tokenizer whose chat template is safe to train on.
"""

import os
from pathlib import Path
from typing import Any

from apprentice.envs.base import ToolEnvironment, tool_schemas
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.artifacts.trust import (
    Trusted,
    readable,
    runs_code,
)
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.rendering import CLOSING, TEMPLATE_ARGUMENTS


def build_tokenizer(environment: EnvironmentSpec, texts: list[str]) -> Any:
    """As `tokenizer_of`, for one environment and its questions."""
    return tokenizer_of([(environment.make(), texts)])


def tokenizer_of(asked: list[tuple[ToolEnvironment, list[str]]]) -> Any:
    """Bytes without merges, the chat template of Qwen3, and each fixed stretch of an episode as one added token.

    `asked`: the questions of each environment.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from trl.chat_template_utils import qwen3_chat_template

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
    )
    tokenizer.chat_template = qwen3_chat_template
    prepare_tokenizer(tokenizer)
    stretches: Any = [AddedToken(text, normalized=False) for text in template_spans(tokenizer, asked)]
    tokenizer.add_tokens(stretches)
    return tokenizer


def template_spans(tokenizer: Any, asked: list[tuple[ToolEnvironment, list[str]]]) -> list[str]:
    """What stands in every episode: read off a rendered prompt, the tools, the questions' common beginning and end."""
    stretches = ["<|im_start|>assistant\n", CLOSING["content"], ", "]
    stretches += ["<|im_start|>user\n<tool_response>\n", "\n</tool_response>"]
    for environment, texts in asked:
        stretches += _stretches_of(tokenizer, environment, texts)
    return list(dict.fromkeys(stretches))


def _stretches_of(tokenizer: Any, environment: ToolEnvironment, texts: list[str]) -> list[str]:
    tools = tool_schemas(environment)
    mark = "\0"
    rendered = tokenizer.apply_chat_template(
        prompt(environment, mark), tools=tools, tokenize=False, add_generation_prompt=True, **TEMPLATE_ARGUMENTS
    )
    before, after = rendered.split(mark)
    begin = os.path.commonprefix(texts)  # noqa: RUF071 (characters are meant, not path components)
    end = os.path.commonprefix([text[len(begin) :][::-1] for text in texts])[::-1]  # noqa: RUF071
    # no stretch begins with the newline after a turn's end: the ids of a longer episode must begin with a shorter one's
    stretches = [before + begin, after[after.index("<think>") :], *environment.phrases]
    stretches += [end] if len(end) > 1 else []
    return stretches + [stretch for tool in tools for stretch in _call_stretches(tool["function"])]


def _call_stretches(function: dict[str, Any]) -> list[str]:
    """The text of a call around its arguments' values, which stand between quotes where they are texts."""
    begun = f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {{'
    stretches, quote = [], ""
    for place, (name, schema) in enumerate(function["parameters"]["properties"].items()):
        before = begun if place == 0 else f"{quote}, "
        quote = '"' if schema.get("type") == "string" else ""
        stretches.append(f'{before}"{name}": {quote}')
    return [*(stretches or [begun]), f"{quote}}}}}\n</tool_call>"]


def prepare_tokenizer(tokenizer: Any) -> Any:
    """Gives a tokenizer the response parser of its template, then that template's training variant. In place.

    Raises ValueError for a chat template that TRL does not know.
    """
    from trl.chat_template_utils import add_response_schema, get_training_chat_template

    if getattr(tokenizer, "response_template", None) is None:
        add_response_schema(tokenizer)
    tokenizer.chat_template = get_training_chat_template(tokenizer) or tokenizer.chat_template
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_tokenizer(checkpoint: Path, trusted: Trusted = ()) -> Any:
    """The tokenizer of a checkpoint of ours, prepared when it was published. Raises Stop."""
    from transformers import AutoTokenizer

    may_run = runs_code(checkpoint, trusted)
    with readable(checkpoint):
        return AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=may_run)
