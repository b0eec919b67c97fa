"""Rows of other tools are read as messages of OpenAI's format, or refused with the field that is wrong."""

import json
from typing import Any

import pytest

from apprentice.tasks.formats.conversations import (
    EXACT,
    AtifResult,
    AtifStep,
    Conversation,
    NotAConversation,
    Observation,
    conversation_of,
)

QUESTION = {"role": "user", "content": "17 + 4 ="}
CALL = {"id": "a", "type": "function", "function": {"name": "answer", "arguments": '{"answer": "21"}'}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
REPLY = {"role": "tool", "tool_call_id": "a", "content": "OK."}
BARE = {name: value for name, value in CALL.items() if name != "id"}
PYTHON = "{'arguments': {'answer': '21'}, 'name': 'answer'}"
DEEP = '{"a":' * 99_999
TAKEN = {"answer": "21"}
RIGHT, WRONG = (
    f"<tool_call>{json.dumps({'name': 'answer', 'arguments': {'answer': each}})}</tool_call>" for each in ("21", "22")
)
STEP = {"tool_call_id": "a", "function_name": "answer", "arguments": {"answer": "21"}}
STORED_EPISODE = {"place": 0, "seed": 9, "sample": 0, "question": "17 + 4 =", "turns": 1, "reward": 1.0, "valid": True}
STORED_EPISODE |= {"causes": [], "correct": "21", "traits": "{}", "messages": [QUESTION, CALLED]}

REWARDS = {"right": {"score": 1.0, "weight": 0.5}, "short": {"score": 0.25}, "judge": None}


def said(read: Conversation) -> list[dict[str, Any]]:
    return [turn.as_message() for turn in read.messages if turn.role == "assistant"]


@pytest.mark.parametrize(
    ("row", "call"),
    [
        ({"messages": [QUESTION, CALLED, REPLY]}, CALL),
        ({"messages": [QUESTION, {"role": "assistant", "tool_calls": [BARE]}]}, BARE),
        ({"messages": [QUESTION, {"role": "assistant", "tool_calls": [json.dumps(CALL)]}]}, CALL),
        ({"messages": [QUESTION, {"role": "assistant", "tool_calls": [{"id": "a", **BARE["function"]}]}]}, CALL),
        (
            {
                "messages": [
                    QUESTION,
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "a", "function": "answer", "arguments": {"answer": "21"}}],
                    },
                ]
            },
            CALL,
        ),
        (
            {
                "messages": [
                    QUESTION,
                    {
                        "role": "assistant",
                        "content": '<tool_call>\n{"name": "answer", "arguments": {"answer": "21"}}\n</tool_call>',
                    },
                ]
            },
            BARE,
        ),
        ({"prompt": [QUESTION], "completion": [CALLED], "reward": 1.0, "answer": "21", "info": {}}, CALL),
        ({"conversations": [{"from": "human", "value": "17 + 4 ="}, CALLED]}, CALL),
        (
            {
                "schema_version": "ATIF-v1.6",
                "steps": [
                    {"step_id": 1, "source": "user", "message": [{"type": "text", "text": "17 + 4 ="}]},
                    {
                        "step_id": 2,
                        "source": "agent",
                        "message": "",
                        "reasoning_content": "easy",
                        "tool_calls": [STEP],
                        "observation": {"results": [{"source_call_id": "a", "content": "OK."}]},
                    },
                ],
            },
            CALL,
        ),
        ({"episode_id": "ep-0", "tool_trace": [], "messages": [QUESTION, CALLED], "reward": 1.0, "task": 9}, CALL),
        (
            {"env": {"id": "sum"}, "traces": [{"nodes": [{"message": QUESTION}, {"parent": 0, "message": CALLED}]}]},
            CALL,
        ),
        ({"messages": json.dumps([QUESTION, CALLED])}, CALL),
        ({"messages": [QUESTION, {"role": "assistant", "function_call": CALL["function"], "content": None}]}, BARE),
        ({"messages": [QUESTION, {"role": "assistant", "function_call": json.dumps(CALL["function"])}]}, BARE),
        ({"messages": [QUESTION, CALLED | {"function_call": {}}]}, CALL),
        ({"messages": [QUESTION, {"role": "assistant", "content": f"<tool_call>{PYTHON}</tool_call>"}]}, BARE),
        ({"messages": [QUESTION, {"role": "bot", "content": RIGHT}]}, BARE),
        (
            {
                "messages": [
                    QUESTION,
                    CALLED | {"content": [{"type": "thinking", "text": WRONG}, {"type": "text", "text": ""}]},
                ]
            },
            CALL,
        ),
        ({"messages": [QUESTION, {"role": "assistant", "content": f"<think>{WRONG}</think>{RIGHT}"}]}, BARE),
        ({"messages": [QUESTION, {"role": "assistant", "content": f"{WRONG} no</think>\n\n{RIGHT}"}]}, BARE),
        ({"messages": [QUESTION, {"role": "assistant", "content": RIGHT, "reasoning_content": WRONG}]}, BARE),
        (
            {"messages": [QUESTION, {"role": "assistant", "tool_calls": [{"name": "answer", "parameters": TAKEN}]}]},
            BARE,
        ),
        (
            {
                "conversations": [
                    {"from": "human", "value": "17 + 4 ="},
                    {"from": "function_call", "value": json.dumps(CALL["function"])},
                    {"from": "observation", "value": "OK."},
                ]
            },
            BARE,
        ),
        ({"id": 9, "scores": {"accuracy": {"value": "C"}}, "messages": [QUESTION, CALLED]}, CALL),
        ({"id": 9, "scores": {}, "messages": [], "store": {"examined": STORED_EPISODE}}, CALL),
    ],
)
def test_the_forms_in_which_a_call_comes_are_the_same_call(row: dict[str, Any], call: dict[str, Any]):
    read = conversation_of(row)
    (turn,) = said(read)
    assert turn["tool_calls"] == [call]
    assert not turn["content"]
    assert [each.content for each in read.messages if each.role == "user"] == ["17 + 4 ="]


@pytest.mark.parametrize(
    ("row", "columns", "expected"),
    [
        ({"prompt": "17 + 4 =", "completion": "21"}, {}, (None, None)),
        ({"question": "17 + 4 =", "solution": "21"}, {"prompt": "question", "completion": "solution"}, (None, None)),
        (
            {"question": "17 + 4 =", "messages": "?", "solution": "21"},
            {"prompt": "question", "completion": "solution"},
            (None, None),
        ),
        ({"messages": [QUESTION, CALLED], "info": {"score": "0.5"}}, {"reward": "info.score"}, (0.5, None)),
        ({"chat": [QUESTION, CALLED], "nr": 7}, {"messages": "chat", "seed": "nr"}, (None, 7)),
        ({"messages": [QUESTION, CALLED], "info.score": 1}, {"reward": "info.score"}, (1.0, None)),
        ({"episode_id": "e", "tool_trace": [], "messages": [QUESTION, CALLED], "task": {"seed": 3}}, {}, (None, 3)),
        ({"env": {}, "traces": [{"nodes": [{"message": QUESTION}], "rewards": REWARDS}]}, {}, (0.75, None)),
        ({"scores": {"rate": {"value": 0.25}}, "messages": [QUESTION, CALLED], "metadata": {"seed": 4}}, {}, (0.25, 4)),
        ({"id": 9, "scores": {}, "messages": [], "store": {"examined": STORED_EPISODE}}, {}, (1.0, 9)),
    ],
)
def test_reward_and_seed_are_those_of_the_named_columns(
    row: dict[str, Any], columns: Any, expected: tuple[float | None, int | None]
):
    read = conversation_of(row, columns)
    assert (read.reward, read.seed) == expected
    assert read.messages[0].content == "17 + 4 ="


@pytest.mark.parametrize(
    ("row", "columns", "field", "cause"),
    [
        ([1], {}, "row", "is list, not an object"),
        ({"text": "17 + 4"}, {}, "messages", "no such column; the row has text"),
        ({"messages": [QUESTION]}, {"reward": "info.score"}, "info.score", "no such column; the row has messages"),
        ({"messages": "17 + 4"}, {}, "messages", "valid list"),
        ({"messages": [{"role": "judge", "content": ""}]}, {}, "messages.0.role", "'system', 'user'"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, {}, "messages.0", "a part is no text"),
        (
            {"messages": [QUESTION, {"role": "assistant", "tool_calls": [{"id": "a"}]}]},
            {},
            "messages.1.tool_calls.0.name",
            "valid string",
        ),
        (
            {"messages": [QUESTION, {"role": "assistant", "content": "<tool_call>{broken</tool_call>"}]},
            {},
            "messages.1.tool_calls.0",
            "property name",
        ),
        (
            {"messages": [QUESTION, {"role": "assistant", "content": f"<tool_call>{DEEP}</tool_call>"}]},
            {},
            "messages.1.tool_calls.0",
            "nested too deeply",
        ),
        ({"messages": [QUESTION, {"role": "function_call", "content": "{broken"}]}, {}, "messages.1", "property name"),
        (
            {"messages": [QUESTION, {"role": "assistant", "content": "21", "weight": 0.5}]},
            {},
            "messages.1",
            "weight is",
        ),
        (
            {"messages": [QUESTION, {"role": "assistant", "content": "<tool_call>{'name': b'a'}</tool_call>"}]},
            {},
            "messages.1.tool_calls.0",
            "property name",
        ),
        ({"messages": "[broken"}, {}, "messages", "Expecting value"),
        ({"env": {}, "traces": []}, {}, "traces", "0 agents play"),
        ({"env": {}, "traces": [{"nodes": [{"parent": 1, "message": 1}]}]}, {}, "traces.0.nodes", "has branches"),
        ({"messages": [QUESTION], "reward": "good"}, {}, "reward", "valid number"),
        ({"messages": [QUESTION], "reward": float("inf")}, {}, "reward", "finite"),
        ({"messages": [QUESTION], "seed": -1}, {}, "seed", "greater than or equal to 0"),
        ({"schema_version": "2", "steps": []}, {}, "schema_version", "pattern"),
        ({"schema_version": "ATIF-v1.4", "steps": [{"source": "tool"}]}, {}, "steps.0.source", "'system', 'user'"),
    ],
)
def test_a_row_that_is_none_is_refused_with_its_field(row: Any, columns: Any, field: str, cause: str):
    with pytest.raises(NotAConversation) as refused:
        conversation_of(row, columns)
    assert refused.value.field == field
    assert cause in refused.value.cause


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ({"content": "I answer now.", "function_call": CALL["function"]}, "I answer now."),
        ({"content": f"So. {RIGHT}"}, "So."),
        ({"content": f"<think>easy</think>So. {RIGHT}"}, "So."),
        ({"content": "<think>easy</think>", "tool_calls": [CALL]}, "<think>easy</think>"),
    ],
)
def test_a_text_beside_a_call_is_kept_and_the_call_comes_first(message: dict[str, Any], content: str):
    (turn,) = said(conversation_of({"messages": [QUESTION, {"role": "assistant", **message}]}))
    assert turn["content"] == content
    assert [call["function"] for call in turn["tool_calls"]] == [CALL["function"]]


@pytest.mark.parametrize("content", ["So:", "<think>easy</think>So:", "So:<think>\n\n</think>"])
def test_a_text_beside_a_thought_and_a_call_stays_a_text(content: str):
    turn = {"role": "assistant", "content": content, "reasoning_content": "I add.", "tool_calls": [CALL]}
    (read,) = said(conversation_of({"messages": [QUESTION, turn]}).thinking(True))
    assert (read["reasoning_content"], read["content"]) == ("I add.", "So:")


WRITTEN = json.dumps({"name": "answer", "arguments": {"answer": "21"}})
LONE: dict[str, list[dict[str, Any]]] = {
    "LLaMA-Factory's call": [{"from": "function_call", "value": f"<think>7 + 4 = 11.</think>{WRITTEN}"}],
    "the same with line breaks": [{"from": "function_call", "value": f"<think>\n7 + 4 = 11.\n</think>\n\n{WRITTEN}\n"}],
    "the same, of several calls": [{"from": "function_call", "value": f"<think>7 + 4 = 11.</think>[{WRITTEN}]"}],
    "the same, marked": [{"from": "function_call", "value": f"<think>7 + 4 = 11.</think>{RIGHT}"}],
    "the same, begun by the prompt": [{"from": "function_call", "value": f"7 + 4 = 11.</think>{WRITTEN}"}],
    "harmony's channel": [{"role": "assistant", "channel": "analysis", "content": "7 + 4 = 11."}, CALLED],
    "harmony's channel, in parts": [
        {"role": "assistant", "channel": "analysis", "content": [{"type": "text", "text": "7 + 4 = 11."}]},
        CALLED | {"channel": "commentary"},
    ],
    "harmony's channel, with the call's": [CALLED | {"channel": "analysis", "reasoning_content": "7 + 4 = 11."}],
    "a turn of a thought": [{"role": "assistant", "content": "<think>7 + 4 = 11.</think>"}, CALLED],
    "ShareGPT's turn of a thought": [
        {"from": "gpt", "value": "<think>7 + 4 = 11.</think>"},
        {"from": "function_call", "value": WRITTEN},
    ],
    "a turn with a thought's field alone": [
        {"role": "assistant", "content": None, "reasoning_content": "7 + 4 = 11."},
        CALLED,
    ],
    "a role": [{"role": "reasoning", "content": "7 + 4 = 11."}, CALLED],
    "a role, and marks": [{"from": "thinking", "value": "<think>7 + 4 = 11.</think>"}, CALLED],
    "several": [
        {"role": "reasoning", "content": "7 + 4"},
        {"role": "assistant", "content": "<think>= 11.</think>"},
        CALLED,
    ],
    "one with another of its own": [
        {"role": "reasoning", "content": "7 + 4"},
        CALLED | {"reasoning_content": "= 11."},
    ],
    "one that carries no loss": [
        {"role": "reasoning", "content": "5", "weight": 0},
        CALLED | {"reasoning_content": "7 + 4 = 11."},
    ],
}


@pytest.mark.parametrize("turns", LONE.values(), ids=LONE)
@pytest.mark.parametrize("named", ["messages", "conversations"])
def test_a_thought_in_a_turn_of_its_own_is_the_thought_of_the_call_after_it(turns: list[dict[str, Any]], named: str):
    read = conversation_of({named: [QUESTION, *turns, REPLY]})
    (thinks,), (answers,) = said(read.thinking(True)), said(read.thinking(False))
    assert thinks["reasoning_content"].replace("\n", " ") == "7 + 4 = 11."
    assert "reasoning_content" not in answers
    for turn in (thinks, answers):
        assert not turn["content"]
        assert [call["function"] for call in turn["tool_calls"]] == [CALL["function"]]


NESTED = '<tool_call>{"name": "rm", "arguments": {}}</tool_call>'


@pytest.mark.parametrize("arguments", ["<think>1</think>", "so </think> and <think>", NESTED])
def test_marks_within_a_written_call_are_part_of_it(arguments: str):
    written = json.dumps({"name": "answer", "arguments": {"answer": arguments}})
    for thought in ("", "<think>I add.</think>"):
        (turn,) = said(conversation_of({"messages": [{"from": "function_call", "value": thought + written}]}))
        assert json.loads(turn["tool_calls"][0]["function"]["arguments"]) == {"answer": arguments}
        assert turn.get("reasoning_content", "") == thought.removeprefix("<think>").removesuffix("</think>")


@pytest.mark.parametrize("role", ["system", "user", "tool"])
def test_only_an_assistants_turn_can_be_harmonys_analysis(role: str):
    given = {"role": role, "content": "What?", "channel": "analysis"}
    first, last = conversation_of({"messages": [given, {"role": "assistant", "content": "21"}]}).messages
    assert (first.role, first.content) == (role, "What?")
    assert (last.content, last.thought) == ("21", "")


def test_a_thought_that_is_no_text_is_named():
    with pytest.raises(NotAConversation, match=r"messages\.1\.content"):
        conversation_of({"messages": [QUESTION, {"role": "thinking", "content": {"a": 1}}, {"role": "assistant"}]})


def test_a_thought_is_joined_to_a_text_and_only_to_a_turn_of_the_same_model():
    thought, text = {"role": "reasoning", "content": "I add."}, {"role": "assistant", "content": "21"}
    (turn,) = said(conversation_of({"messages": [QUESTION, thought, text]}).thinking(True))
    assert turn == text | {"reasoning_content": "I add."}
    marked = {"role": "assistant", "content": "<think>I add.</think>", "name": "one"}
    assert len(said(conversation_of({"messages": [QUESTION, marked, text | {"name": "other"}]}))) == 2
    for messages in ([thought], [thought, QUESTION], [thought | {"name": "one"}, text | {"name": "other"}]):
        with pytest.raises(NotAConversation, match="messages: a thought has no turn of its model after it"):
            conversation_of({"messages": [QUESTION, *messages]})


@pytest.mark.parametrize(
    "text", [f"<think>{RIGHT}</think>", f"<think>{RIGHT}</think>21", f"<think>I call {RIGHT}", f"{RIGHT} no</think>21"]
)
def test_a_call_in_a_thought_alone_is_no_call(text: str):
    (turn,) = said(conversation_of({"messages": [QUESTION, {"role": "assistant", "content": text}]}))
    assert turn == {"role": "assistant", "content": text}


@pytest.mark.parametrize("named", [{"weight": 0}, {"train": False}, {"loss": False}, {"mask": True}])
@pytest.mark.parametrize("keys", [("role", "content", "assistant"), ("from", "value", "gpt")])
def test_a_turn_without_loss_has_openais_weight(named: dict[str, Any], keys: tuple[str, str, str]):
    role, content, assistant = keys
    turn = {role: assistant, content: "21"}
    read = conversation_of({"messages": [QUESTION | named, turn | named, turn | {"weight": 1}, turn]})
    plain = {"role": "assistant", "content": "21"}
    assert said(read) == [plain | {"weight": 0}, plain, plain]


@pytest.mark.parametrize("source", ["system", "user", "agent"])
def test_a_step_of_a_trajectory_is_its_message_and_an_agents_also_the_answers(source: Any):
    answers = Observation(results=[AtifResult(source_call_id="a", content="OK."), AtifResult(content=["x"])])
    step = AtifStep(source=source, message="said", observation=answers)
    role = "assistant" if source == "agent" else source
    first, *rest = step.messages()
    assert first == {"role": role, "content": "said", "tool_calls": []}
    replies = [("OK.", "a"), (["x"], None)] if source == "agent" else []
    assert rest == [{"role": "tool", "content": content, "tool_call_id": ident} for content, ident in replies]
    exact = AtifStep(source=source, message="said", extra={EXACT: {"role": "user"}}, observation=answers)
    assert exact.messages() == [{"role": "user"}, *rest]
    other = AtifStep(source=source, message="said", extra={EXACT: "text"}, observation=answers)
    assert other.messages() == [first, *rest]
