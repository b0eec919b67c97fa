"""Renders messages to token ids, the same way for SFT rows, GRPO prompts and evaluation.

In: a prepared tokenizer, messages in OpenAI's format. Out: rows for TRL, token ids, parsed completions.
Why: Qwen3's plain template drops the empty <think> block of earlier assistant turns, so an episode rendered as a whole
differs from the same episode as GRPO concatenates it. TRL's training template does not; it replaces the plain one when
the student is first loaded, and every checkpoint keeps it.
A call's arguments are JSON text in OpenAI's format; most templates read a mapping, and write text encoded twice or fail
on it. Which form a template reads is found out by rendering a call and parsing it back.
"""

import json
from typing import Any, NamedTuple

from apprentice.envs.defaults import failed_import
from apprentice.envs.tools import without_return
from apprentice.tasks.episodes.notations import END_OF_PROMPTS_THOUGHT, MARKS, before_call, notation_of
from apprentice.tasks.episodes.record import Message, arguments_of, ends_in_text, with_arguments
from apprentice.tasks.episodes.thinking import OTHER, THOUGHT, of_student, thinking_of, with_thought

TEMPLATE_ARGUMENTS = {"enable_thinking": False}
"""The chat template's arguments, the same for SFT, GRPO and evaluation. The template of a student that thinks sets the
switch itself (thinking.py)."""

CLOSING = {"role": "assistant", "content": "Done."}
"""The turn after a call that ended the episode; there is none after a last text. SFT trains it, so that loops that
generate one more turn, such as TRL's own, get a short one. Our GRPO and evaluation end the episode before it."""

PROBE = {"text": "-57", "number": 7}
"""Arguments of a probe call. A parser that guesses types reads the text as a number."""


class ChatFormat(NamedTuple):
    """What rendering and parsing probe messages shows of a chat template."""

    arguments: frozenset[str]
    """The forms of a call's arguments that the parser reads back unchanged: "text" for JSON text, "mapping"; empty for
    a template that renders no calls."""
    call_end: int | None
    """The token that ends a turn with a call; it need not be the tokenizer's end token."""
    ends: tuple[int, ...]
    """The tokens that end an assistant's turn, the tokenizer's end token first."""


_formats: dict[tuple[Any, ...], ChatFormat] = {}
"""By chat template, parser, end token and size of the vocabulary."""


def switch_sent(thinks: bool) -> dict[str, Any]:
    """The fields of a request to a served student that turn its template's thinking off. None for one that thinks: a
    server's parser of thoughts reads the request's switch."""
    return {} if thinks else {"chat_template_kwargs": TEMPLATE_ARGUMENTS}


def chat_format(tokenizer: Any) -> ChatFormat:
    """The format of a tokenizer's chat template, probed once."""
    response = getattr(tokenizer, "response_template", None)
    key = str(tokenizer.chat_template), str(response), tokenizer.eos_token_id, len(tokenizer)
    if key not in _formats:
        read = frozenset(form for form in ("text", "mapping") if _reads(tokenizer, form))
        question, called = _probe("mapping" if "mapping" in read else "text")
        call_end = _end(tokenizer, [question, called])
        ends = tokenizer.eos_token_id, call_end, _end(tokenizer, [question, CLOSING])
        _formats[key] = ChatFormat(read, call_end, tuple(dict.fromkeys(each for each in ends if each is not None)))
    return _formats[key]


def _probe(form: str) -> list[Message]:
    arguments = PROBE if form == "mapping" else json.dumps(PROBE)
    call = {"type": "function", "function": {"name": "probe", "arguments": arguments}}
    return [{"role": "user", "content": "probe"}, {"role": "assistant", "content": "", "tool_calls": [call]}]


def _reads(tokenizer: Any, form: str) -> bool:
    types = {"text": "string", "number": "integer"}
    properties = {name: {"type": type_, "description": name} for name, type_ in types.items()}
    parameters = {"type": "object", "properties": properties, "required": [*properties]}
    tools = [{"type": "function", "function": {"name": "probe", "description": "", "parameters": parameters}}]
    messages = _probe(form)
    try:
        prefix = _ids(tokenizer, messages[:1], tools, add_generation_prompt=True)
        whole = _ids(tokenizer, messages, tools)
        calls = _parsed(tokenizer, whole[len(prefix) :], prefix, tools).get("tool_calls") or [{}]
    except Exception as error:  # a template may raise anything
        if failed_import(error):
            raise
        return False
    return [call.get("function") for call in calls] == [{"name": "probe", "arguments": PROBE}]


def _end(tokenizer: Any, messages: list[Message]) -> int | None:
    """The special token that ends the last turn, white space aside; None where there is none."""
    try:
        ids = _ids(tokenizer, messages)
    except Exception as error:  # as above
        if failed_import(error):
            raise
        return None
    last = next((token for token in reversed(ids) if tokenizer.decode([token]).strip()), None)
    return last if last in tokenizer.get_added_vocab().values() else None


def as_read(tokenizer: Any, messages: list[Message]) -> list[Message]:
    """The messages with the arguments of all calls in a form that the chat template reads."""
    if not any(message.get("tool_calls") for message in messages):
        return messages
    forms = chat_format(tokenizer).arguments
    if len(forms) != 1:  # it reads both, or its check has refused it
        return messages
    return with_arguments(messages, _mapping if "mapping" in forms else _spelt)


def training_row(messages: list[Message], tools: list[dict[str, Any]], takes_text: bool = False) -> dict[str, Any]:
    """An episode as a row for TRL's SFTTrainer: the whole trajectory, native tool calls, and the closing turn, unless
    the episode ended with a text that the environment scores (`takes_text`).

    Arguments are JSON text, as in the published dataset: as Arrow structures, missing ones would become nulls and be
    rendered. Rollouts of before may have `return` in their tools.
    """
    return written_row(messages if takes_text and ends_in_text(messages) else [*messages, CLOSING], tools)


def row_of(episode: dict[str, Any]) -> dict[str, Any]:
    """A kept episode as such a row."""
    return training_row(episode["messages"], json.loads(episode["tools"]), episode.get("takes_text", False))


def written_row(messages: list[Message], tools: list[dict[str, Any]]) -> dict[str, Any]:
    """Messages as such a row, without a closing turn."""
    return {
        "messages": [_as_trained(message) for message in messages],
        "tools": json.dumps(without_return(tools), ensure_ascii=False),
        "chat_template_kwargs": TEMPLATE_ARGUMENTS,
    }


def _as_trained(message: Message) -> Message:
    kept: Message = {"role": message["role"], "content": message.get("content") or ""}
    if message.get(THOUGHT):
        kept[THOUGHT] = message[THOUGHT]
    if message.get("weight") == 0:  # of imported rows; no template renders it
        kept["weight"] = 0
    if message.get("tool_calls"):
        kept["tool_calls"] = [
            {"type": "function", "function": {"name": call["function"]["name"], "arguments": _spelt(call)}}
            for call in message["tool_calls"]
        ]
    return kept


def _spelt(call: dict[str, Any]) -> str:
    arguments = call["function"]["arguments"]
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    return json.dumps(arguments, ensure_ascii=False)


def _mapping(call: dict[str, Any]) -> Any:
    """The arguments as a mapping; as they are where they are none."""
    found = arguments_of(call)
    return found if isinstance(found, dict) else call["function"]["arguments"]


def prompt_ids(tokenizer: Any, messages: list[Message], tools: list[dict[str, Any]]) -> list[int]:
    """The token ids of the prompt, generation prompt included."""
    return _ids(tokenizer, as_read(tokenizer, messages), tools, add_generation_prompt=True)


def conversation_ids(tokenizer: Any, messages: list[Message], tools: list[dict[str, Any]]) -> list[int]:
    """The token ids of a conversation up to its last turn, which may be an assistant's; as a prompt is rendered."""
    return _ids(tokenizer, as_read(tokenizer, messages), tools)


def row_ids(tokenizer: Any, row: dict[str, Any]) -> list[int]:
    """The token ids of a training row, as SFTTrainer computes them."""
    messages = as_read(tokenizer, _closed(tokenizer, of_student(tokenizer, row["messages"])))
    return tokenizer.apply_chat_template(
        messages,
        tools=json.loads(row["tools"]),
        tokenize=True,
        return_dict=False,
        **row["chat_template_kwargs"],
    )


def _closed(tokenizer: Any, messages: list[Message]) -> list[Message]:
    """The messages, whose closing turn has a thought where the template has a block for it: the line breaks of an empty
    block may be another token than those with which a prompt begins it."""
    thinking = thinking_of(tokenizer)
    if thinking is None or thinking.mode != "native" or messages[-1] != CLOSING:
        return messages
    return [*messages[:-1], CLOSING | {THOUGHT: CLOSING["content"]}]


def may_lack_thoughts(tokenizer: Any) -> bool:
    """Whether turns without a thought begin with the ids of their prompts. Where a prompt opens the block of a thought,
    a turn without one may have no block, or line breaks of another token."""
    question, called = _probe("mapping" if "mapping" in chat_format(tokenizer).arguments else "text")
    messages = [question, called, {"role": "tool", "name": "probe", "content": "reply"}, called]
    prompts = ((place, _ids(tokenizer, messages[:place], add_generation_prompt=True)) for place in (1, 3))
    return all(_ids(tokenizer, messages[: place + 1])[: len(prompt)] == prompt for place, prompt in prompts)


def _ids(tokenizer: Any, messages: list[Message], tools: list[dict[str, Any]] | None = None, **how: Any) -> list[int]:
    return tokenizer.apply_chat_template(
        messages, tools=tools, tokenize=True, return_dict=False, **how, **TEMPLATE_ARGUMENTS
    )


def parse(tokenizer: Any, ids: list[int], prefix: list[int], tools: list[dict[str, Any]]) -> Message:
    """Parses a completion with GRPO's parser; a malformed tool call becomes plain content. The thought of a student
    that thinks is in `reasoning_content`; one that is cut off or over its budget has no call, and `cut_off`."""
    message, ends = _parsed(tokenizer, ids, prefix, tools), chat_format(tokenizer).ends
    for end in ends[1:]:  # parsers leave an end token in the content that is not the tokenizer's
        message["content"] = message["content"].removesuffix(tokenizer.decode([end]))
    if (thinking := thinking_of(tokenizer)) is None:
        return message
    text = tokenizer.decode([each for each in ids if each not in ends])
    thought = (message.get(THOUGHT) or message.get(OTHER) or "").strip()
    rest = MARKS.sub("", text.partition(thought)[2] if thought else text)
    is_whole = bool(ids) and ids[-1] in ends
    if calls := message.get("tool_calls"):
        before = before_call(rest, calls[0]["function"]["name"]).strip()
        if before not in message["content"]:  # parsers leave it out before a text
            message["content"] = f"{before}\n{message['content']}".strip()
    elif thinking.mode == "native" and not is_whole and (thought or END_OF_PROMPTS_THOUGHT.search(text)):
        is_whole = bool(rest.strip()) and not notation_of(rest, [])  # an answer in words, after its thought
    return with_thought(tokenizer, thinking, message, is_whole, ends)


def _parsed(tokenizer: Any, ids: list[int], prefix: list[int], tools: list[dict[str, Any]]) -> Message:
    from trl.chat_template_utils import parse_response

    try:
        return parse_response(tokenizer, ids, prefix=prefix, tools=list(tools))
    except RecursionError:  # deeply nested brackets; TRL catches all other errors
        return {"role": "assistant", "content": tokenizer.decode(ids, skip_special_tokens=True)}


IGNORED = -100
"""The label of a token without loss."""


def labelled(tokenizer: Any, row: dict[str, Any]) -> dict[str, list[int]]:
    """A row's token ids, and as labels those of its assistant's turns that GRPO would count as a completion: what
    follows the generation prompt, up to and including the token that ends the turn. A turn of weight 0 has none.

    The template must render earlier turns the same whatever follows them, which the check before a run makes sure of.
    """
    row = row | {"messages": of_student(tokenizer, row["messages"])}
    ids, tools, ends = row_ids(tokenizer, row), json.loads(row["tools"]), chat_format(tokenizer).ends
    labels = [IGNORED] * len(ids)
    for place, message in enumerate(row["messages"]):
        if message["role"] == "assistant" and message.get("weight") != 0:
            begin = len(prompt_ids(tokenizer, row["messages"][:place], tools))
            until = len(row_ids(tokenizer, row | {"messages": row["messages"][: place + 1]}))
            end = next((at + 1 for at in range(begin, until) if ids[at] in ends), until)
            labels[begin:end] = ids[begin:end]
    return {"input_ids": ids, "labels": labels}
