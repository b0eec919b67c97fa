"""What a person should look at first."""

from apprentice.tasks.episodes.thinking import THOUGHT
from apprentice.tasks.judgement.samples import side_by_side, text_of_turns, worst
from tests.tasks.evaluations import episode, episodes

CALL = {"function": {"name": "answer", "arguments": '{"answer": "7"}'}}


def test_the_worst_failures_are_first_what_was_right_before_then_the_lowest_reward():
    before = episodes([1.0, 0.0, 0.0, 1.0] + [0.0] * 20)
    after = episodes([1.0, 0.2, 0.0, 0.9] + [0.1] * 20)
    failures = worst({"sft": before, "grpo": after})
    assert [record.place for record in failures][:3] == [3, 2, 4]
    assert len(failures) == 10
    assert failures[0].messages[-1]["role"] == "tool"


def test_models_are_shown_on_questions_where_they_differ():
    shown = side_by_side({"base": episodes([0.0] * 8), "grpo": episodes([0.0] * 6 + [1.0, 1.0])})
    assert [each["seed"] for each in shown][-2:] == [5006, 5007]
    assert shown[-1]["models"]["grpo"] == {"said": 'answer({"answer": "7"})', "reward": 1.0}
    assert shown[-1]["correct"] == "7"


def test_what_was_said_without_a_call_is_shown_as_text():
    said = episode(0, 0.0, messages=[{"role": "assistant", "content": "I do not know"}])
    assert text_of_turns(said) == "I do not know"


def test_a_long_thought_leaves_room_for_the_call_that_it_leads_to():
    turn = {"role": "assistant", "content": "", THOUGHT: "1 + 1 = 2, " * 20, "tool_calls": [CALL]}
    said = episode(0, 0.0, messages=[turn])
    assert text_of_turns(said, 10) == '1 + 1 = 2,… answer({"answer": "7"})'
    assert len(text_of_turns(said)) > 200
