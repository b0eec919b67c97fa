"""What Ollama is told of a GGUF file.

In: a tokenizer, the settings of the model's evaluation. Out: the text of a Modelfile, or nothing for a chat template
whose form Ollama's language has not been written for here.
"""

import json
from typing import Any

from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS, chat_format
from apprentice.tasks.models.tokenizer import vllm_parser

HERMES = "hermes"
"""Templates that write a call as JSON between <tool_call> and </tool_call>, each turn as ChatML: Qwen's."""
SYSTEM, USER, TOOL = "%SYSTEM%", "%USER%", "%TOOL%"
MESSAGES = """{{- range $i, $_ := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 }}
{{- if eq .Role "user" }}<|im_start|>user
{{ .Content }}<|im_end|>
{{ else if eq .Role "assistant" }}<|im_start|>assistant{{ if .Content }}
{{ .Content }}{{ end }}
{{- range .ToolCalls }}
<tool_call>
{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}
</tool_call>
{{- end }}<|im_end|>
{{ else if eq .Role "tool" }}<|im_start|>user
<tool_response>
{{ .Content }}
</tool_response><|im_end|>
{{ end }}
{{- if and (ne .Role "assistant") $last }}%BEGIN%{{ end }}
{{- end }}"""
"""Ollama's form of the turns, https://docs.ollama.com/template. Its JSON has no spaces, where Python's has some."""


def modelfile(file: str, tokenizer: Any, decoding: dict[str, Any], context: int) -> str:
    """The Modelfile for a GGUF file; empty where Ollama's template is not known.

    Without its parameters Ollama samples from the 40 most likely tokens, which no evaluation here does.

    Args:
        decoding: The evaluation's settings: decoding, temperature, max_new_tokens.
        context: Tokens of prompt and answer.
    """
    if vllm_parser(tokenizer.chat_template) != HERMES:
        return ""
    ends = [tokenizer.convert_ids_to_tokens(each) for each in chat_format(tokenizer).ends]
    temperature = decoding["temperature"] if decoding.get("decoding") == "sampled" else 0
    parameters = {"temperature": temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}
    parameters |= {"num_predict": decoding["max_new_tokens"], "num_ctx": context}
    return "\n".join(
        [
            "# For Ollama, by https://docs.ollama.com/modelfile. Not tried with Ollama: its prompts differ from those",
            "# of training in the spaces of a tool's JSON. llama-server has the same prompts.",
            f"FROM ./{file}",
            *(f"PARAMETER stop {json.dumps(each)}" for each in ends),
            *(f"PARAMETER {name} {value}" for name, value in parameters.items()),
            f'TEMPLATE """{_template(tokenizer)}"""',
            "",
        ]
    )


def _template(tokenizer: Any) -> str:
    """The template in Ollama's language: the texts around system prompt and tools as the model's own renders them."""
    head, _, begin = _rendered(tokenizer, []).partition(USER)
    before, _, after = head.partition(SYSTEM)
    parameters = {"type": "object", "properties": {}}
    tool = {"type": "function", "function": {"name": "t", "description": TOOL, "parameters": parameters}}
    with_tools, _, _ = _rendered(tokenizer, [tool]).partition(USER)
    _, _, after_system = with_tools.partition(SYSTEM)
    first, _, rest = after_system.partition(json.dumps(tool))
    user = "<|im_start|>user\n"
    called = '{{- range .Tools }}\n{"type": "function", "function": {{ .Function }}}\n{{- end }}'
    tools = f"{{{{- if .Tools }}}}{first.rstrip()}\n{called}{rest.removesuffix(user)}"
    plain = f"{{{{ else }}}}{after.removesuffix(user)}{{{{ end }}}}"
    return f"{before}{{{{ .System }}}}{tools}{plain}" + MESSAGES.replace("%BEGIN%", begin.partition("<|im_end|>\n")[2])


def _rendered(tokenizer: Any, tools: list[dict[str, Any]]) -> str:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": USER}]
    return tokenizer.apply_chat_template(
        messages, tools=tools or None, tokenize=False, add_generation_prompt=True, **TEMPLATE_ARGUMENTS
    )
