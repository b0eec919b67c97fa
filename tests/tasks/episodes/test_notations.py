"""A call in a text is read in one notation, refused by the name of any other, and never taken for prose."""

from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.episodes.notations import (
    NotAConversation,
    arguments_in,
    calls_in,
    carries_loss,
    check_loss,
    check_texts,
    notation_of,
    without_thoughts,
)

ECHO = EnvironmentSpec(name="echo").make().schemas


def tool(name: str, *parameters: str) -> dict[str, Any]:
    properties = {each: {"type": "string"} for each in parameters}
    return {"function": {"name": name, "parameters": {"properties": properties, "required": [*parameters]}}}


ANSWER = [tool("answer", "answer")]
LOOK = [tool("look")]
GIVEN = '{"message": "sunday"}'


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (f'[{{"name": "echo", "arguments": {GIVEN}}}]', 'xLAM\'s {"name", "arguments"}'),
        (f'{{"arguments": {GIVEN}, "name": "echo"}}', "xLAM"),
        (f'Sure!\n```json\n{{"name": "echo", "arguments": {GIVEN}}}\n```', "xLAM"),
        ('[{"name": "get_weather", "arguments": {"city": "Paris"}}]', "xLAM"),
        (f'{{"name": "echo", "parameters": {GIVEN}}}', 'Llama\'s {"name", "parameters"}'),
        (f'{{"type": "function", "name": "echo", "parameters": {GIVEN}}}', "Llama"),
        (f'<|python_tag|>{{"name": "echo", "parameters": {GIVEN}}}', "Llama's <|python_tag|>"),
        ('<|python_tag|>echo.call(message="sunday")<|eom_id|>', "Llama's <|python_tag|>"),
        ('[echo(message="sunday")]', "ToolACE's [NAME(…)]"),
        ('[echo(message="a"), echo(message="b")]', "ToolACE"),
        ('[Get Weather(city="Paris"), other()]', "ToolACE"),
        ('echo(message="sunday")', "Python's NAME(…)"),
        ("I call echo(message='sunday') now.", "Python"),
        ('echo("sunday")', "Python"),
        ("echo(sunday)", "Python"),
        ('```python\nprint(default_api.echo(message="sunday"))\n```', "Python"),
        (f"echo({GIVEN})", "Python"),
        ('echo(\n    message="sunday",\n)', "Python"),
        ('echo ("sunday")', "a tool's name with brackets"),
        ("echo[sunday]", "a tool's name with brackets"),
        ('[echo message="sunday"]', "a tool's name with brackets"),
        ('(echo "sunday")', "a tool's name with brackets"),
        ('<functioncall> {"name": "echo", "arguments": \'' + GIVEN + "'} <|endoftext|>", "Glaive's <functioncall>"),
        (f'[TOOL_CALLS] [{{"name": "echo", "arguments": {GIVEN}}}]', "Mistral's [TOOL_CALLS]"),
        (f"[TOOL_CALLS]echo[ARGS]{GIVEN}", "Mistral's [TOOL_CALLS]"),
        (f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>echo\n```json\n{GIVEN}\n```", "DeepSeek"),
        (f"<｜tool▁sep｜>echo {GIVEN}", "DeepSeek"),
        (f"<|tool_calls_section_begin|><|tool_call_begin|>functions.echo:0<|tool_call_argument_begin|>{GIVEN}", "Kimi"),
        (f'<|tool_call|>[{{"name": "echo", "arguments": {GIVEN}}}]<|/tool_call|>', "Phi's <|tool_call|>"),
        ("<|tool_call_start|>[echo(message='sunday')]<|tool_call_end|>", "LFM2"),
        ("<|tool_call>call:echo{message:sunday}<tool_call|>", "Gemma's <|tool_call>"),
        ("<start_function_call>call:echo{message:<escape>sunday<escape>}<end_function_call>", "Gemma's <|tool_call>"),
        ("```tool_code\nprint(echo(message='sunday'))\n```", "Gemma's ```tool_code"),
        ('<|action_start|><|plugin|>\n{"name": "x"}<|action_end|>', "InternLM"),
        ('Action: ```json\n[{"tool_name": "echo", "parameters": {"message": "a"}}]\n```', "Command R's Action"),
        (f"<|channel|>commentary to=functions.echo <|constrain|>json<|message|>{GIVEN}<|call|>", "gpt-oss"),
        (f"commentary to=functions.echo json{GIVEN}", "gpt-oss"),
        (f"functions.echo({GIVEN})", "OpenAI's functions.NAME"),
        (f"functions.echo:0 {GIVEN}", "OpenAI's functions.NAME"),
        (f"<function=echo>{GIVEN}</function>", "<function=NAME>"),
        (f">>>echo\n{GIVEN}", "<function=NAME>"),
        (f"<|from|>assistant\n<|recipient|>echo\n<|content|>{GIVEN}", "Functionary's"),
        ('<invoke name="echo"><parameter name="message">sunday</parameter></invoke>', "Anthropic's <invoke>"),
        ("<function_calls>\n<invoke>\n<tool_name>echo</tool_name>\n</invoke>\n</function_calls>", "Anthropic"),
        ('<minimax:tool_call><invoke name="echo"></invoke></minimax:tool_call>', "Anthropic"),
        (f"Thought: I repeat.\nAction: echo\nAction Input: {GIVEN}", "ReAct's Action Input"),
        ("**Action**: echo\n**Action Input**: sunday", "ReAct's Action Input"),
        ("Action: echo", "ReAct's Action"),
        ("Thought: x\nAction 1: echo[sunday]", "ReAct's Action"),
        (f"✿FUNCTION✿: echo\n✿ARGS✿: {GIVEN}", "Qwen-Agent"),
        (f'<TOOLCALL>[{{"name": "echo", "arguments": {GIVEN}}}]</TOOLCALL>', "Nemotron"),
        (f'<tool_call>\n{{"name": "echo", "arguments": {GIVEN}}}', "<tool_call> without an end"),
        (
            "<tool_call>\n<function=echo>\n<parameter=message>\na\n</parameter>\n</function>\n</tool_call>",
            "Qwen3-Coder",
        ),
        (
            "<tool_call>echo\n<arg_key>message</arg_key>\n<arg_value>a</arg_value>\n</tool_call>",
            "without a JSON object",
        ),
        ('<tool_calls>[{"name": "echo"}]</tool_calls>', "marked by <tool_calls>"),
        (f"[TOOL_REQUEST]{GIVEN}[END_TOOL_REQUEST]", "marked by [TOOL_REQUEST]"),
        ("<|FunctionCallBegin|>[]<|FunctionCallEnd|>", "marked by <|FunctionCallBegin|>"),
        ('<|tools_prefix|>[{"echo": {}}]<|tools_suffix|>', "marked by <|tools_prefix|>"),
        ("```tool_call\necho\n```", "marked by ```tool_call"),
        (f"echo\n{GIVEN}", "GLM's NAME {…}"),
        (f"echo: {GIVEN}", "GLM's NAME {…}"),
        (f'{{"tool": "echo", "input": {GIVEN}}}', "xLAM"),
        ('{"action": "echo", "message": "sunday"}', "a JSON object that names a tool"),
        ('{"recipient_name": "functions.echo"}', "a JSON object that names a tool"),
        ("{'function': 'echo'}", "a JSON object that names a tool"),
        (f'{{"echo": {GIVEN}}}', "a JSON object with a tool's name as its key"),
        ("<echo><message>sunday</message></echo>", "XML with a tool's name"),
        ('<echo message="sunday"/>', "XML with a tool's name"),
        ("<function>echo</function>", "XML with a tool's name"),
        ('<tool name="echo">sunday</tool>', "XML with a tool's name"),
        (GIVEN, "a call's arguments alone"),
        (f"```json\n{GIVEN}\n```", "a call's arguments alone"),
    ],
)
def test_a_call_in_a_text_is_called_by_the_name_of_its_notation(text: str, name: str):
    assert name in notation_of(text, ECHO)


@pytest.mark.parametrize(
    ("text", "tools", "is_call"),
    [
        ('{"answer": "21"}', ANSWER, True),
        ("<answer>21</answer>", ANSWER, True),
        ("answer(21)", ANSWER, True),
        ("look()", LOOK, True),
        ("I look() first.", LOOK, True),
        ("look {}", LOOK, True),
        ('{"name": "look"}', LOOK, True),
        ("sunday", ECHO, False),
        ("", ECHO, False),
        ("echo", ECHO, False),
        ("I use the tool echo: it repeats a message.", ECHO, False),
        ("echo (the nymph) was cursed by Hera", ECHO, False),
        ("Echo(mythology)", ECHO, False),
        ("the echo [of a word] fades; an echo, a {set} of them", ECHO, False),
        ("the echo[1] was loud", ECHO, False),
        ('$ echo "hello" | wc -c', ECHO, False),
        ('["echo", "wall", "nymph"]', ECHO, False),
        ('{"word": "echo", "length": 4}', ECHO, False),
        ("[echo](https://example.org/echo)", ECHO, False),
        ("re-echo(x) and echoes(x) and my_echo(x)", ECHO, False),
        ("The answer is 21.", ANSWER, False),
        ("Answer: 21", ANSWER, False),
        ("My answer (a guess) is 21, with f(x) = [x] and {x}", ANSWER, False),
        ("def answer(question):\n    return 21", ANSWER, False),
        ("answer = [int(x) for x in line.split()]\nresult = {'a': answer}", ANSWER, False),
        ("\\boxed{21}", ANSWER, False),
        ("<b>21</b>", ANSWER, False),
        ('{"question": "17 + 4", "result": 21}', ANSWER, False),
        ("[21]", ANSWER, False),
        ("[f(x)]", ANSWER, False),
        ("The action: go north. Input: none.", LOOK, False),
        ("usage: look [ARGS]", LOOK, False),
        ("move(disk, from=a, to=b) { }", LOOK, False),
    ],
)
def test_prose_code_and_data_that_mention_a_tool_are_no_call(text: str, tools: list[dict[str, Any]], is_call: bool):
    assert bool(notation_of(text, tools)) == is_call, notation_of(text, tools)


@pytest.mark.parametrize(
    ("text", "calls", "rest"),
    [
        ("<tool_call>{1}</tool_call>", ["{1}"], ""),
        ("So: <tool_call>{1}</tool_call> <tool_call>{2}</tool_call>", ["{1}", "{2}"], "So:"),
        ("<think>try <tool_call>{0}</tool_call> no</think><tool_call>{1}</tool_call>", ["{1}"], ""),
        ("<think>try <tool_call>{0}</tool_call></think>17", [], "17"),
        ("<thinking><tool_call>{0}</tool_call></thinking>", [], ""),
        ("<think time=3><tool_call>{0}</tool_call></think><tool_call>{1}</tool_call>", ["{1}"], ""),
        ("[THINK]<tool_call>{0}</tool_call>[/THINK]<tool_call>{1}</tool_call>", ["{1}"], ""),
        ("<|channel|>analysis<|message|><tool_call>{0}</tool_call><|end|>17", [], "17"),
        ("try <tool_call>{0}</tool_call></think>\n\n<tool_call>{1}</tool_call>", ["{1}"], ""),
        ("<think>it goes on <tool_call>{0}</tool_call>", [], ""),
        ('<tool_call>{"message": "<think>"}</tool_call>', ['{"message": "<think>"}'], ""),
        ('<tool_call>{"message": "</think>"}</tool_call>', ['{"message": "</think>"}'], ""),
        ("<think>a</think><tool_call>{1}</tool_call><think>b</think> end", ["{1}"], "end"),
    ],
)
def test_a_call_in_a_thought_is_none(text: str, calls: list[str], rest: str):
    assert calls_in(text) == (calls, rest)


def test_a_text_without_a_thought_stays_as_it_is():
    assert without_thoughts(" a <b> \n") == " a <b> \n"
    assert without_thoughts("<think>a</think>\n17 ") == "17"
    assert without_thoughts("a</think>17") == "17"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({}, True),
        ({"weight": 1}, True),
        ({"weight": 0}, False),
        ({"weight": 0.0}, False),
        ({"weight": None}, True),
        ({"train": False}, False),
        ({"train": True}, True),
        ({"training": False}, False),
        ({"train_on_turn": False}, False),
        ({"trainable": False}, False),
        ({"loss": False}, False),
        ({"loss_mask": 0}, False),
        ({"mask": True}, False),
        ({"masked": False}, True),
        ({"weight": 1, "train": False}, False),
        ({"content": [{"type": "text", "text": "a", "train": True}]}, True),
    ],
)
def test_a_turn_carries_loss_by_the_field_of_any_tool(message: dict[str, Any], expected: bool):
    assert carries_loss(message) is expected


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ({"weight": 0.5}, "weight is '0.5', which is neither 0 nor 1"),
        ({"mask": "User"}, "mask is 'User'"),
        ({"train_detail": [{"begin_offset": 0, "end_offset": 8, "train": False}]}, "train_detail trains parts"),
        ({"content": [{"type": "text", "text": "a", "train": False}]}, "a part of a turn carries no loss"),
    ],
)
def test_loss_on_a_share_or_a_part_of_a_turn_is_refused(message: dict[str, Any], cause: str):
    with pytest.raises(ValueError, match=cause):
        carries_loss(message)


def test_a_row_is_refused_with_the_field_and_the_name_of_its_notation():
    with pytest.raises(NotAConversation) as refused:
        check_texts([("messages.1.content", "17"), ("messages.3.content", "[echo(message='a')]")], ECHO, None)
    assert refused.value.field == "messages.3.content"
    assert "not read, ToolACE's [NAME(…)]: [echo(message='a')]; give calls as `tool_calls`" in refused.value.cause
    check_texts([("messages.1.content", "<think>echo(message='a')</think>17")], ECHO, None)


@pytest.mark.parametrize("others", ['[{"type": "function", "function": {"name": "say"}}]', [{"name": "say"}]])
def test_the_tools_of_the_row_itself_make_a_call_too(others: Any):
    check_texts([("content", "say('a')")], ECHO, "no JSON")
    with pytest.raises(NotAConversation, match=r"Python's NAME"):
        check_texts([("content", "say('a')")], ECHO, others)


def test_texts_in_arguments_are_found_in_any_depth():
    calls = [
        {"function": {"name": "echo", "arguments": each}} for each in ('{"a": [1, {"b": "c"}], "d": "e"}', "{broken")
    ]
    assert [text for _, text in arguments_in([{"tool_calls": calls}, {"content": "x"}])] == ["e", "c", "{broken"]


def test_where_nothing_carries_loss_there_is_nothing_to_learn():
    user, said = {"role": "user", "content": ""}, {"role": "assistant", "content": ""}
    check_loss([user, said | {"weight": 0}, said])
    with pytest.raises(NotAConversation, match="every turn of the assistant has weight 0"):
        check_loss([user, said | {"weight": 0}])


@pytest.mark.parametrize(
    "part",
    [
        "echo",
        "{",
        '"name":',
        "<",
        "[",
        "\n",
        " ",
        "echo(",
        "Action: ",
        "<think>",
        "</think>",
        "<think a=",
        "<think a=b>",
    ],
)
def test_a_long_text_is_looked_through_in_a_moment(part: str):
    text = part * (131_072 // len(part))
    assert isinstance(notation_of(without_thoughts(text), ECHO), str)
