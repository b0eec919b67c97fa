"""Calls that stand in the text of a turn, thoughts beside them, and turns that carry no loss.

In: the text of an assistant's turn, the tools' schemas. Out: the calls in <tool_call> (Qwen, Hermes), which are read;
or the name of the notation, where the text holds a call in another one.
Why: a call that is not read would be played as an answer in words, and learned as text or as an argument. So a row
with one is refused. A text counts as a call if it holds a notation's marker, or a tool's name with brackets as no
prose has it: "echo (the nymph)" is prose, `echo(message="a")` and `{"name": "echo"}` are calls.
"""

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from apprentice.tasks.episodes.texts import read_json


class NotAConversation(Exception):
    """A row that is none, with the field that is wrong."""

    def __init__(self, field: str, cause: str):
        super().__init__(f"{field}: {cause}")
        self.field = field
        self.cause = cause


TAGS = "think|thinking|thoughts?|reasoning|scratch_?pad"
ATTRIBUTES = r"(?:\s+[\w:-]+\s*=[^<>\n]*)?"
"""Of a tag that begins a thought, such as `<think time=3>`."""
THOUGHTS = (
    rf"<(?P<tag>(?:seed:)?(?:{TAGS})){ATTRIBUTES}>.*?(?:</(?P=tag)>|\Z)",
    r"\[THINK\].*?(?:\[/THINK\]|\Z)",
    r"◁think▷.*?(?:◁/think▷|\Z)",
    r"<\|START_THINKING\|>.*?(?:<\|END_THINKING\|>|\Z)",
    r"<\|channel\|>analysis<\|message\|>.*?(?:<\|end\|>|(?=<\|start\|>)|\Z)",
    r"<\|channel>thought.*?(?:<channel\|>|\Z)",
)
"""One that does not end takes the rest of the text."""
THOUGHT_OR_CALL = re.compile(
    f"(?P<thought>{'|'.join(THOUGHTS)})|<tool_call>(?P<call>.*?)</tool_call>", re.DOTALL | re.IGNORECASE
)
"""Whichever begins first: a call may hold the text of a tag, and a thought that of a call."""
THINKING = ("thinking", "reasoning", "redacted_thinking", "reasoning_text", "reasoning_content")
"""Types of a part of a message that is a thought."""
END_OF_PROMPTS_THOUGHT = re.compile(rf"</(?:{TAGS})>|\[/THINK\]|◁/think▷", re.IGNORECASE)
"""The end of a thought that the prompt began, as DeepSeek-R1's template does."""


FINAL = re.compile(r"(?:<\|start\|>assistant)?<\|channel\|>final<\|message\|>|<\|return\|>\s*\Z")
"""What stands around gpt-oss' answer after its thought."""
REASONING = ("reasoning_content", "reasoning", "reasoning_text", "thinking", "thinking_blocks", "reasoning_details")
"""The fields of a message in which endpoints put the reasoning of an answer, the first one that is filled counts."""
BY_PROVIDER = "provider_specific_fields"
"""LiteLLM's field for what only one provider has, which may hold those of `REASONING`."""
MARKS = re.compile(
    rf"</?(?:seed:)?(?:{TAGS}){ATTRIBUTES}>|\[/?THINK\]|◁/?think▷|<\|(?:START|END)_THINKING\|>"
    r"|<\|channel\|>analysis<\|message\|>|<\|end\|>|<\|channel>thought\n?|<channel\|>",
    re.IGNORECASE,
)
"""What stands around a thought in a text."""
NEAR = 40
"""Characters after a marker within which its call names the tool."""
DEEPEST = 20
"""Blocks within one another in which a text is looked for."""


def split_thought(message: Mapping[str, Any]) -> tuple[str, Any]:
    """The thought of an assistant's message in any provider's form, and its content without that.

    Read are, in this order: a field of `REASONING`, parts of the content that are thinking blocks, marked thoughts in
    the text, and the text beside a call. Empty where there is none. A summary of hidden reasoning comes after a text.
    """
    content = message.get("content")
    if _is_summary(message.get("reasoning_details")):
        found = split_thought({name: value for name, value in message.items() if name not in (*REASONING, BY_PROVIDER)})
        if found[0]:
            return found
    called = message.get("tool_calls") or message.get("function_call")
    fields = message.get(BY_PROVIDER)
    for given in (message, fields if isinstance(fields, Mapping) else {}):
        for name in REASONING:
            if thought := _text_in(given.get(name)).strip():
                return thought, content
    if isinstance(content, list):
        blocks = [part for part in content if isinstance(part, dict) and part.get("type") in THINKING]
        if thought := _text_in(blocks).strip():
            return thought, [part for part in content if part not in blocks]
    text = _text_in(content)
    if (rest := without_thoughts(text)) != text:
        after = _after_prompts_thought(text)
        inside = [text[: len(text) - len(after)]]
        inside += [found["thought"] for found in THOUGHT_OR_CALL.finditer(after) if found["thought"]]
        if thought := "\n".join(filter(None, (MARKS.sub("", each).strip() for each in inside))):
            return thought, rest
        text = content = rest  # an empty block
    return (text.strip(), "") if called and text.strip() else ("", content)


def split_thoughts_ahead(text: str) -> tuple[str, str]:
    """The marked thoughts that a text begins with, and the rest. What stands in the rest is part of it."""
    after = text if text.lstrip()[:1] in ("{", "[") else _after_prompts_thought(text)
    end = 0
    while (found := THOUGHT_OR_CALL.match(after, len(after) - len(after[end:].lstrip()))) and found["thought"]:
        end = found.end()
    at = len(text) - len(after) + end
    return split_thought({"content": text[:at]})[0], text[at:].strip()


def _is_summary(details: Any) -> bool:
    """Whether a provider shows no more of its reasoning than a summary, beside what is encrypted."""
    kinds = [str(each.get("type")) for each in details if isinstance(each, dict)] if isinstance(details, list) else []
    has_summary = any(kind.endswith("summary") for kind in kinds)
    return has_summary and all(kind.endswith(("summary", "encrypted")) for kind in kinds)


def _text_in(value: Any, depth: int = 0) -> str:
    """A text, or the texts of a list of blocks; of an encrypted thought its summary."""
    if depth > DEEPEST:
        return ""
    if isinstance(value, list):
        return _joined([(each, text) for each in value if (text := _text_in(each, depth + 1))])
    if isinstance(value, dict):
        names = ("summary",) if value.get("redacted") else (*THINKING, "text", "content", "summary")
        return next((text for name in names if (text := _text_in(value.get(name), depth + 1))), "")
    return value if isinstance(value, str) else ""


def _joined(blocks: list[tuple[Any, str]]) -> str:
    """The texts of blocks: fragments of one text as they are, others in lines of their own."""
    joined, last = "", (None, "")
    for block, text in blocks:
        joined += text if not joined or _goes_on(last, (block, text)) else f"\n{text}"
        last = block, text
    return joined


def _goes_on(one: tuple[Any, str], other: tuple[Any, str]) -> bool:
    """Whether a block is a fragment of the same text as the one before it, as streams leave them: of the same type, and
    of the same number or with a space between. Without either, numbers at the seam could become another one."""
    (before, ended), (after, begun) = one, other
    if not isinstance(before, dict) or not isinstance(after, dict) or before.get("type") != after.get("type"):
        return False
    if before.get("signature") or (before.get("id") or after.get("id")) != (after.get("id") or before.get("id")):
        return False
    numbers = before.get("index"), after.get("index")
    if None not in numbers:
        return numbers[0] == numbers[1]
    return ended[-1].isspace() or begun[0].isspace()


def calls_in(text: str) -> tuple[list[str], str]:
    """The object in each <tool_call> outside of thoughts, and the rest of the text without calls and thoughts. No call
    where one of them holds no object, as Qwen3-Coder and GLM write them."""
    text = _after_prompts_thought(text)
    calls = [found["call"] for found in THOUGHT_OR_CALL.finditer(text) if found["call"] is not None]
    if not all(call.lstrip().startswith("{") for call in calls):
        return [], text
    return calls, THOUGHT_OR_CALL.sub("", text).strip()


def before_call(text: str, name: str) -> str:
    """What stands before the first call of a tool, in a notation with a marker; empty where there is none."""
    found = (each for marker in _markers().values() for each in marker.finditer(text))
    return text[: min((each.start() for each in found if name in text[each.start() : each.end() + NEAR]), default=0)]


def read_call(text: str) -> Any:
    """A call's JSON, or the Python literal that Hermes' own dataset has in its place. Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("a call is nested too deeply") from None
    except ValueError:
        try:
            return json.loads(json.dumps(ast.literal_eval(text.strip())))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            pass
        raise


def without_thoughts(text: str) -> str:
    """The text without its thoughts; as it is where it has none."""
    kept = THOUGHT_OR_CALL.sub(lambda found: "" if found["thought"] else found[0], _after_prompts_thought(text))
    kept = kept if kept == text else FINAL.sub("", kept)
    return kept if kept == text else kept.strip()


def _after_prompts_thought(text: str) -> str:
    end, first = END_OF_PROMPTS_THOUGHT.search(text), THOUGHT_OR_CALL.search(text)
    if not end or (first and first.start() < end.start() and (first["thought"] or end.start() < first.end())):
        return text
    return text[end.end() :]


MARKERS = {
    "Glaive's <functioncall>": r"<functioncall>",
    "Mistral's [TOOL_CALLS]": r"\[TOOL_CALLS\]",
    "Llama's <|python_tag|>": r"<\|python_tag\|>",
    "DeepSeek's <｜tool▁calls▁begin｜>": r"<[|｜]tool▁[\w▁]+[|｜]>|<[|｜]DSML[|｜]",
    "Kimi's <|tool_calls_section_begin|>": r"<\|tool_calls?_(?:section_|argument_)?begin\|>",
    "Phi's <|tool_call|>": r"<\|/?tool_calls?\|>",
    "LFM2's <|tool_call_start|>": r"<\|tool_call_start\|>",
    "Gemma's <|tool_call>": r"<\|tool_call>|<start_function_call>",
    "Gemma's ```tool_code": r"```\s*tool_code|<tool_code>",
    "InternLM's <|action_start|>": r"<\|action_start\|>|<\|plugin\|>",
    "Command R's Action": r"<\|START_ACTION\|>|\bAction:\s*```(?:json)?\s*[\[{]",
    "gpt-oss's commentary": r"<\|channel\|>\s*commentary|\bto=functions\.|\b(?:commentary|assistant)\s+to=\w",
    "Functionary's or Qwen3-Coder's <function=NAME>": r"<function=|<\|recipient\|>|>>>\s*[\w.]+\s*\{",
    "Anthropic's <invoke>": r"<(?:\w+:)?(?:invoke\s|function_calls>|tool_use\b)|<use_mcp_tool>",
    "Qwen-Agent's ✿FUNCTION✿": r"✿FUNCTION✿",
    "Nemotron's <TOOLCALL>": r"<TOOLCALL>",
    "ReAct's Action Input": r"(?m)^[^\w\n]*Action[ _]Input[^\w\n]*:",
    "OpenAI's functions.NAME": r"\bfunctions\.\w+(?::\d+)?\s*[({<]",
    "<tool_call> without an end, or without a JSON object": r"</?tool_call>",
}
"""Notations by a marker that nothing else has; the first that is found names a text."""
LIKE_A_MARKER = re.compile(
    r"<[/|｜]*[\w:.-]*(?:tool|function)s?_?(?:calls?|use|request|invocation|prefix)\w*[|｜]*>"
    r"|\[/?(?:TOOL|FUNCTION)_?(?:CALLS?|REQUEST|USE)\]|```\s*(?:tool|function)_?calls?\b"
    r"|<[|｜](?:Tool|Function)Call\w*[|｜]>",
    re.IGNORECASE,
)
OF_NAME = "name|tool|function|action|command|func|api|method|call|recipient"
KEYS = rf"(?:{OF_NAME}|tool_?name|function_?name|action_?name|api_?name|recipient_?name|tool_?call|function_?call)"
"""Keys under which a JSON object names its tool."""
NAMED = re.compile(r"[\"'](?:name|tool_name|function|tool|action)[\"']\s*:")
ARGUED = re.compile(r"[\"'](arguments|parameters|args|kwargs|input|action_?input|tool_?input)[\"']\s*:")
"""Both are in a JSON object of a call, whichever tool it names."""
FUNCTIONS = re.compile(r"\s*\[\s*[\w.][\w. -]*\((?:\s*\w+\s*=.*)?\)\s*\]\s*", re.DOTALL)
"""A text that is a list of calls alone, whichever tools it names."""


def notation_of(text: str, tools: list[dict[str, Any]]) -> str:
    """The name of the notation in which a text holds a call; empty if it holds none.

    Args:
        text: Of a turn, without thoughts, and without the calls that were read.
        tools: The schemas whose names make a call of a text without a marker.
    """
    for name, marker in _markers().items():
        if marker.search(text):
            return name
    if found := LIKE_A_MARKER.search(text):
        return f"marked by {found[0]}"
    if "{" in text and NAMED.search(text) and (found := ARGUED.search(text)):
        llamas = found[1] == "parameters"
        return 'Llama\'s {"name", "parameters"}' if llamas else 'xLAM\'s {"name", "arguments"}'
    if FUNCTIONS.fullmatch(text):
        return "ToolACE's [NAME(…)]"
    for tool in tools:
        function = tool["function"]
        for name, pattern in _of_tool(function["name"]).items():
            if pattern.search(text):
                return "ToolACE's [NAME(…)]" if name == PYTHON and text.lstrip().startswith("[") else name
        if _are_arguments(text, function):
            return "a call's arguments alone"
    return ""


def check_texts(texts: Iterable[tuple[str, str]], tools: list[dict[str, Any]], others: Any) -> None:
    """Raises NotAConversation for a text that holds a call.

    Args:
        texts: Each with its field.
        tools: The environment's schemas.
        others: The row's own schemas, as JSON or its text; only their names are read.
    """
    known = [*tools, *({"function": {"name": name}} for name in _names(others))]
    for field, text in texts:
        said = without_thoughts(text)
        if notation := notation_of(said, known):
            cause = f"a call in a notation that is not read, {notation}: {said.strip()[:80]}"
            raise NotAConversation(field, f"{cause}; give calls as `tool_calls`")


def arguments_in(messages: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the texts within the arguments of calls, each with its field."""
    for call in (call for message in messages for call in message.get("tool_calls") or []):
        given = call["function"]["arguments"]
        level = [read_json(given, given)]
        while level:
            yield from (("messages", each) for each in level if isinstance(each, str))
            inner = (
                each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)
            )
            level = [part for parts in inner for part in parts]


def _names(tools: Any) -> list[str]:
    read = read_json(tools) if isinstance(tools, str) else tools
    each = [tool.get("function", tool) for tool in read if isinstance(tool, dict)] if isinstance(read, list) else []
    return [tool["name"] for tool in each if isinstance(tool, dict) and isinstance(tool.get("name"), str)]


@lru_cache
def _markers() -> Mapping[str, re.Pattern[str]]:
    return {name: re.compile(pattern) for name, pattern in MARKERS.items()}


PYTHON = "Python's NAME(…)"


@lru_cache
def _of_tool(tool: str) -> Mapping[str, re.Pattern[str]]:
    """Patterns of a tool's name with brackets, by the name of the notation."""
    named = rf"(?<![\w-]){re.escape(tool)}(?![\w-])"
    gap = r"[^\w\n]*"
    brackets = r"(?:\([^\n]*\)|\s?\(\s*[\"'{\[][^\n]*\)|\[[^\n]+\]|\{[^\n]*\})"
    alone = rf"(?m)^[ \t`*\[(-]*(?:\w+\.)*{named}{brackets}[ \t`*\]);.]*$"
    titles = r"(?:Action|Tool|Function|Call|Act)(?:[ _]?Name)?(?:[ _]\d+)?"
    patterns = {
        "a JSON object that names a tool": rf"[\"']{KEYS}[\"']\s*:\s*[\"'](?:[\w.]+\.)?{named}[\"']",
        "a JSON object with a tool's name as its key": rf"\{{[^{{}}]*[\"']?{named}[\"']?\s*:",
        PYTHON: rf"(?<!def )(?<!function ){named}\((?!s\))|{named}\s+\(\s*(?:\{{|\w+\s*=(?!=))",
        "a tool's name with brackets": rf"{alone}|[\[({{]\s*{named}\s+(?:\w+\s*=(?!=)|[\"'{{])",
        "GLM's NAME {…}": rf"{named}[\s:`*]{{0,20}}(?:json)?\s{{0,20}}\{{\s*(?:[\"']|\}})|\bcall:{named}\s*\{{",
        "XML with a tool's name": rf"</?{named}(?:\s[^<>]*)?/?>|>\s*{named}\s*</|<\w+ [^<>]*=[\"']{named}[\"']",
        "ReAct's Action": rf"(?m)^{gap}{titles}{gap}:{gap}{named}{brackets}?{gap}$",
    }
    return {name: re.compile(pattern) for name, pattern in patterns.items()}


def _are_arguments(text: str, function: dict[str, Any]) -> bool:
    """Whether a text is a JSON object of a tool's arguments."""
    bare = re.sub(r"^\s*```(?:json)?|```\s*$", "", text).strip()
    if not bare.startswith("{"):
        return False
    given = read_json(bare)
    parameters = function.get("parameters", {})
    taken, required = parameters.get("properties", {}).keys(), set(parameters.get("required", ()))
    return isinstance(given, dict) and bool(given) and required <= given.keys() <= taken


TRAINED = ("weight", "train", "training", "trainable", "train_on_turn", "loss", "loss_mask")
"""Fields of a message that are false where it carries no loss: OpenAI's, axolotl's, ms-swift's, verl's and others'."""
MASKED = ("mask", "masked")
"""Fields that are true there."""
OF_PARTS = ("train_detail", "training_detail")
"""axolotl's fields that train parts of a turn."""


def carries_loss(message: dict[str, Any]) -> bool:
    """Whether a message may be learned, by its own fields. Raises ValueError for a share, or for parts of a turn."""
    parts = message.get("content")
    for each in parts if isinstance(parts, list) else []:
        if isinstance(each, dict) and not carries_loss({name: each[name] for name in TRAINED if name in each}):
            raise ValueError("a part of a turn carries no loss, and here a turn does or does not")
    if named := next((name for name in OF_PARTS if message.get(name)), ""):
        raise ValueError(f"{named} trains parts of a turn, and here a turn carries loss or does not")
    flags = [(name, message[name], name in TRAINED) for name in (*TRAINED, *MASKED) if message.get(name) is not None]
    for name, value, _ in flags:
        if value not in (0, 1):
            raise ValueError(f"{name} is {str(value)[:40]!r}, which is neither 0 nor 1")
    return all(bool(value) is trained for _, value, trained in flags)


def check_loss(messages: list[dict[str, Any]]) -> None:
    """Raises NotAConversation for messages of which no turn of an assistant carries loss."""
    if all(message.get("weight") == 0 for message in messages if message["role"] == "assistant"):
        raise NotAConversation("messages", "every turn of the assistant has weight 0, so nothing of it is learned")
