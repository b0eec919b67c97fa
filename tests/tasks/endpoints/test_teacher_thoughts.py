"""A teacher's thoughts: asked for in the system prompt, read in every form, asked for again where they are too long."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.player import Player
from apprentice.envs.wire.session import Session
from apprentice.tasks.collect import play_one, play_shortest
from apprentice.tasks.endpoints.budget import Budget
from apprentice.tasks.endpoints.teacher import Spent, Teacher
from apprentice.tasks.endpoints.teacher_thoughts import is_too_long
from apprentice.tasks.episodes.notations import split_thought
from apprentice.tasks.episodes.record import Record
from apprentice.tasks.episodes.thinking import CUT_OFF, THOUGHT
from apprentice.tasks.settings.endpoint import EndpointSpec, TeacherSpec, ThoughtsSpec
from apprentice.tasks.settings.spec import ThinkingSpec
from tests.endpoint import KEY, Endpoint, call, say
from tests.served_desk import OLD, REFUSAL, ServedDesk, served_desk

CALL = {"tool_calls": [{"function": {"name": "answer", "arguments": "{}"}}]}
LOOK = call("look_up", "{}")
SECRET = [{"type": "reasoning.encrypted", "data": "gAAAA"}]
SUMMED = {
    "reasoning": "I add.",
    "reasoning_details": [{"type": "reasoning.summary", "summary": "I add."}, *SECRET],
}
"""Of a provider that hides its reasoning."""


@pytest.mark.parametrize(
    ("message", "thought", "content"),
    [
        ({"reasoning_content": " 1 + 1 = 2. ", "content": "Done."} | CALL, "1 + 1 = 2.", "Done."),
        ({"reasoning": "1 + 1 = 2.", "content": None} | CALL, "1 + 1 = 2.", None),
        ({"reasoning_details": [{"type": "reasoning.text", "text": "1 + 1 = 2."}]} | CALL, "1 + 1 = 2.", None),
        ({"reasoning_details": [{"type": "reasoning.summary", "summary": "I add."}]} | CALL, "I add.", None),
        (SUMMED | {"content": "1 + 1 = 2."} | CALL, "1 + 1 = 2.", ""),
        (SUMMED | {"content": "<think>1 + 1 = 2.</think>"} | CALL, "1 + 1 = 2.", ""),
        (SUMMED | {"content": ""} | CALL, "I add.", ""),
        ({"reasoning": "1 + 1 = 2.", "reasoning_details": SECRET, "content": "Done."} | CALL, "1 + 1 = 2.", "Done."),
        (
            {"content": [{"type": "thinking", "thinking": "1 + 1 = 2."}, {"type": "text", "text": "So."}]} | CALL,
            "1 + 1 = 2.",
            [{"type": "text", "text": "So."}],
        ),
        ({"content": "<think>\n1 + 1 = 2.\n</think>\n\n2"}, "1 + 1 = 2.", "2"),
        ({"content": "1 + 1 = 2.</think>2"}, "1 + 1 = 2.", "2"),
        ({"content": "1 + 1 = 2."} | CALL, "1 + 1 = 2.", ""),
        ({"content": "<think>\n\n</think>\n\n1 + 1 = 2."} | CALL, "1 + 1 = 2.", ""),
        ({"content": "I add.</think>So <think>1 + 1 = 2.</think>2"}, "I add.\n1 + 1 = 2.", "So 2"),
        ({"content": "<THINK>1 + 1 = 2.</THINK>2"}, "1 + 1 = 2.", "2"),
        ({"content": "<|channel>thought\n1 + 1 = 2.<channel|>2"}, "1 + 1 = 2.", "2"),
        (
            {
                "content": "<|channel|>analysis<|message|>1 + 1 = 2.<|end|>"
                "<|start|>assistant<|channel|>final<|message|>2<|return|>"
            },
            "1 + 1 = 2.",
            "2",
        ),
        (
            {"content": [{"type": "reasoning", "content": [{"type": "reasoning_text", "text": "1 + 1 = 2."}]}]} | CALL,
            "1 + 1 = 2.",
            [],
        ),
        (
            {"content": [{"type": "reasoning", "reasoning": "gAAAA", "redacted": True, "summary": "I add."}]} | CALL,
            "I add.",
            [],
        ),
        ({"thinking_blocks": [{"type": "thinking", "thinking": "1 + 1 = 2."}], "content": ""} | CALL, "1 + 1 = 2.", ""),
        ({"reasoning_text": "1 + 1 = 2.", "content": "Done."} | CALL, "1 + 1 = 2.", "Done."),
        ({"provider_specific_fields": {"reasoning_content": "1 + 1 = 2."}, "content": None} | CALL, "1 + 1 = 2.", None),
        ({"provider_specific_fields": {"thinking_blocks": [{"thinking": "I add."}]}, "content": "2"}, "I add.", "2"),
        ({"provider_specific_fields": {"reasoning": "5"}, "reasoning": "I add.", "content": "2"}, "I add.", "2"),
        ({"provider_specific_fields": None, "content": "2"}, "", "2"),
        ({"provider_specific_fields": {"citations": ["a"]}, "content": "2"}, "", "2"),
        (SUMMED | {"provider_specific_fields": SUMMED, "content": "1 + 1 = 2."} | CALL, "1 + 1 = 2.", ""),
        ({"content": [{"type": "reasoning_text", "text": "1 + 1 = 2."}]} | CALL, "1 + 1 = 2.", []),
        (
            {"content": [{"type": "reasoning_content", "reasoning_content": {"text": "I add.", "signature": "x"}}]}
            | CALL,
            "I add.",
            [],
        ),
        ({"content": "<think time=3>1 + 1 = 2.</think>2"}, "1 + 1 = 2.", "2"),
        ({"content": '<thinking budget = "low" a="b">\n1 + 1 = 2.\n</thinking>\n2'}, "1 + 1 = 2.", "2"),
        ({"content": "<think of it>2"}, "", "<think of it>2"),
        ({"content": "1 + 1 = 2."}, "", "1 + 1 = 2."),
        ({"content": ""} | CALL, "", ""),
        ({"reasoning_content": None, "content": None} | CALL, "", None),
    ],
)
def test_a_thought_is_read_in_every_form(message: dict[str, Any], thought: str, content: Any):
    assert split_thought(message) == (thought, content)


def detail(text: str, **about: Any) -> dict[str, Any]:
    return {"type": "reasoning.text", "text": text} | about


def parts(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


def thinking(*texts: str, **about: Any) -> dict[str, Any]:
    return {"type": "thinking", "thinking": parts(*texts)} | about


FRAGMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "details of a stream": ({"reasoning_details": [detail("1 + 1"), detail(" = 2")]}, "1 + 1 = 2"),
    "details of a stream, numbered": (
        {"reasoning_details": [detail("1 + 1", index=0), detail(" = ", index=0), detail("2", index=0, signature="x")]},
        "1 + 1 = 2",
    ),
    "the middle of a word": (
        {"reasoning_details": [detail(each, index=0) for each in ("I a", "dd t", "ens.")]},
        "I add tens.",
    ),
    "a decimal": ({"reasoning_details": [detail("It is 3.", index=0), detail("14.", index=0)]}, "It is 3.14."),
    "chunks within a block": ({"content": [thinking("1 + 1", " = 2")]}, "1 + 1 = 2"),
    "blocks of chunks": ({"content": [thinking("1 +"), thinking(" 1", " ="), thinking(" 2")]}, "1 + 1 = 2"),
    "fragments of a summary": (
        {"reasoning_details": [{"type": "reasoning.summary", "summary": each, "index": 0} for each in ("I a", "dd.")]},
        "I add.",
    ),
    "an encrypted one between": ({"reasoning_details": [detail("1 + 1"), *SECRET, detail(" = 2")]}, "1 + 1 = 2"),
    "blocks with numbers": (
        {"reasoning_details": [detail("add tens", index=0), detail("then ones", index=1)]},
        "add tens\nthen ones",
    ),
    "signed blocks": ({"thinking_blocks": [thinking("tens", signature="x"), thinking("ones")]}, "tens\nones"),
    "sentences without a gap": ({"thinking_blocks": [thinking("I add."), thinking("It is 2.")]}, "I add.\nIt is 2."),
    "numbers without a gap": (
        {"content": [thinking("47 + 38 = 85"), thinking("85 is right")]},
        "47 + 38 = 85\n85 is right",
    ),
    "texts beside a call": (
        {"content": [{"type": "text", "text": each} for each in ("I look up order 12", "34 is the customer")]},
        "I look up order 12\n34 is the customer",
    ),
    "a summary and a text": (
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "I add"}, detail("1 + 1")]},
        "I add\n1 + 1",
    ),
}


@pytest.mark.parametrize(("message", "thought"), FRAGMENTS.values(), ids=FRAGMENTS)
def test_fragments_of_one_thought_are_joined_as_they_are_and_blocks_in_lines(message: dict[str, Any], thought: str):
    assert split_thought(message | CALL)[0] == thought


@pytest.fixture(scope="module")
def desk() -> Iterator[ServedDesk]:
    with served_desk() as running:
        yield running


@pytest.fixture
def teaching(desk: ServedDesk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Gives a teacher of an endpoint, a player, and the endpoint."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    opened: list[Any] = []

    def open_(*turns: Any, asks: int = 2, **thoughts: Any) -> tuple[Teacher, Player, Endpoint]:
        endpoint = Endpoint(*turns)
        given = ThoughtsSpec(**({"instruction": "Write your steps.", "max_tokens": 20} | thoughts))
        spec = TeacherSpec(model="toy", thoughts=given)
        teacher = Teacher(spec, endpoint.url, asks=asks, budget=Budget(None, None, tmp_path / "spent"))
        player = desk.task.make(Session(desk.server))
        opened.extend([teacher, player])
        return teacher, player, endpoint

    yield open_
    for each in opened:
        each.close()


def thoughts_of(record: Record) -> list[str]:
    return [message.get(THOUGHT, "") for message in record.messages if message["role"] == "assistant"]


LONG = say(f"<think>{'long ' * 30}</think>{REFUSAL}")
INVALID = [call("look_up", '{"nothing": 1}')]


def test_the_thoughts_are_in_the_record_and_the_instruction_is_in_the_request_alone(desk: ServedDesk, teaching: Any):
    teacher, player, endpoint = teaching([LOOK], say(f"<think>It is old.</think>{REFUSAL}"))
    record = play_one(player, OLD, teacher, desk.task).record
    assert (record.reward, record.failed_at) == (1.0, "")
    assert thoughts_of(record) == ["", "It is old."]
    assert record.messages[-1]["content"] == REFUSAL
    for request in endpoint.requests:
        assert request["messages"][0]["content"] == f"{record.messages[0]['content']}\n\nWrite your steps."
    assert "Write your steps." not in record.messages[0]["content"], "the student's template adds it"


def test_a_thought_over_its_budget_is_asked_for_again_and_shorter(desk: ServedDesk, teaching: Any):
    teacher, player, endpoint = teaching([LOOK], say(f"<think>{'long ' * 30}</think>{REFUSAL}"), say(REFUSAL))
    record = play_one(player, OLD, teacher, desk.task).record
    assert (record.reward, record.asked_again) == (1.0, "a thought over its budget")
    asked = [request["messages"][0]["content"] for request in endpoint.requests]
    assert ["Be shorter" in text for text in asked] == [False, False, True]
    assert "at most 10 words" in asked[-1]


@pytest.mark.parametrize(
    ("answers", "shorter"),
    [
        ([LONG, INVALID, LONG, say(REFUSAL)], [False, True, True, True]),
        ([LONG, INVALID, INVALID, say(REFUSAL)], [False, True, True, True]),
        ([INVALID, LONG, INVALID, say(REFUSAL)], [False, False, True, True]),
        ([INVALID, INVALID, say(REFUSAL)], [False, False, False]),
    ],
)
def test_after_a_thought_over_its_budget_each_request_of_the_turn_asks_for_a_shorter_one(
    answers: list[Any], shorter: list[bool], desk: ServedDesk, teaching: Any
):
    teacher, player, endpoint = teaching([LOOK], *answers, asks=4)
    assert play_one(player, OLD, teacher, desk.task).record.reward == 1.0
    first, *asked = [request["messages"][0]["content"] for request in endpoint.requests]
    assert "Be shorter" not in first
    assert ["Be shorter" in text for text in asked] == shorter


def test_thoughts_that_stay_too_long_are_left_to_the_filter(desk: ServedDesk, teaching: Any):
    long = say(f"<think>{'long ' * 30}</think>{REFUSAL}")
    teacher, player, _ = teaching([LOOK], long, long)
    record = play_one(player, OLD, teacher, desk.task).record
    assert (record.failed_at, record.reward) == ("", 1.0)
    assert record.asked_again == "a thought over its budget"
    assert thoughts_of(record)[-1] == ("long " * 30).strip()


@pytest.mark.parametrize(
    ("thought", "is_long"),
    [("12 + 7 = 19, so 19.", False), ("1234567 + 7654321 = 88", True), ("I add tens, then ones: it is old.", False)],
)
def test_digits_of_a_thought_count_as_a_token_each(thought: str, is_long: bool):
    assert is_too_long({THOUGHT: thought}, ThoughtsSpec(max_tokens=16)) is is_long


@pytest.mark.parametrize(
    ("serves", "finish", "said", "read"),
    [
        (True, "length", "I ad", ("", "I ad", True)),
        (True, "stop", "I ad", ("I ad", "", False)),
        (False, "length", "I ad", ("I ad", "", False)),
        (True, "length", "<think>Old.</think>We cannot", ("We cannot", "Old.", False)),  # the answer is cut
    ],
)
def test_a_served_students_thought_that_is_cut_off_is_read_as_its_own_evaluation_reads_it(
    serves: bool, finish: str, said: str, read: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    endpoint = Endpoint(say(said, finish))
    spec = EndpointSpec(base_url=endpoint.url, model="toy", serves_student=serves, thoughts=ThoughtsSpec(max_tokens=20))
    with closing(Teacher(spec, endpoint.url, asks=1, budget=Budget(None, None, tmp_path / "spent"))) as teacher:
        message = teacher.say([{"role": "user", "content": "1 + 1?"}], [], Spent(), "auto")
    assert (message["content"], message.get(THOUGHT, ""), message.get(CUT_OFF, False)) == read


def test_a_served_student_that_teaches_is_asked_to_think_by_its_own_template(desk: ServedDesk, teaching: Any):
    for serves, said in ((False, 1), (True, 0)):
        teacher, player, endpoint = teaching([LOOK], say(REFUSAL))
        teacher._spec = teacher._spec.model_copy(update={"serves_student": serves})
        play_one(player, OLD, teacher, desk.task)
        assert [request["messages"][0]["content"].count("Write your steps.") for request in endpoint.requests] == [
            said
        ] * len(endpoint.requests)


def test_of_several_right_episodes_the_one_with_the_shortest_thoughts_counts(desk: ServedDesk, teaching: Any):
    said = [
        say(f"<think>{thought}</think>{text}") for thought, text in (("It is old, so no.", REFUSAL), ("Old.", REFUSAL))
    ]
    teacher, player, endpoint = teaching([LOOK], said[0], [LOOK], said[1])
    played = play_shortest(player, OLD, teacher, desk.task, keep_raw=False, tries=2)
    assert thoughts_of(played.record) == ["", "Old."]
    assert played.record.attempts == len(endpoint.requests) == 4


def test_the_shortest_thought_that_the_filter_would_drop_is_not_taken(desk: ServedDesk, teaching: Any):
    said = [say(f"<think>{thought}</think>{REFUSAL}") for thought in ("It is old, so no.", "No. " * 6)]
    teacher, player, _ = teaching([LOOK], said[0], [LOOK], said[1])
    played = play_shortest(player, OLD, teacher, desk.task, keep_raw=False, tries=2)
    assert thoughts_of(played.record) == ["", "It is old, so no."]


def test_an_episode_without_a_thought_is_not_the_one_with_the_shortest(desk: ServedDesk, teaching: Any):
    said = [say(REFUSAL), say(f"<think>It is old.</think>{REFUSAL}")]
    teacher, player, _ = teaching([LOOK], said[0], [LOOK], said[1])
    played = play_shortest(player, OLD, teacher, desk.task, keep_raw=False, tries=2)
    assert thoughts_of(played.record) == ["", "It is old."]


def test_a_thought_that_is_nested_without_end_is_none():
    value: Any = "1 + 1 = 2."
    for _ in range(5000):
        value = [value]
    assert split_thought({"reasoning_details": value, "content": "2"}) == ("", "2")


def test_a_teacher_of_a_student_that_thinks_is_given_its_budget_and_instruction():
    thinking = ThinkingSpec(mode="text", max_tokens=50, instruction="Add by tens.")
    taught = TeacherSpec(model="toy").teaching(thinking)
    assert taught.thoughts == ThoughtsSpec(max_tokens=50, instruction="Add by tens.")
    own = TeacherSpec(model="toy", thoughts=ThoughtsSpec(max_tokens=30, shortest_of=4)).teaching(thinking)
    assert own.thoughts == ThoughtsSpec(max_tokens=30, shortest_of=4, instruction="Add by tens.")


def test_a_teacher_of_a_student_that_answers_at_once_is_as_it_was():
    spec = TeacherSpec(model="toy")
    assert spec.teaching(None) is spec
    assert "thoughts" not in spec.in_key()
    with pytest.raises(ValueError, match=r"set student\.thinking: text, or native"):
        TeacherSpec(model="toy", thoughts=ThoughtsSpec()).teaching(None)


@pytest.mark.parametrize("thinks", [True, False])
def test_a_served_student_that_thinks_is_sent_no_switch_and_its_template_has_the_instruction(
    thinks: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    endpoint = Endpoint([LOOK], [LOOK])
    spec = TeacherSpec(model="toy", serves_student=True).teaching(ThinkingSpec(mode="native") if thinks else None)
    teacher = Teacher(spec, endpoint.url, asks=1, budget=Budget(None, None, tmp_path / "spent"))
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    teacher.say(messages, [tool], Spent(), "auto")
    teacher.close()
    (request,) = endpoint.requests
    assert ("chat_template_kwargs" in request) is not thinks
    assert request["messages"] == messages
