"""What ends a thought for a model, and whose thought it gets: real ids, and no argument that was not asked for."""

from typing import Any

import pytest

from apprentice.tasks.episodes.episode import turn_of
from apprentice.tasks.episodes.rendering import chat_format, conversation_ids, parse, prompt_ids
from apprentice.tasks.episodes.thinking import CUT_OFF, THOUGHT, think
from apprentice.tasks.models.tokenizer import prepare_tokenizer
from apprentice.tasks.players.thought_budget import Thoughts, TurnStart, ends_of_thoughts, forced_ids, within_budget
from apprentice.tasks.settings.spec import ThinkingSpec
from tests.students_page import templates, toy_tokenizer, with_merges

ASKED = [{"role": "system", "content": "system"}, {"role": "user", "content": "user"}]


def made(family: str, mode: Any) -> Any:
    return think(prepare_tokenizer(toy_tokenizer(templates()[family])), ThinkingSpec(mode=mode))


def taking(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """A tool with one argument."""
    parameters = {"type": "object", "properties": {"answer": schema}, "required": ["answer"]}
    return [{"type": "function", "function": {"name": "answer", "description": "", "parameters": parameters}}]


def turn_start(tokenizer: Any, tools: list[dict[str, Any]], messages: Any = ASKED) -> TurnStart:
    return TurnStart(messages, tools, prompt_ids(tokenizer, messages, tools))


STRING = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "known"),
    [
        (STRING, '"'),
        ({"type": "integer"}, ""),
        ({"type": "array"}, "["),
        ({"type": "array", "items": {"type": "integer"}}, "["),
        ({"type": "object"}, "{"),
        ({"anyOf": [{"type": "array", "items": STRING}, {"type": "null"}]}, ""),
        ({"type": ["null", "string"]}, ""),
        ({"enum": ["north", "east", "northwest"]}, '"'),
        ({"enum": ["open_door", "look", "open_box"]}, '"'),
        ({"type": "integer", "enum": [10, 2, 15]}, ""),
        ({"oneOf": [{"const": "yes"}, {"const": "no"}]}, '"'),
        ({"anyOf": [{"enum": ["a"]}, {"enum": ["b"]}]}, '"'),
    ],
)
def test_a_call_is_begun_up_to_what_only_the_model_knows(schema: dict[str, Any], known: str):
    tokenizer, tools = made("qwen2_5", "text"), taking(schema)
    call = '<tool_call>\n{"name": "answer", "arguments": {"answer": '
    assert tokenizer.decode(forced_ids(tokenizer, turn_start(tokenizer, tools), "")) == call + known
    assert tokenizer.decode(forced_ids(tokenizer, turn_start(tokenizer, tools), "2.")) == f"2.\n{call}{known}"


def test_of_several_tools_the_name_is_left_to_the_model():
    tokenizer = made("qwen2_5", "text")
    tools = [*taking(STRING), *taking(STRING)]
    tools[1] = {"type": "function", "function": tools[1]["function"] | {"name": "ask"}}
    assert tokenizer.decode(forced_ids(tokenizer, turn_start(tokenizer, tools), "")) == '<tool_call>\n{"name": "a'


NATIVE = ("qwen3", "gemma4", "gemma4_v5", "glm4moe", "lfm2_2_5", "nemotron_3_nano", "qwen3_5_think")
BOTH = [("qwen2_5", "text"), ("nemotron_3_nano", "text"), *((family, "native") for family in NATIVE)]


class Writer:
    """Writes a text in the first of a turn's parts, and an answer in the second."""

    def __init__(self, tokenizer: Any, first: str, answer: str):
        self.tokenizer, self.texts = tokenizer, (first, answer)

    def __call__(self, prompts: Any, most: int, places: Any, answers: bool) -> list[list[int]]:
        return [self.tokenizer.encode(self.texts[answers], add_special_tokens=False)[:most] for _ in prompts]


def rendered(tokenizer: Any, where: TurnStart, thought: str) -> tuple[str, str]:
    """What training renders of a turn before and after its thought."""
    turn = turn_of("answer", {"answer": "85"}) | {THOUGHT: thought}
    whole = conversation_ids(tokenizer, [*where.messages, turn], where.tools)[len(where.prompt) :]
    before, _, after = tokenizer.decode(whole).partition(thought)
    return before, after


@pytest.mark.parametrize(("family", "mode"), BOTH)
@pytest.mark.parametrize("way", ["cut", "after a line break", "ended", "ended within the call's frame", "swapped"])
@pytest.mark.parametrize("is_second", [False, True])
def test_a_thought_that_is_ended_has_the_ids_of_training(family: str, mode: str, way: str, is_second: bool):
    thought, tools = "1 + 1 = 2.", taking(STRING)
    tokenizer = with_merges(made(family, mode), ".\n", "\n\n")
    call = turn_of("answer", {"answer": "7"})
    messages = [*ASKED, call | {THOUGHT: "Try 7."}, {"role": "tool", "name": "answer", "content": "Higher."}]
    where = turn_start(tokenizer, tools, messages if is_second else ASKED)
    before, after = rendered(tokenizer, where, thought)
    frame = after[: after.index("85")]
    first = before + thought + {"after a line break": "\n", "ended": frame[: len(frame) // 2]}.get(way, "")
    if way == "ended within the call's frame":
        first = before + thought + frame[:-3]
    others = (lambda found: found) if way == "swapped" else None
    rest = after[len(first) - len(before + thought) :] if way.startswith("ended") else after[len(frame) :]
    writes = Writer(tokenizer, first, rest)
    [written] = within_budget(writes, tokenizer, [where], 10_000, 10_000, others)
    turn = call | {THOUGHT: thought, "tool_calls": turn_of("answer", {"answer": "85"})["tool_calls"]}
    learned = conversation_ids(tokenizer, [*where.messages, turn], tools)[len(where.prompt) :]
    if way.startswith("ended"):
        assert tokenizer.decode(written) == tokenizer.decode(learned[: len(written)])
    else:
        known = forced_ids(tokenizer, where, thought)
        assert written[: len(known)] == known == learned[: len(known)]
    read = parse(tokenizer, written, where.prompt, tools)
    assert read[THOUGHT] == thought
    assert [call["function"]["arguments"] for call in read["tool_calls"]] == [{"answer": "85"}]


@pytest.mark.parametrize(("family", "mode"), BOTH)
@pytest.mark.parametrize("is_second", [False, True])
def test_without_a_thought_the_call_stands_in_no_block(family: str, mode: str, is_second: bool):
    tokenizer, tools = with_merges(made(family, mode), "\n\n"), taking(STRING)
    call = turn_of("answer", {"answer": "7"}) | {THOUGHT: "Try 7."}
    messages = [*ASKED, call, {"role": "tool", "name": "answer", "content": "Higher."}]
    where = turn_start(tokenizer, tools, messages if is_second else ASKED)
    _, after = rendered(tokenizer, where, "1 + 1 = 2.")
    writes = Writer(tokenizer, "", after[after.index("85") :])
    [written] = within_budget(writes, tokenizer, [where], 0, 10_000)
    read = parse(tokenizer, written, where.prompt, tools)
    assert not read.get(THOUGHT)
    assert not read.get(CUT_OFF)
    assert [call["function"]["arguments"] for call in read["tool_calls"]] == [{"answer": "85"}]


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5_think", "glm4moe", "lfm2_2_5", "nemotron_3_nano"])
@pytest.mark.parametrize("tools", [taking(STRING), []], ids=["tool", "no tool"])
@pytest.mark.parametrize("budget", [0, 4, 10_000])
def test_where_a_text_is_an_answer_no_call_is_begun_in_its_place(family: str, tools: list[Any], budget: int):
    tokenizer, answer = with_merges(made(family, "native"), "\n\n"), {"role": "assistant", "content": "Too old."}
    where = turn_start(tokenizer, tools)._replace(takes_text=True)
    whole = conversation_ids(tokenizer, [*ASKED, answer | {THOUGHT: "1 + 1 = 2."}], tools)[len(where.prompt) :]
    block = tokenizer.decode(whole).partition("Too old.")[0]
    answered = f"Too old.{tokenizer.decode([chat_format(tokenizer).ends[0]])}"
    [written] = within_budget(Writer(tokenizer, block, answered), tokenizer, [where], budget, 10_000)
    read = parse(tokenizer, written, where.prompt, tools)
    assert read["content"].strip() == "Too old."
    assert not read.get("tool_calls")
    assert not read.get(CUT_OFF)


def test_a_call_is_begun_where_a_template_renders_no_thought_before_a_text():
    tokenizer = made("gemma4", "native")
    where = turn_start(tokenizer, taking(STRING))._replace(takes_text=True)
    assert "answer{" in tokenizer.decode(forced_ids(tokenizer, where, "1 + 1 = 2."))


@pytest.mark.parametrize("family", ["lfm2_2_5", "gemma4", "glm4moe", "qwen3"])
def test_an_answer_without_a_thought_gives_none_to_another_question(family: str):
    tokenizer, tools, seen = made(family, "native"), taking(STRING), []
    where = turn_start(tokenizer, tools)
    _, after = rendered(tokenizer, where, "1 + 1 = 2.")
    marks = ends_of_thoughts(tokenizer, tools)
    call = after[after.index(marks[-1]) :]
    writes = Writer(tokenizer, call, after[after.index("85") :])
    within_budget(writes, tokenizer, [where], 10_000, 10_000, lambda found: seen.extend(found) or found)
    assert seen == [""]


def test_a_character_of_which_tokens_are_missing_is_left_out_of_a_thought_that_is_ended():
    tokenizer, tools = made("qwen2_5", "text"), taking(STRING)
    most = len(tokenizer.encode("2 \u20ac")) - 1
    [written] = within_budget(Writer(tokenizer, "2 \u20ac", ""), tokenizer, [turn_start(tokenizer, tools)], most, 50)
    assert tokenizer.decode(written).startswith("2\n<tool_call>")


@pytest.mark.parametrize(
    ("batches", "swapped"),
    [
        ([{1: "a", 2: "b", 3: "c"}], ["b", "c", "a"]),
        ([{1: "a"}, {2: "b"}], ["", "a"]),
        ([{1: "a", 2: "b"}, {2: "c"}, {2: "d"}], ["b", "a", "a", "a"]),  # a game's own thought is no other's
    ],
)
def test_each_answer_gets_another_questions_thought(batches: list[dict[int, str]], swapped: list[str]):
    thoughts = Thoughts()
    assert [each for batch in batches for each in thoughts.of_others([*batch], [*batch.values()])] == swapped


def test_samples_of_one_question_do_not_swap_among_themselves():
    assert Thoughts().of_others([1, 1, 2], ["a", "b", "c"]) == ["c", "c", "a"]
