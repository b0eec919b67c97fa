"""The student's tokenizer and its chat template: built, prepared, checked, loaded, served.

In: environments with their questions, or a checkpoint. Out: a tokenizer whose template can be trained on: TRL parses
its calls, it renders tools, the prompt fits; and the commands that serve a published model with the same prompt.
"""

import difflib
import json
import os
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

from apprentice.envs.defaults import failed_import
from apprentice.envs.player import Player
from apprentice.tasks.artifacts.foreign.models import Trusted, readable, runs_code
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.rendering import CLOSING, TEMPLATE_ARGUMENTS, chat_format, prompt_ids
from apprentice.tasks.episodes.thinking import think, thinking_in, without_thinking
from apprentice.tasks.models.configuration import question_too_long
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import ThinkingSpec

DATE = date(2026, 1, 1)
"""The day in every prompt of a template that names one."""
TODAY = re.compile(r"""strftime_now\((["'])(.*?)\1\)""")
SPECIAL = re.compile(r"<\|[a-z_]+\|>")
BLOCK = "<think>\n", "\n</think>\n\n"
"""The marks around a thought in Qwen3's chat template."""


def tokenizer_of(questions: list[tuple[Player, list[str]]], thinking: ThinkingSpec | None = None) -> Any:
    """A byte-level tokenizer without merges, with Qwen3's chat template and one added token for each fixed text span.

    Args:
        questions: The questions of each environment.
        thinking: How the student thinks; None for one that answers at once.
    """
    from tokenizers import AddedToken
    from trl.chat_template_utils import qwen3_chat_template

    tokenizer = byte_level("<|im_end|>", "<|endoftext|>")
    tokenizer.chat_template = qwen3_chat_template
    think(prepare_tokenizer(tokenizer), thinking)
    spans: Any = [AddedToken(text, normalized=False) for text in template_spans(tokenizer, questions)]
    tokenizer.add_tokens(spans)
    return tokenizer


def byte_level(eos_token: str, pad_token: str, **special: str) -> Any:
    """A tokenizer of single bytes with these special tokens, and no chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=eos_token, pad_token=pad_token, padding_side="left", **special
    )


def template_spans(tokenizer: Any, questions: list[tuple[Player, list[str]]]) -> list[str]:
    """The text spans that every episode contains: from the rendered prompt, the tool calls, and the questions' common
    prefix and suffix."""
    spans = ["<|im_start|>assistant\n", CLOSING["content"], ", "]
    spans += ["<|im_start|>user\n<tool_response>\n", "\n</tool_response>"]
    for environment, texts in questions:
        spans += _spans_of(tokenizer, environment, texts)
    return list(dict.fromkeys(spans))


def _spans_of(tokenizer: Any, player: Player, texts: list[str]) -> list[str]:
    tools = player.schemas
    mark = "\0"
    rendered = tokenizer.apply_chat_template(
        prompt(player, mark), tools=tools, tokenize=False, add_generation_prompt=True, **TEMPLATE_ARGUMENTS
    )
    before, after = rendered.split(mark)
    begin = os.path.commonprefix(texts)  # noqa: RUF071 (characters are meant, not path components)
    end = os.path.commonprefix([text[len(begin) :][::-1] for text in texts])[::-1]  # noqa: RUF071
    # no span starts with the newline after a turn's end: the ids of an episode must be a prefix of a longer one's
    spans = [before + begin, after[after.index("<think>") :] if "<think>" in after else BLOCK[0], *player.phrases]
    spans += [BLOCK[1]] if "<think>" not in after else []
    spans += [end] if len(end) > 1 else []
    return spans + [span for tool in tools for span in _call_spans(tool["function"])]


def _call_spans(function: dict[str, Any]) -> list[str]:
    """The text of a call around its arguments' values, with quotes for strings."""
    call_start = f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {{'
    spans, quote = [], ""
    for index, (name, schema) in enumerate(function["parameters"]["properties"].items()):
        before = call_start if index == 0 else f"{quote}, "
        quote = '"' if schema.get("type") == "string" else ""
        spans.append(f'{before}"{name}": {quote}')
    return [*(spans or [call_start]), f"{quote}}}}}\n</tool_call>"]


def prepare_tokenizer(tokenizer: Any) -> Any:
    """Sets the template's response parser, then replaces the template by TRL's training variant, if any. In place.

    A template that writes today's date into the prompt gets a fixed one: the same question must have the same prompt on
    the day of an evaluation (law 1). Raises ValueError for a chat template whose calls TRL cannot parse.
    """
    from trl.chat_template_utils import add_response_schema, get_training_chat_template

    if getattr(tokenizer, "response_template", None) is None:
        add_response_schema(tokenizer)
    with suppress(ValueError):  # it has no variant
        tokenizer.chat_template = get_training_chat_template(tokenizer) or tokenizer.chat_template
    if isinstance(tokenizer.chat_template, str):
        tokenizer.chat_template = TODAY.sub(lambda call: repr(DATE.strftime(call[2])), tokenizer.chat_template)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_tokenizer(checkpoint: Path, trusted: Trusted = ()) -> Any:
    """Loads the tokenizer of a checkpoint, which was prepared when it was published. Raises Stop."""
    from transformers import AutoTokenizer

    may_run = runs_code(checkpoint, trusted)
    with readable(checkpoint):
        return AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=may_run)


CHOOSE = "Choose a model tuned for chat with tools, such as Qwen/Qwen3-0.6B (student.model)."


def prepared(tokenizer: Any, model: str, thinking: ThinkingSpec | None = None) -> Any:
    """Like `prepare_tokenizer`, for a student that thinks so. Raises Stop without a template whose calls TRL parses."""
    if isinstance(named := tokenizer.chat_template, dict):  # the one that renders tools, as transformers chooses it
        with_tools = named.get("tool_use") or next((each for each in named.values() if "tools" in each), None)
        tokenizer.chat_template = with_tools or named.get("default", "")
    if not tokenizer.chat_template:
        raise Stop(f"{model} has no chat template: it was not tuned for chat.", CHOOSE)
    think(tokenizer, None)  # of a student that was trained here, and may be trained to think otherwise
    if fault := unparsed(tokenizer):
        raise Stop(f"The chat template of {model} {fault}", CHOOSE)
    return think(tokenizer, thinking)


def trl_template(name: str, tokenizer: Any) -> str:
    """The text of one of TRL's chat templates. Raises Stop for an unknown name, and where the vocabulary lacks a
    special token that the template writes: it would be spelt in letters."""
    import trl

    folder = Path(trl.__file__).parent / "chat_templates"
    known = {each.stem for each in folder.glob("*.jinja")}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3) or sorted(known)
        raise Stop(f"TRL has no chat template {name!r}.", f"Set student.chat_template to one of {', '.join(near)}.")
    text = (folder / f"{name}.jinja").read_text()
    if lacking := sorted(set(SPECIAL.findall(text)) - tokenizer.get_vocab().keys()):
        raise Stop(
            f"The vocabulary has no {', '.join(lacking)}, which the chat template {name} writes.",
            "Choose a template whose special tokens the model knows (student.chat_template).",
        )
    return text


def unparsed(tokenizer: Any) -> str:
    """Prepares a tokenizer; why its calls cannot be parsed, as the end of a sentence about its template, or nothing."""
    from trl.chat_template_utils import supports_tool_calling

    try:
        prepare_tokenizer(tokenizer)
        if chat_format(tokenizer).arguments:
            return ""
    except ValueError as error:
        if failed_import(error):  # a compiled package may raise it where it does not fit another one
            raise
    if supports_tool_calling(tokenizer):
        return "renders tool calls that TRL cannot parse, and its repository has no response_template that does."
    return "renders no tool calls."


def check_prompt(model: str, tokenizer: Any, longest: int | None, player: Player, questions: Sequence[str]) -> None:
    """Raises Stop when the template omits the tools, or when a question fills the model's context.

    Args:
        longest: The model's context length in tokens, if known.
    """
    tools = player.schemas
    for question in questions:
        messages = prompt(player, question)
        shown = tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=True, **TEMPLATE_ARGUMENTS
        )
        hidden = [name for tool in tools if (name := tool["function"]["name"]) not in shown.replace(question, "")]
        if hidden:
            raise Stop(f"The chat template of {model} omits the tools ({', '.join(hidden)}).", CHOOSE)
        length = len(prompt_ids(tokenizer, messages, tools))
        if longest is not None and length >= longest:
            raise question_too_long(length, model, longest)


PARSERS = {
    "<|channel|>": "openai",
    "<|tool_call>call:": "gemma4",
    "<|tool_call_start|>": "lfm2",
    "<arg_key>": "glm45",
    "<function=": "qwen3_coder",
    '"parameters": ': "llama3_json",
    "<tool_call>": "hermes",
}
"""vLLM's parser of tool calls by what a chat template writes around a call; the first that is found.
https://docs.vllm.ai/en/latest/features/tool_calling.html"""


def vllm_parser(template: str) -> str:
    """The name of vLLM's parser of this chat template's calls; empty where none is known."""
    return next((parser for mark, parser in PARSERS.items() if mark in template), "")


def switches(template: str) -> str:
    """The template's arguments as a word of a shell, where the template has them; else empty."""
    thinking = thinking_in(template)
    given = {"enable_thinking": thinking.mode == "native"} if thinking else TEMPLATE_ARGUMENTS
    used = {name: value for name, value in given.items() if name in without_thinking(template)}
    return shlex.quote(json.dumps(used)) if used else ""


REASONING_PARSERS = {"<|channel>thought": "gemma4", "<arg_key>": "glm45", "<think>": "qwen3"}
"""vLLM's parser of native thoughts by what a chat template writes around them; the first that is found.
https://docs.vllm.ai/en/latest/features/reasoning_outputs.html"""


def reasoning_parser(template: str) -> str:
    """The name of vLLM's parser of this student's thoughts; empty where it writes none in a block of its own, or where
    none is known. A thought in plain text is the content beside the call."""
    thinking = thinking_in(template)
    if thinking is None or thinking.mode == "text":
        return ""
    return next((parser for mark, parser in REASONING_PARSERS.items() if mark in template), "")


def commands(template: str, model: str, revision: str | None) -> list[str]:
    """The command lines that serve a model on 127.0.0.1:8000: vLLM's where it reads the calls, and transformers'.

    Args:
        model: A repository of the Hub or a folder.
        revision: The repository's.
    """
    given, parser = switches(template), vllm_parser(template)
    at, name = (f" --revision {revision}" if revision else ""), (f"{model}@{revision}" if revision else model)
    vllm = f"vllm serve {model}{at} --served-model-name student --host 127.0.0.1 --enable-auto-tool-choice"
    vllm += f" --reasoning-parser {reasons}" if (reasons := reasoning_parser(template)) else ""
    vllm += f" --tool-call-parser {parser}" + (f" --default-chat-template-kwargs {given}" if given else "")
    transformers = f"transformers serve {name} --host 127.0.0.1" + (f" --chat-template-kwargs {given}" if given else "")
    return [vllm, transformers] if parser else [transformers]
