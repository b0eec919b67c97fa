"""Checks whether a chat template can be trained on: TRL parses its calls, it renders tools, the prompt fits.

In: a tokenizer, an environment, its questions. Out: the prepared tokenizer, or Stop with a suggestion. What a template
makes of whole episodes is checked in training/template_check.py.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from apprentice.envs.base import ToolEnvironment, tool_schemas
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS, chat_format, prompt_ids
from apprentice.tasks.models.tokenizer import prepare_tokenizer
from apprentice.tasks.reporting.errors import Stop

CHOOSE = "Choose a model tuned for chat with tools, such as Qwen/Qwen3-0.6B (student.model)."


def prepared(tokenizer: Any, model: str) -> Any:
    """Like `prepare_tokenizer`. Raises Stop without a chat template whose calls TRL parses."""
    if isinstance(tokenizer.chat_template, dict):
        tokenizer.chat_template = _with_tools(tokenizer.chat_template)
    if not tokenizer.chat_template:
        raise Stop(f"{model} has no chat template: it was not tuned for chat.", CHOOSE)
    if fault := unparsed(tokenizer):
        raise Stop(f"The chat template of {model} {fault}", CHOOSE)
    return tokenizer


def _with_tools(templates: dict[str, str]) -> str:
    """Of several named templates the one that renders tools, as transformers chooses it."""
    named = templates.get("tool_use") or next((each for each in templates.values() if "tools" in each), None)
    return named or templates.get("default", "")


def unparsed(tokenizer: Any) -> str:
    """Prepares a tokenizer; why its calls cannot be parsed, as the end of a sentence about its template, or nothing."""
    from trl.chat_template_utils import supports_tool_calling

    with suppress(ValueError):
        prepare_tokenizer(tokenizer)
        if chat_format(tokenizer).arguments:
            return ""
    if supports_tool_calling(tokenizer):
        return "renders tool calls that TRL cannot parse, and its repository has no response_template that does."
    return "renders no tool calls."


def check_prompt(
    model: str, tokenizer: Any, longest: int | None, environment: ToolEnvironment, questions: Sequence[str]
) -> None:
    """Raises Stop when the template omits the tools, or when a question fills the model's context.

    Args:
        longest: The model's context length in tokens, if known.
    """
    tools = tool_schemas(environment)
    for question in questions:
        messages = prompt(environment, question)
        shown = tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=True, **TEMPLATE_ARGUMENTS
        )
        hidden = [name for tool in tools if (name := tool["function"]["name"]) not in shown.replace(question, "")]
        if hidden:
            raise Stop(f"The chat template of {model} omits the tools ({', '.join(hidden)}).", CHOOSE)
        length = len(prompt_ids(tokenizer, messages, tools))
        if longest is not None and length >= longest:
            raise question_too_long(length, model, longest)


def question_too_long(tokens: int, model: str, longest: int) -> Stop:
    """What to say of a question that fills the model's context."""
    return Stop(
        f"A question takes {tokens} tokens, tools included, and {model} accepts at most {longest}.",
        "Make the questions shorter (environment.settings) or choose another student.",
    )
