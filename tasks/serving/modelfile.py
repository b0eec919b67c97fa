"""What Ollama is told of a GGUF file.

In: a tokenizer, the settings of the model's evaluation. Out: the text of a Modelfile, or nothing for a chat template
whose form Ollama's language has not been written for here.
"""

import json
from typing import Any

from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS, chat_format
from apprentice.tasks.episodes.thinking import THOUGHT, thinking_of, turn_tokens
from apprentice.tasks.models.tokenizer import vllm_parser

HERMES = "hermes"
"""Templates that write a call as JSON between <tool_call> and </tool_call>, each turn as ChatML: Qwen's."""
SYSTEM, USER, TOOL, THINKS, SAYS = "%SYSTEM%", "%USER%", "%TOOL%", "%THINKS%", "%SAYS%"
ASSISTANT = "<|im_start|>assistant"
MESSAGES = """{{- range $i, $_ := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 }}
{{- if eq .Role "user" }}<|im_start|>user
{{ .Content }}<|im_end|>
{{ else if eq .Role "assistant" }}<|im_start|>assistant%THOUGHT%{{ if .Content }}
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
THOUGHT_OF_TURN = "{{{{ if .Thinking }}}}{before}{{{{ .Thinking }}}}{after}{{{{ end }}}}"
"""A thought within `MESSAGES`, whatever the request says of thinking: a student was trained with all of its thoughts.
Ollama takes the first and the last text of this block for the marks by which it tells a thought from an answer:
https://github.com/ollama/ollama/blob/main/thinking/template.go"""


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
    most = turn_tokens(decoding["max_new_tokens"], thinking_of(tokenizer))
    parameters |= {"num_predict": most, "num_ctx": context}
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
    turns = MESSAGES.replace("%BEGIN%", begin.partition("<|im_end|>\n")[2]).replace("%THOUGHT%", _thought(tokenizer))
    return f"{before}{{{{ .System }}}}{tools}{plain}{turns}"


def _thought(tokenizer: Any) -> str:
    """What stands before a turn's text in Ollama's language, without the line break that `MESSAGES` has there: the
    thought where it has a block of its own, else the empty block of a template that has one."""
    thinking = thinking_of(tokenizer)
    is_native = thinking is not None and thinking.mode == "native"
    turn = {"role": "assistant", "content": SAYS} | ({THOUGHT: THINKS} if is_native else {})
    written = _rendered(tokenizer, [], turn, {"role": "user", "content": USER}).rpartition(ASSISTANT)[0]
    block = written.rpartition(ASSISTANT)[2].partition(SAYS)[0].removesuffix("\n")
    before, _, after = block.partition(THINKS)
    return THOUGHT_OF_TURN.format(before=before, after=after) if is_native else block


def _rendered(tokenizer: Any, tools: list[dict[str, Any]], *later: dict[str, Any]) -> str:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": USER}, *later]
    return tokenizer.apply_chat_template(
        messages, tools=tools or None, tokenize=False, add_generation_prompt=True, **TEMPLATE_ARGUMENTS
    )
