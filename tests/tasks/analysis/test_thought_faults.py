"""Each cause for which a thought is dropped has an example, and a sound thought has none."""

import json
from typing import Any

import pytest

from apprentice.envs.reasoning_gym import working
from apprentice.tasks.analysis.outcomes import why_dropped
from apprentice.tasks.analysis.thought_faults import check_of, says_other_result
from apprentice.tasks.episodes.thinking import THOUGHT, think
from apprentice.tasks.models.tokenizer import prepare_tokenizer
from apprentice.tasks.settings.spec import ThinkingSpec
from tests.students_page import TOOL, templates, toy_tokenizer, with_merges

SUM = "47 + 30 = 77, 77 + 8 = 85."
EXAMPLES = {
    "thought cut off": {"cut_off": True, THOUGHT: "47 + "},
    "call or special token in the thought": {THOUGHT: 'I call <tool_call>{"name": "answer"}</tool_call>'},
    "thought over its budget": {THOUGHT: f"I add {', '.join(map(str, range(40)))}. {SUM}"},
    "thought with another result than the call": {THOUGHT: "47 + 30 = 77, 77 + 8 = 84."},
    "thought that repeats itself": {THOUGHT: "85 is it, " * 9},
}
MISSING = "no thought, which the chat template renders otherwise than it is asked for"


def turn(answer: Any = "85", **given: Any) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": "answer", "arguments": json.dumps({"answer": answer})}}
    return {"role": "assistant", "content": "", "tool_calls": [call]} | given


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return think(prepare_tokenizer(toy_tokenizer(templates()["qwen2_5"])), ThinkingSpec(mode="text", max_tokens=100))


@pytest.mark.parametrize("cause", EXAMPLES)
def test_each_cause_has_an_example(tokenizer: Any, cause: str):
    assert check_of(tokenizer)(turn(**EXAMPLES[cause]), [TOOL]) == cause


@pytest.mark.parametrize("call", ['{"name": "answer", "arguments": {"answer": "85"}}', 'I call answer(answer="85").'])
def test_a_call_without_marks_stands_in_no_thought_either(tokenizer: Any, call: str):
    cause = "call or special token in the thought"
    assert check_of(tokenizer)(turn(**{THOUGHT: f"{SUM} {call}"}), [TOOL]) == cause


@pytest.mark.parametrize(
    "thought",
    [
        *(SUM, "The answer is 85.", "I add the tens, then the ones.", ""),
        "I need the answer(s): 47 + 38 = 85.",
    ],
)
def test_a_sound_thought_is_kept(tokenizer: Any, thought: str):
    assert check_of(tokenizer)(turn(**{THOUGHT: thought}), [TOOL]) is None


@pytest.mark.parametrize(
    ("family", "merged", "cause"),
    [
        ("qwen3", "\n\n", None),  # the model writes the empty block itself
        ("gemma4", "\n\n", None),
        ("gemma4_v5", "..", MISSING),  # its prompt opens a block after a tool's reply
        ("nemotron_3_nano", "..", MISSING),
        ("qwen3_5_think", "..", None),
        ("qwen3_5_think", "\n\n", MISSING),  # the prompt opens the block with one line break
    ],
)
def test_a_turn_without_a_thought_is_dropped_where_its_prompt_would_be_another(
    family: str, merged: str, cause: str | None
):
    plain = with_merges(prepare_tokenizer(toy_tokenizer(templates()[family])), merged)
    check = check_of(think(plain, ThinkingSpec(mode="native", max_tokens=100)))
    assert check(turn(), [TOOL]) == cause
    assert check(turn(**{THOUGHT: SUM}), [TOOL]) is None
    assert check(turn(weight=0), [TOOL]) is None, "it carries no loss"


@pytest.mark.parametrize("family", ["qwen2_5", "qwen3", "qwen3_5_think", "nemotron_3_nano"])
def test_a_turn_may_lack_a_thought_that_is_written_as_text(family: str):
    plain = with_merges(prepare_tokenizer(toy_tokenizer(templates()[family])), "\n\n")
    assert check_of(think(plain, ThinkingSpec(mode="text", max_tokens=100)))(turn(), [TOOL]) is None


def test_a_special_token_of_the_student_is_none_of_its_thoughts(tokenizer: Any):
    cause = "call or special token in the thought"
    assert check_of(tokenizer)(turn(**{THOUGHT: "It ends here<|im_end|>"}), [TOOL]) == cause
    for other in ("So <think>85", "So <THINK>85</THINK>", "<tool_response>85</tool_response>", "<|channel|>final 85"):
        assert check_of(tokenizer)(turn(**{THOUGHT: other}), [TOOL]) == cause


LONG = " ".join(f"Step {n} takes item{n} from shelf{n}." for n in range(30))


@pytest.mark.parametrize("again", ["Wait. " * 20, f"{SUM} {SUM}", f"{LONG} {'Wait. ' * 6}"])
def test_words_that_come_again_and_again_are_found_whatever_came_before(again: str):
    assert check_of()(turn(**{THOUGHT: f"{SUM} {again}"}), [TOOL]) == "thought that repeats itself"


def test_the_working_of_a_long_sum_does_not_repeat_itself():
    question = "State the final answer to the following arithmetic problem: 5512345 - 77212 + 918273 - 1212121 ="
    thought, answer = working.chain_sum(question, None)
    assert check_of()(turn(answer, **{THOUGHT: thought}), [TOOL]) is None


@pytest.mark.parametrize("text", ["<think>b</think>It is 85.", "<|im_end|><|im_start|>user", "<|channel|>final"])
def test_no_text_beside_a_thought_holds_marks(tokenizer: Any, text: str):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    tool = {"name": "answer", "description": "", "parameters": {"type": "object", "properties": {"answer": {}}}}
    tools = json.dumps([{"type": "function", "function": tool}])
    episode = {"messages": [*messages, turn("85", content=text, **{THOUGHT: SUM})], "tools": tools}
    dropped = why_dropped(episode | {"reward": 1.0, "failed_at": ""}, set(), check_of(tokenizer))
    assert dropped == "leaked reasoning text"


@pytest.mark.parametrize(
    ("thought", "answer", "other"),
    [
        (SUM, "85", False),
        (SUM, " 85 ", False),
        (SUM, "84", True),
        ("1,000 + 1 = 1,001.", "1001", False),
        ("It is 2.50.", "2.5", False),
        ("half of it is 16.", 16, False),
        ("half of it is 16.", 15, True),
        ("c a t backward t a c", "tac", False),
        ("I try 7.", 8, False),
        ("The result is -5.", "-5", False),
        ("The result is 5.", "-5", True),
        ("60 - 65 = \u22125.", "-5", False),
        (f"{SUM} Check: 85 - 38 = 47.", "85", False),
        ("28 / 2 = 14 (since 2 * 14 = 28).", "14", False),
        ("The answer is 85, which is 5 more than 80.", "85", False),
        ("77 + 8 = 77, so \\boxed{85}.", "85", False),
        ("It is 85, rounded to the nearest ten: 90.", "90", False),
        ("17 / 5 = 3 remainder 2.", "2", False),
        ("(51 + 100) / 2 = 75.5, so 75.", "75", False),
        ("The range is 51 to 100. I try 75.", 75, False),
        ("It is 7%.", "0.07", False),
        ("It is 1 000.", "1000", False),
        ("85 = 47 + 38.", "85", False),
        ("47 + 38 = \\boxed{84}.", "85", True),
        ("47 + 38 → 84.", "85", True),
        ("The sum: 84.", "85", True),
        ("It is therefore 84.", "85", True),
        ("Because 47 + 38 = 84.", "85", True),
        ("I check the ones: 7 + 8 = 15. 47 + 38 = 84.", "85", True),
        ("It is 9007199254740993.", "9007199254740992", True),
        ("47 + 38 = 85. 85 - 60 = 25, 25 - 9 = 16.", "25", True),
        ("The customer is 1234 and her balance is 50 dollars. I look at her orders first.", "1234", False),
        ("I need the orders of customer 1234. The refund limit is 30 days.", "1234", False),
        ("I look her orders up. The refund limit is 30 days.", "1234", False),
        ("16 was too low, so the lower bound is 17. I guess 24 of 17 to 31.", 24, False),
        ("The total number of guesses is 5. I take the middle.", 16, False),
        ("I get 3 guesses, and take the middle.", 16, False),
        ("3 + 4 = 7, 7 - 12 = - 5.", "-5", False),
        ("40 + 30 = 70, 7 + 8 = 15. I add them and get 85, carrying 1.", "85", False),
        ("77 + 8 = 85. To be sure, 85 - 8 = 77.", "85", False),
        ("1/3 = 0.3333, rounded 2 places", "0.33", False),
        ("1/3 = 0.3333, rounded 2 places", "0.34", True),
        ("It is 2 x 10^3.", "2000", False),
        (f"2 * 2 = {'9' * 5000}.5.", "5", True),
        ("7 / 2 = 3.5.", "4", False),
        ("7 / 2 = 3.5.", "3", False),
        ("1 / 3 = 0.333.", "0", True),
        ("3 + 5 = 8. So the answer is 8.", "3", True),
        ("I add 47 and 38. 47 + 38 = 85. The answer is 85.", "47", True),
        ("48 / 2 = 24. 48 + 24 = 72. The answer is 72.", "24", True),
        ("85? No. 47 + 38 = 84, so the answer is 84.", "85", True),
        *(
            (said, "85", True)
            for said in (
                "I get 84.",
                "47 + 38 is equal to 84.",
                "47 + 38 is 84.",
                "So the final answer would be 84.",
                "The answer to 47 + 38 is 84.",
                "This results in 84",
                "47 and 38 make 84",
                "47 plus 38 comes to 84",
                "47 + 38 ≈ 84",
                "答案是84。",
                "It's 84.",
                "84 = 47 + 38.",
            )
        ),
        ('The answer is "tac".', "tac", False),
        ('The answer is "tca".', "tac", True),
        ('The answer is "tca". No, it is tac.', "tac", False),
        ("So the answer is `Tac`.", "tac", False),
        ("The answer: \\boxed{\\text{cat}}.", "tac", True),
        ("\\boxed{\\frac12}", "1/2", False),
        ("The result: ['-3', '5'].", "['-3', '5']", False),
        ("The result is ['-3', '5'].", "['3', '5']", True),
        ('The word is "cat", backwards tac.', "tac", False),
        ("It's the cat's turn.", "tac", False),
        ("The answer has the letter `e`.", "tac", False),
        ('The answer is not "cat".', "dog", False),
        ('The previous answer "cat" was wrong, so I try another animal.', "dog", False),
        ('The tool to call is "get_weather".', "Paris", False),
        ('The answer is "yes".', True, False),
        ('The answer is "cafe\u0301".', "caf\u00e9", False),
    ],
)
def test_a_result_that_is_stated_must_be_the_one_that_is_handed_in(thought: str, answer: Any, other: bool):
    assert says_other_result(thought, turn(answer)) is other


@pytest.mark.parametrize(
    ("thought", "arguments", "other"),
    [
        ("row = 3, column = 4", {"row": 3, "column": 4}, False),
        ("row = 3, column = 5", {"row": 3, "column": 4}, True),
        ("The Row is 2.", {"row": 3, "column": 4}, True),
        ("The order id is 17.", {"order_id": 18, "why": "lost"}, True),
        ("The row is 2. No, row is 3.", {"row": 3, "column": 4}, False),
        ("row 3 lacks a 5, column 4 too, so 3 + 4 = 7.", {"row": 3, "column": 4}, False),
        ("column = 5 - 1, row: 3", {"row": 3, "column": 4}, False),
        ("price = 2.5 * 4", {"price": 10, "of": "tea"}, False),
        ("total = 1,200 + 300", {"total": 1500, "of": "tea"}, False),
        ("rate is 5%.", {"rate": 0.05, "of": "tea"}, False),
        ("start = 9:30", {"start": 930, "of": "day"}, False),
        ("quantity: 2 boxes of 6.", {"quantity": 12, "of": "eggs"}, False),
        ("The old amount is 50. She sends 20 to Ann.", {"to": "Ann", "amount": 20}, False),
        ("Option a is 3, too large.", {"a": 2, "b": 4}, False),
        ("to = 9", {"to": "Ann", "amount": 4}, False),
    ],
)
def test_of_several_arguments_those_that_the_thought_states_by_name_are_compared(
    thought: str, arguments: dict[str, Any], other: bool
):
    call = {"type": "function", "function": {"name": "answer", "arguments": json.dumps(arguments)}}
    assert says_other_result(thought, {"role": "assistant", "content": "", "tool_calls": [call]}) is other


@pytest.mark.parametrize(
    ("thought", "text", "other"),
    [
        *((SUM, text, False) for text in ("85", "The answer is 85.", "Here you are.", "It costs 85. Shipping is 5.")),
        *((SUM, text, True) for text in ("84", "The answer is 84.", "**84**")),
        ("It is \u22125.", "The answer is \u22125.", False),
        ("47 + 38 = 85 (since 85 - 38 = 47).", "47 + 38 = 85 (since 85 - 38 = 47).", False),
        ('The answer is "tac".', "Backwards it is: tac.", False),
        ("22/7 \u2248 3.142857", "3.14", False),
    ],
)
def test_without_a_call_the_text_is_what_is_handed_in(thought: str, text: str, other: bool):
    assert says_other_result(thought, {"role": "assistant", "content": text}) is other


def test_without_a_tokenizer_what_is_counted_in_tokens_is_not_checked():
    assert check_of()(turn(**EXAMPLES["thought over its budget"]), [TOOL]) is None
    assert check_of()(turn(**EXAMPLES["thought with another result than the call"]), [TOOL])


def test_thoughts_are_kept_for_a_student_that_thinks_and_leaked_for_one_that_does_not(tokenizer: Any):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}, turn("85", **{THOUGHT: SUM})]
    tool = {"name": "answer", "description": "", "parameters": {"type": "object", "properties": {"answer": {}}}}
    tools = json.dumps([{"type": "function", "function": tool}])
    episode = {"messages": messages, "tools": tools, "reward": 1.0, "failed_at": ""}
    assert why_dropped(episode, set(), check_of(tokenizer)) is None
    assert why_dropped(episode, set()) == "leaked reasoning text"
    assert why_dropped(episode | {"reward": 0.0}, set(), check_of(tokenizer)) == "wrong answer"
    assert why_dropped(episode, {"u"}, check_of(tokenizer)) == "stands in the evaluation set"
