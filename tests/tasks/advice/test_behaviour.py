"""How a model's episodes end, and where the values of its calls come from, is read from the episodes."""

import json
from pathlib import Path
from typing import Any

import pytest

from apprentice.tasks.advice.behaviour import QUESTION, Habits, behaviour, calls_of, habits_of, stands_in
from apprentice.tasks.analysis.outcomes import outcome_of
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.episodes.thinking import cut_off
from tests.tasks.evaluations import episode


def tool(name: str, argument: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}


TOOLS = [tool("find", "name"), tool("list", "customer"), tool("refund", "order")]
ASKED = [{"role": "system", "content": "Help."}, {"role": "user", "content": "ada12 writes: my lamp is damaged."}]
TOLD = {"find": "The customer is 555.", "list": "order 901: lamp. order 902: rug.", "refund": "refunded"}
FOUND, LISTED, REFUNDED = ("find", {"name": "ada12"}), ("list", {"customer": "555"}), ("refund", {"order": "901"})


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": text}]


def called(name: str, arguments: Any) -> list[dict[str, Any]]:
    """A call and its reply."""
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    call = {"type": "function", "function": {"name": name, "arguments": written}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    return [turn, {"role": "tool", "name": name, "content": TOLD.get(name, "{'error': 'unknown'}")}]


def conversation(*turns: Any) -> list[dict[str, Any]]:
    """Calls as (tool, arguments), texts as they are."""
    return ASKED + [each for turn in turns for each in (said(turn) if isinstance(turn, str) else called(*turn))]


def played(*turns: Any, reward: float = 0.0, unfinished: bool = False, **given: Any) -> EvaluatedEpisode:
    about = {
        "messages": conversation(*turns),
        "turns": len(turns),
        "unfinished": unfinished,
        "valid": not given.get("causes"),
    }
    return episode(0, reward, **(about | given))


@pytest.fixture
def habits(tmp_path: Path) -> Habits:
    """Of a teacher that looks a customer up, lists the orders and refunds one."""
    rows = [{"messages": conversation(FOUND, LISTED, REFUNDED)} for _ in range(12)]
    (tmp_path / "kept.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = habits_of(tmp_path)
    assert found is not None
    return found


def test_the_teachers_habits_are_its_order_of_tools_and_the_values_that_it_copies(habits: Habits):
    assert habits.next_tool == {"find": "list", "list": "refund", "refund": ""}
    assert habits.copied == {("find", "name"): QUESTION, ("list", "customer"): "find", ("refund", "order"): "list"}
    assert (habits.episodes, habits.turns, habits.constant) == (12, 3.0, 1.0)


def test_rows_without_a_call_show_no_habits(tmp_path: Path):
    (tmp_path / "kept.jsonl").write_text(json.dumps({"messages": ASKED}) + "\n")
    assert habits_of(tmp_path) is None


RIGHT = played(FOUND, LISTED, REFUNDED, reward=1.0)
BROKE_OFF = played(FOUND, "I am done.", reward=0.2, unfinished=True, causes=["no tool call"])
SPOKE_AT_ONCE = played("Hello.", unfinished=True, causes=["no tool call"])
CUT = played(FOUND, '<tool_call>{"name": "list", "argum', reward=0.1, unfinished=True, causes=["no tool call"])
INVENTED = played(FOUND, LISTED, ("refund", {"order": "777"}), reward=0.0)
OF_ANOTHER_TURN = played(FOUND, LISTED, ("refund", {"order": "555"}), reward=0.0)
OTHER_ORDER = played(FOUND, LISTED, ("refund", {"order": "902"}), reward=0.1)
UNKNOWN = played(("grab", {}), FOUND, LISTED, REFUNDED, reward=0.3, causes=["unknown tool"])
REFUSED = played("I cannot refund it.", reward=1.0, unfinished=False)
EPISODES = {
    "a text that the environment scores": (REFUSED, {"right"}, "right"),
    "right": (RIGHT, {"right"}, "right"),
    "broke off": (BROKE_OFF, {"broke_off"}, "broke off after find"),
    "spoke at once": (SPOKE_AT_ONCE, {"no_first_call"}, "no tool call"),
    "cut within a call": (CUT, {"cut"}, "broke off after find"),
    "an invented id": (INVENTED, {"invented"}, "wrong answer"),
    "an id of another turn": (OF_ANOTHER_TURN, {"misplaced"}, "wrong answer"),
    "another id of the right reply": (OTHER_ORDER, {"ill_chosen"}, "partly right"),
    "a fault in the first turn only": (UNKNOWN, {"no_first_call"}, "partly right"),
}


@pytest.mark.parametrize(("record", "shown", "outcome"), EPISODES.values(), ids=EPISODES)
def test_each_episode_shows_what_happened_in_it(record: EvaluatedEpisode, shown: set, outcome: str, habits: Habits):
    found = behaviour([record], lambda _: TOOLS, habits, 48)
    shares = ("right", "no_first_call", "broke_off", "cut", "invented", "misplaced", "ill_chosen")
    assert {name for name in shares if getattr(found, name) == 1.0} == shown
    assert outcome_of(record) == outcome


def ended_in(message: dict[str, Any], tokens: int, before: tuple[Any, ...] = ()) -> EvaluatedEpisode:
    """An episode of a student that thinks, whose last turn has no call."""
    found = played(*before, "", unfinished=True, causes=["no tool call"], completion_tokens=tokens)
    found.messages[-1] |= message
    return found


THOUGHT_ALONE = cut_off("1 + 1 is")
LIMITS = {
    "reached no limit, and ended its turn itself": (ended_in({"content": "2."}, 60), set()),
    "reached no limit of an answer that is as long as its thought may be": (ended_in({"content": "2."}, 96), set()),
    "reached that of thought and answer together": (ended_in({"content": "2."}, 144), {"cut"}),
    "reached that of its answer within a call": (ended_in({"content": '<tool_call>{"name'}, 144), {"cut"}),
    "reached that of its thought, to the last token": (ended_in(THOUGHT_ALONE, 144), {"thought_cut"}),
    "reached that of its thought, which ended": (ended_in(THOUGHT_ALONE, 100), {"thought_cut"}),
    "reached that of its thought, of so many tokens that nobody counted": (ended_in(THOUGHT_ALONE, 0), {"thought_cut"}),
    "reached that of its second thought": (ended_in(THOUGHT_ALONE, 80, (FOUND,)), {"thought_cut"}),
    "reached no limit, and ended its turn within its thought": (ended_in(THOUGHT_ALONE, 20), set()),
}


@pytest.mark.parametrize(("record", "shown"), LIMITS.values(), ids=LIMITS)
def test_a_student_that_thinks_is_told_which_limit_it_reached(record: EvaluatedEpisode, shown: set, habits: Habits):
    found = behaviour([record], lambda _: TOOLS, habits, 48, 96)
    assert {name for name in ("cut", "thought_cut") if getattr(found, name) == 1.0} == shown
    assert found.broke_off == 0.0


def test_what_is_missing_is_the_tool_that_the_teacher_calls_then(habits: Habits):
    found = behaviour([BROKE_OFF, RIGHT], lambda _: TOOLS, habits, 48)
    assert (found.broke_off, found.broke_off_after, found.missing) == (0.5, "find", "list")
    assert (found.paid_for_stopping, found.paid_for_wrong) == (0.2, None)
    both = behaviour([BROKE_OFF, INVENTED, OTHER_ORDER], lambda _: TOOLS, habits, 48)
    assert (both.paid_for_wrong, both.invented_in) == (0.05, "refund.order")
    placed = behaviour([OF_ANOTHER_TURN], lambda _: TOOLS, habits, 48)
    assert (placed.misplaced_in, placed.taken_from) == ("refund.order", "list")


def test_a_value_that_the_teacher_takes_now_here_and_now_there_is_of_no_turn(tmp_path: Path):
    other = conversation(("find", {"name": "555"}), ("list", {"customer": "ada12"}))
    rows = [conversation(FOUND, LISTED), other] * 6
    (tmp_path / "kept.jsonl").write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    found = habits_of(tmp_path)
    assert found is not None
    assert found.copied[("list", "customer")] == ""
    swapped = played(FOUND, ("list", {"customer": "ada12"}), unfinished=True)
    assert behaviour([swapped], lambda _: TOOLS, found, 48).misplaced == 0.0


def test_without_a_teacher_nothing_counts_as_invented_or_missing():
    found = behaviour([INVENTED, BROKE_OFF], lambda _: TOOLS, None, 48)
    assert (found.invented, found.missing, found.broke_off) == (0.0, "", 0.5)


def test_episodes_that_the_environment_broke_show_nothing_of_the_model(habits: Habits):
    found = behaviour([RIGHT, episode(1, None, broken="lost")], lambda _: TOOLS, habits, 48)
    assert (found.episodes, found.right) == (1, 1.0)


def test_an_episode_that_the_environment_ended_did_not_break_off():
    ended = played(FOUND, "Bye.", reward=0.0, unfinished=False)
    assert ended.broke_off_after == ""


@pytest.mark.parametrize(
    ("value", "text", "found"),
    [
        ("12", "order 12: lamp", True),
        ("12", "order 123", False),
        ("ada12", "ada12 writes", True),
        ("a.b", "aXb", False),
    ],
)
def test_a_value_stands_in_a_text_as_a_word_of_its_own(value: str, text: str, found: bool):
    assert stands_in(value, text) == found


def test_arguments_that_are_no_object_are_read_as_none():
    messages = conversation(("find", "[1, 2"), ("find", '"text"'))
    assert [call for call, _ in calls_of(messages)] == [("find", {}), ("find", {})]
