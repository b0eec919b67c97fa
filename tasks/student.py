"""The student before training: a model that there is (student_model.py), or a small Qwen3 built and seeded on the spot.

In: what the recipe says of the student, the task (its prompt), the questions (their fixed frame). Out: `BaseStudent`.
Why a tokenizer of our own for the built one: a net of a million weights without pretraining must not spend itself on
copying a prompt. Letters and digits stay single; every stretch of text that is the same in all episodes is one token.
"""

import os
from pathlib import Path
from typing import Any

from apprentice.envs.base import ToolEnvironment, tool_schemas
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.artifacts import BaseStudent, Questions
from apprentice.tasks.episode import prompt
from apprentice.tasks.questions import read_questions
from apprentice.tasks.rendering import (
    CLOSING,
    TEMPLATE_ARGUMENTS,
    load_tokenizer,
    prepare_tokenizer,
)
from apprentice.tasks.specs import BuiltStudent, StudentSpec
from apprentice.tasks.stage import Bench, stage
from apprentice.tasks.student_model import forget_the_network, from_model
from apprentice.tasks.trust import (
    Trusted,
    check_files,
    code_of,
    forget_code,
    grant,
    name_code,
    readable,
    runs_code,
    weights_elsewhere,
)


@stage(gives=BaseStudent, version=4, title="Student")
def student(
    bench: Bench, spec: StudentSpec, environment: EnvironmentSpec, questions: Questions, seed: int
) -> dict[str, Any]:
    """Publishes the model and a tokenizer that is prepared for training."""
    if spec.build is not None:
        rows = read_questions(bench.fetch(questions), "collect")
        parameters = _build(spec.build, _by_part(environment.make(), rows), seed, bench.out)
    else:
        parameters = from_model(spec, bench.out)
    return {"parameters": parameters, "stage": "base"}


def load_model(checkpoint: Path, trusted: Trusted = (), **how: Any) -> Any:
    """The weights of a checkpoint of ours in fp32: where the optimizer steps, bf16 weights at lr 2e-5 do not move.

    `how` is passed on to transformers. Raises Stop, also for code and for pickled weights that this run does not trust.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # the run has bars of its own
    check_files(checkpoint)
    source = weights_elsewhere(checkpoint)
    given = grant(source, trusted)
    where: dict[str, Any] = {"trust_remote_code": given is not None and given.trust_remote_code}
    where |= {"revision": source.revision} if source else {"trust_remote_code": runs_code(checkpoint, trusted)}
    with readable(source or checkpoint):
        return AutoModelForCausalLM.from_pretrained(
            source.model or "" if source else checkpoint,
            use_safetensors=None if given is not None and not given.safetensors_only else True,
            dtype=torch.float32,
            **where,
            **how,
        )


def save(
    model: Any, tokenizer: Any, to: Path, weights: dict[str, Any] | None = None, begun: Path | None = None
) -> dict[str, Any]:
    """Writes a checkpoint; returns what its artifact counts.

    Args:
        weights: The whole ones, of a model that is sharded.
        begun: The checkpoint from which it was trained: it names whose code the model has.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    model.save_pretrained(to, state_dict=weights)
    tokenizer.save_pretrained(to)
    forget_the_network(to / "tokenizer_config.json")
    source = begun and code_of(begun)
    if source and any(type(each).__module__.startswith("transformers_modules.") for each in (model, tokenizer)):
        name_code(to, source)
    else:
        forget_code(to)
    return {"parameters": model.num_parameters()}


def _by_part(instance: ToolEnvironment, rows: list[dict[str, Any]]) -> list[tuple[ToolEnvironment, list[str]]]:
    """Each part of a mixture with its questions; an environment alone with all."""
    return [
        (part, [row["question"] for row in rows if instance._part(row["seed"]) is part]) for part in instance._parts()
    ]


def _build(spec: BuiltStudent, asked: list[tuple[ToolEnvironment, list[str]]], seed: int, out: Path) -> int:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = tokenizer_of(asked)
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
    )
    torch.manual_seed(seed)
    return save(Qwen3ForCausalLM(config), tokenizer, out)["parameters"]


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
    stretches: Any = [AddedToken(text, normalized=False) for text in _fixed_stretches(tokenizer, asked)]
    tokenizer.add_tokens(stretches)
    return tokenizer


def _fixed_stretches(tokenizer: Any, asked: list[tuple[ToolEnvironment, list[str]]]) -> list[str]:
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


__all__ = ["build_tokenizer", "load_model", "load_tokenizer", "save", "student", "tokenizer_of"]
