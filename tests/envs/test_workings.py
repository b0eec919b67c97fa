"""Scripts that show their working: it leads to the call, and their mistakes are made within it."""

import json
from typing import Any

import pytest

from apprentice.envs.mistakes import next_turn
from apprentice.envs.reasoning_gym import working
from apprentice.tasks.analysis.thought_faults import says_other_result

CHAIN = "State the final answer to the following arithmetic problem: {} ="


def asked(question: str, dataset: str, rate: float = 0.0, shows: bool = True) -> Any:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": question}]
    return next_turn("reasoning_gym", {"dataset": dataset, "config": {}}, messages, rate, 1, 0, shows)


@pytest.mark.parametrize(
    ("dataset", "question", "text", "answer"),
    [
        (
            "chain_sum",
            CHAIN.format("47 + 38 - 69"),
            "47 + 30 = 77, 77 + 8 = 85. 85 - 60 = 25, 25 - 9 = 16.",
            "16",
        ),
        ("chain_sum", CHAIN.format("5 - 30"), "30 - 5 = 25, 5 - 30 = -25.", "-25"),
        (
            "chain_sum",
            CHAIN.format("14 - 53 + 80"),
            "53 - 10 = 43, 43 - 4 = 39, 14 - 53 = -39. 80 - 30 = 50, 50 - 9 = 41, -39 + 80 = 41.",
            "41",
        ),
        (
            "chain_sum",
            CHAIN.format("3 - 8 - 21"),
            "8 - 3 = 5, 3 - 8 = -5. 5 + 20 = 25, 25 + 1 = 26, -5 - 21 = -26.",
            "-26",
        ),
        ("basic_arithmetic", "Calculate ( 56 + -33 ) * 2.", "56 - 30 = 26, 26 - 3 = 23. 23 * 2 = 46.", "46"),
        ("basic_arithmetic", "Calculate -( 4 + 3 ) / 2.", "4 + 3 = 7. 0 - 7 = -7. -7 / 2 = -4.", "-4"),
        ("spell_backward", "Spell this word backward (example: sun -> nus): cat", "c a t backward t a c", "tac"),
    ],
)
def test_a_working_leads_to_the_right_answer(dataset: str, question: str, text: str, answer: str):
    turn = asked(question, dataset)
    assert (turn.content, turn.tool, json.loads(turn.arguments)) == (text, "answer", {"answer": answer})


def test_without_working_a_script_says_what_it_said_before():
    question = CHAIN.format("47 + 38")
    assert asked(question, "chain_sum", shows=False).content == ""
    assert asked(question, "chain_sum", shows=False).arguments == asked(question, "chain_sum").arguments


def test_mistakes_are_made_within_the_working_or_between_it_and_the_call():
    questions = [CHAIN.format(f"{a} + {b}") for a in range(11, 40) for b in (17, 38)]
    kinds = {"slip": 0, "other result": 0, "form": 0, "none": 0}
    for question in questions:
        turn = asked(question, "chain_sum", rate=0.99)
        right = json.loads(asked(question, "chain_sum").arguments)["answer"]
        if not turn.tool:
            kinds["none"] += 1
            continue
        call = [{"function": {"arguments": turn.arguments}}]
        leads_to = turn.content.rpartition("= ")[2].rstrip(".")
        if leads_to != right:
            kinds["slip"] += 1
            assert json.loads(turn.arguments) == {"answer": leads_to}, "the call follows the working"
        elif says_other_result(turn.content, {"tool_calls": call}):
            kinds["other result"] += 1
        else:
            kinds["form"] += 1
    assert all(kinds.values()), kinds


def test_a_slip_is_carried_on_by_the_later_steps():
    import random

    for seed in range(20):
        text, answer = working.chain_sum(CHAIN.format("47 + 38 - 69"), random.Random(seed))
        results = [step.partition(" = ")[2].rstrip(".") for step in text.replace(". ", ", ").split(", ")]
        firsts = [step.split()[0] for step in text.replace(". ", ", ").split(", ")]
        assert results[:-1] == firsts[1:]
        assert results[-1] == answer != "16"


def test_a_question_without_an_expression_has_no_working():
    assert working.basic_arithmetic("What is this?", None) is None
    assert working.basic_arithmetic("Calculate 7.", None) is None


@pytest.mark.parametrize("slip", [None, 1, 2, 3])
def test_sums_below_zero_come_out_as_they_are_unless_a_step_slips(slip: int | None):
    import random

    for seed in range(200):
        draw = random.Random(seed)
        sum_ = " ".join([str(draw.randint(0, 99)), *(f"{draw.choice('+-')} {draw.randint(0, 99)}" for _ in range(2))])
        _, answer = working.chain_sum(CHAIN.format(sum_), None if slip is None else random.Random(slip))
        assert (answer == str(eval(sum_))) == (slip is None)


@pytest.mark.parametrize("halving", [True, False])
def test_the_script_of_number_says_how_it_chooses(halving: bool):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "Game a: the number is from 1 to 31."}]
    turn = next_turn("number", {"halving": halving}, messages, 0.0, 1, 0, True)
    number = json.loads(turn.arguments)["number"]
    assert turn.content == ("1 + 31 = 32, half of it is 16." if halving else f"1 to 31 is left, I try {number}.")


def test_the_numbers_of_a_list_are_compared_with_the_bound_one_by_one():
    question = (
        "Keep all numbers larger than 9 in this list: ['14', '-48', '9']\nReturn the new list in the same format."
    )
    assert working.number_filtering(question, None) == ("14 > 9 keep, -48 < 9 drop, 9 = 9 drop.", "['14']")
    question = question.replace("Keep", "Remove").replace("larger", "smaller")
    assert working.number_filtering(question, None) == ("14 > 9 keep, -48 < 9 drop, 9 = 9 keep.", "['14', '9']")
    assert working.number_filtering("What is this?", None) is None
