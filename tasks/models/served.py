"""How a published model is served, so that it gets the prompt of its training and its calls are read.

In: its chat template. Out: the arguments of vLLM and of transformers' server.
"""

import json
import shlex

from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS

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
    used = {name: value for name, value in TEMPLATE_ARGUMENTS.items() if name in template}
    return shlex.quote(json.dumps(used)) if used else ""


def commands(template: str, model: str, revision: str | None) -> list[str]:
    """The command lines that serve a model on 127.0.0.1:8000: vLLM's where it reads the calls, and transformers'.

    Args:
        model: A repository of the Hub or a folder.
        revision: The repository's.
    """
    given, parser = switches(template), vllm_parser(template)
    at, name = (f" --revision {revision}" if revision else ""), (f"{model}@{revision}" if revision else model)
    vllm = f"vllm serve {model}{at} --served-model-name student --host 127.0.0.1 --enable-auto-tool-choice"
    vllm += f" --tool-call-parser {parser}" + (f" --default-chat-template-kwargs {given}" if given else "")
    transformers = f"transformers serve {name} --host 127.0.0.1" + (f" --chat-template-kwargs {given}" if given else "")
    return [vllm, transformers] if parser else [transformers]
