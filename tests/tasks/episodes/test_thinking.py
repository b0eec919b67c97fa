"""Law 1 for students that think: SFT, GRPO and evaluation have the same ids, thoughts of earlier turns included.

The tokenizers are of single bytes, with a family's template of the installed TRL.
"""

import json
from typing import Any

import pytest

from apprentice.tasks.episodes.episode import problems
from apprentice.tasks.episodes.rendering import (
    IGNORED,
    TEMPLATE_ARGUMENTS,
    chat_format,
    labelled,
    parse,
    prompt_ids,
    row_ids,
    training_row,
)
from apprentice.tasks.episodes.thinking import CUT_OFF, THOUGHT, think, thinking_at, thinking_of, without_thinking
from apprentice.tasks.models import trl_internals
from apprentice.tasks.models.tokenizer import commands, prepare_tokenizer
from apprentice.tasks.settings.spec import ThinkingSpec
from apprentice.tasks.training.template import fault_of
from tests.students_page import TOOL, templates, toy_tokenizer

QUESTION = [{"role": "system", "content": "system"}, {"role": "user", "content": "user"}]
REPLY = {"role": "tool", "name": "answer", "content": "Higher."}
FAMILIES = {
    "qwen2_5": ("text",),
    "qwen3": ("text", "native"),
    "qwen3_5_think": ("text", "native"),
    "glm4moe": ("text", "native"),
    "gemma4": ("native",),
    "lfm2_2_5": ("native",),
    "nemotron_3_nano": ("text",),
}
BOTH = [(family, mode) for family, modes in FAMILIES.items() for mode in modes]


def made(family: str, mode: Any = None, **given: Any) -> Any:
    spec = ThinkingSpec(mode=mode, **given) if mode else None
    return think(prepare_tokenizer(toy_tokenizer(templates()[family])), spec)


def turn(thought: str, answer: str = "85") -> dict[str, Any]:
    call = {"type": "function", "function": {"name": "answer", "arguments": {"answer": answer, "count": 7}}}
    return {"role": "assistant", "content": "", "tool_calls": [call], THOUGHT: thought}


def generated(tokenizer: Any, messages: list[dict[str, Any]]) -> list[int]:
    """What the model writes of the last message, up to the token that ends it."""
    before = len(prompt_ids(tokenizer, messages[:-1], [TOOL]))
    whole = row_ids(tokenizer, training_row(messages, [TOOL]) | {"messages": messages})[before:]
    end = chat_format(tokenizer).call_end
    assert end is not None
    return whole[: whole.index(end) + 1]


@pytest.mark.parametrize(("family", "mode"), BOTH)
def test_two_turns_have_the_same_ids_in_sft_in_grpo_and_in_an_evaluation(family: str, mode: str):
    check_two_turns(made(family, mode))


def check_two_turns(tokenizer: Any) -> None:
    """Plays two turns as GRPO concatenates them, as an evaluation renders them, and as SFT learns them."""
    messages, ids, learned = list(QUESTION), prompt_ids(tokenizer, QUESTION, [TOOL]), []
    learned += [False] * len(ids)
    for thought in ("47 + 30 = 77,\n77 + 8 = 85.", "So it's 85."):
        assert prompt_ids(tokenizer, messages, [TOOL]) == ids, "the evaluation's prompt is what GRPO has so far"
        written = generated(tokenizer, [*messages, turn(thought)])
        read = parse(tokenizer, written, ids, [TOOL])
        assert read[THOUGHT] == thought
        assert read["content"] == ""
        assert [call["function"]["arguments"] for call in read["tool_calls"]] == [{"answer": "85", "count": 7}]
        replies = trl_internals.reply_ids(tokenizer, [REPLY])
        messages, ids = [*messages, read, REPLY], [*ids, *written, *replies]
        learned += [True] * len(written) + [False] * len(replies)
    row = labelled(tokenizer, training_row(messages, [TOOL]))
    assert row["input_ids"][: len(ids)] == ids
    assert [label != IGNORED for label in row["labels"][: len(ids)]] == learned, "the thought carries loss"


@pytest.mark.parametrize(("family", "mode"), BOTH)
def test_the_check_before_a_run_takes_these_families(family: str, mode: str):
    assert fault_of(made(family, mode), [TOOL]) == ""


@pytest.mark.parametrize(
    ("family", "mode", "fault"),
    [
        ("qwen2_5", "native", "has no block of its own for a thought"),
        ("llama3_2", "text", "omits the thought"),
        ("gemma4_v2", "text", "renders a thought after the call"),
        ("lfm2_2_5", "text", "renders a thought twice"),
        ("gptoss", "native", "renders earlier turns differently"),
    ],
)
def test_a_template_that_cannot_carry_thoughts_is_refused_with_the_reason(family: str, mode: str, fault: str):
    assert fault in fault_of(made(family, mode), [TOOL])
    assert fault_of(made(family), [TOOL]) == "", "it can be trained without thoughts"


def test_a_template_that_adds_to_a_thought_is_refused():
    tokenizer = made("qwen2_5")
    added = tokenizer.chat_template.replace("{{- '\\n' + message.content }}", "{{- '\\nNote: ' + message.content }}")
    tokenizer.chat_template = added
    assert "so that TRL's parser reads 'Note: " in fault_of(think(tokenizer, ThinkingSpec(mode="text")), [TOOL])


@pytest.mark.parametrize("family", ["qwen3", "qwen2_5"])
def test_off_leaves_the_template_to_the_byte(family: str):
    plain = made(family).chat_template
    tokenizer = made(family, "text")
    assert tokenizer.chat_template != plain == without_thinking(tokenizer.chat_template)
    assert think(tokenizer, None).chat_template == plain
    assert thinking_of(tokenizer) is None


@pytest.mark.parametrize(
    "instruction",
    ["Think!", "{#- end of thinking #} a", 'It\'s "so": {{ 1 }} {% if %} #} -#} \\n é 😀\nThen call.', ""],
)
def test_the_instruction_stands_once_in_every_prompt_whatever_it_says(instruction: str):
    tokenizer = made("qwen3", "text", instruction=instruction)
    shown = tokenizer.decode(prompt_ids(tokenizer, QUESTION, [TOOL]))
    assert shown.count(f"system\n\n{instruction}" if instruction else "<|im_start|>system\nsystem\n\n#") == 1
    found = thinking_of(tokenizer)
    assert found is not None
    assert found.instruction == instruction


def test_a_later_choice_takes_the_place_of_an_earlier_one():
    tokenizer = made("qwen3", "text")
    think(tokenizer, ThinkingSpec(mode="native", instruction="Reason."))
    assert tokenizer.chat_template == made("qwen3", "native", instruction="Reason.").chat_template


def test_the_choice_is_kept_by_a_saved_tokenizer(tmp_path: Any):
    from transformers import AutoTokenizer

    made("qwen3", "native", max_tokens=9).save_pretrained(tmp_path)
    assert thinking_of(AutoTokenizer.from_pretrained(tmp_path)) == ThinkingSpec(mode="native", max_tokens=9)
    assert thinking_at(tmp_path) == ThinkingSpec(mode="native", max_tokens=9)
    assert thinking_at(tmp_path / "no model") is None


def test_native_turns_the_templates_own_switch_on_and_text_leaves_it_off():
    prompts = {
        mode: made("qwen3", mode).apply_chat_template(
            QUESTION, tokenize=False, add_generation_prompt=True, **TEMPLATE_ARGUMENTS
        )
        for mode in (None, "text", "native")
    }
    assert prompts[None].endswith("<think>\n\n</think>\n\n")
    assert prompts["text"].endswith("<think>\n\n</think>\n\n")
    assert prompts["native"].endswith("<|im_start|>assistant\n")


def test_a_student_that_answers_at_once_learns_no_thought():
    tokenizer, thought = made("qwen3"), turn("1 + 1 = 2.")
    plain = {name: value for name, value in thought.items() if name != THOUGHT}
    rows = [training_row([*QUESTION, each], [TOOL]) for each in (thought, plain)]
    assert labelled(tokenizer, rows[0]) == labelled(tokenizer, rows[1])


# --- budgets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "mode"), [("qwen2_5", "text"), ("qwen3", "native")])
def test_a_thought_over_its_budget_is_no_call(family: str, mode: str):
    thought = "1 + 1 = 2."
    for room, is_cut in ((len(thought), False), (len(thought) - 1, True)):
        tokenizer = made(family, mode, max_tokens=room)
        prefix = prompt_ids(tokenizer, QUESTION, [TOOL])
        read = parse(tokenizer, generated(tokenizer, [*QUESTION, turn(thought)]), prefix, [TOOL])
        assert bool(read.get(CUT_OFF)) is is_cut
        assert bool(read.get("tool_calls")) is not is_cut
        assert read[THOUGHT] == thought
        assert problems(read, [TOOL]) == (["thought cut off"] if is_cut else [])


NAMED_MARK = f"Plan.\nAction Input: 85\n{'So. ' * 12}".strip() + "\nDone."
CALL = '<tool_call>\n{"name": "answer", "arguments": {"answer": "85", "count": 7}}\n</tool_call>'


@pytest.mark.parametrize(
    ("family", "mode", "written", "thought", "beside"),
    [
        ("qwen2_5", "text", f"47 + 38 = 85.\n{CALL}\nI have answered.", "47 + 38 = 85.\nI have answered.", ""),
        ("qwen2_5", "text", f"{CALL}\nI have answered.", "I have answered.", ""),
        ("qwen2_5", "text", f"Plan.\nAction Input: 85\n{'So. ' * 12}\n{CALL}\nDone.", NAMED_MARK, ""),
        ("qwen3", "native", f"<think>\n85.\n</think>\n\nSo 85.\n{CALL}", "85.", "So 85."),
        ("qwen3", "native", f"<think>\n85.\n</think>\n\nSo 85.\n{CALL}\nDone.", "85.", "So 85.\nDone."),
    ],
)
def test_all_that_is_written_beside_a_call_is_within_the_budget_of_the_thought(
    family: str, mode: str, written: str, thought: str, beside: str
):
    for room, is_cut in ((len(thought + beside), False), (len(thought + beside) - 1, True)):
        tokenizer = made(family, mode, max_tokens=room)
        prefix = prompt_ids(tokenizer, QUESTION, [TOOL])
        end = tokenizer.decode([chat_format(tokenizer).ends[0]])
        read = parse(tokenizer, tokenizer.encode(written + end), prefix, [TOOL])
        assert bool(read.get(CUT_OFF)) is is_cut
        assert bool(read.get("tool_calls")) is not is_cut
        if not is_cut:
            assert (read[THOUGHT], read["content"]) == (thought, beside)


@pytest.mark.parametrize(
    ("family", "written"),
    [
        ("gemma4", "<|channel>thought\n85.\n<channel|><|tool_call>call:ans"),
        ("qwen3", '<think>\n85.\n</think>\n\n<tool_call>\n{"name": "ans'),
    ],
)
def test_a_call_that_is_cut_off_is_no_answer_in_words(family: str, written: str):
    tokenizer = made(family, "native")
    prefix = prompt_ids(tokenizer, QUESTION, [TOOL])
    read = parse(tokenizer, tokenizer.encode(written, add_special_tokens=False), prefix, [TOOL])
    assert (read["content"], read[CUT_OFF]) == ("", True)


@pytest.mark.parametrize("thought", ["the tag <think> is odd", "maybe <tool_call> then", "as functions.answer(x) does"])
def test_marks_that_a_thought_names_make_no_text_of_it(thought: str):
    tokenizer = made("qwen3_5_think", "native")
    prefix = prompt_ids(tokenizer, QUESTION, [TOOL])
    read = parse(tokenizer, generated(tokenizer, [*QUESTION, turn(thought)]), prefix, [TOOL])
    assert (read["content"], read[THOUGHT]) == ("", thought)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5_think", "glm4moe", "lfm2_2_5"])
def test_an_answer_in_words_that_is_cut_off_after_its_thought_is_no_thought(family: str):
    tokenizer = made(family, "native")
    prefix = prompt_ids(tokenizer, QUESTION, [TOOL])
    answer = {"role": "assistant", "content": "We cannot take it back, since", THOUGHT: "It is old."}
    whole = tokenizer.decode(row_ids(tokenizer, training_row([*QUESTION, answer], [TOOL]))[len(prefix) :])
    cut = whole[: whole.index("back")]
    read = parse(tokenizer, tokenizer.encode(cut, add_special_tokens=False), prefix, [TOOL])
    assert (read.get(CUT_OFF), read[THOUGHT].strip(), read["content"].strip()) == (
        None,
        "It is old.",
        "We cannot take it",
    )
    within = parse(tokenizer, tokenizer.encode(whole[: whole.index("old")]), prefix, [TOOL])
    assert within[CUT_OFF]


def test_a_thought_without_an_end_is_named_and_a_call_without_one_is_not():
    tokenizer = made("qwen2_5", "text")
    prefix = prompt_ids(tokenizer, QUESTION, [TOOL])
    ids = generated(tokenizer, [*QUESTION, turn("1 + 1 = 2.")])
    thought = len(tokenizer.encode("1 + 1 = 2."))
    assert parse(tokenizer, ids[:thought], prefix, [TOOL]) == {
        "role": "assistant",
        "content": "",
        THOUGHT: "1 + 1 = 2.",
        CUT_OFF: True,
    }
    assert problems(parse(tokenizer, ids[:-20], prefix, [TOOL]), [TOOL]) == ["no tool call"]


def test_a_thought_that_ends_with_the_turn_has_no_end_of_its_own():
    tokenizer = made("qwen3", "native")
    prefix = prompt_ids(tokenizer, QUESTION, [TOOL])
    end = tokenizer.decode([chat_format(tokenizer).ends[1]])
    for thought in ("It is 2.", 'It is <tool_call>{"name": "answer", "arguments": {"answer": "2"}}</tool_call>'):
        read = parse(tokenizer, tokenizer.encode(f"<think>\n{thought}{end}"), prefix, [TOOL])
        assert read == {"role": "assistant", "content": "", THOUGHT: thought, CUT_OFF: True}


def test_an_answer_in_words_is_no_thought():
    tokenizer = made("qwen2_5", "text")
    prefix = prompt_ids(tokenizer, QUESTION, [TOOL])
    end = tokenizer.decode([chat_format(tokenizer).ends[1]])
    read = parse(tokenizer, tokenizer.encode(f"It is 2.{end}"), prefix, [TOOL])
    assert read == {"role": "assistant", "content": "It is 2."}


# --- served ---------------------------------------------------------------------------------------------------------


def test_a_student_that_thinks_is_served_with_its_switch_and_the_parser_of_its_thoughts():
    (vllm, transformers) = commands(made("qwen3", "native").chat_template, "me/model", None)
    assert " --reasoning-parser qwen3 " in vllm
    assert "'{\"enable_thinking\": true}'" in vllm
    assert "'{\"enable_thinking\": true}'" in transformers
    vllm, _ = commands(made("qwen3", "text").chat_template, "me/model", None)
    assert "--reasoning-parser" not in vllm
    assert "'{\"enable_thinking\": false}'" in vllm


@pytest.mark.parametrize(
    ("mode", "given"),
    [
        ("native", {"content": ""}),
        ("native", {"content": None, THOUGHT: "\n1 + 1 = 2.\n"}),  # as vLLM's parser reads it
        ("text", {"content": "1 + 1 = 2.\n", THOUGHT: None}),  # with the line break that its parser leaves
        ("text", {"content": [{"type": "text", "text": "1 + 1 = 2."}], THOUGHT: None}),
        ("text", {"content": None}),
    ],
)
@pytest.mark.parametrize("in_parts", [False, True])
def test_a_server_that_renders_the_template_itself_has_the_prompt_of_training(
    mode: str, given: dict[str, Any], in_parts: bool
):
    """As a client sends a conversation: arguments as text, the thought as vLLM returns it."""
    tokenizer = made("qwen3", mode)
    said = turn("1 + 1 = 2.")
    call = {"name": "answer", "arguments": json.dumps({"answer": "85", "count": 7})}
    opening: Any = QUESTION
    if in_parts:
        opening = [each | {"content": [{"type": "text", "text": each["content"]}]} for each in QUESTION]
        opening[0]["content"] += [{"type": "text", "text": None}, {"type": "image_url"}]
    sent = [*opening, said | given | {"tool_calls": [{"type": "function", "function": call}]}, REPLY]
    rendered = tokenizer.apply_chat_template(
        sent, tools=[TOOL], tokenize=True, return_dict=False, add_generation_prompt=True, enable_thinking=True
    )
    assert rendered == prompt_ids(tokenizer, [*QUESTION, said, REPLY], [TOOL])
