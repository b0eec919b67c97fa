"""What becomes of imported rows whose calls stand in a text, in a thought, or in a turn that carries no loss."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.echo.text import text_of
from apprentice.envs.player import Player
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.tools import tools_text
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.dataset import KnownQuestions, Verifier
from apprentice.tasks.episodes.rendering import IGNORED, labelled, training_row
from apprentice.tasks.models.tokenizer import prepare_tokenizer
from apprentice.tasks.reporting.errors import Stop
from tests.odd_server import odd_server
from tests.students_page import templates, toy_tokenizer
from tests.tasks.test_dataset import Bench, chat, folder_of, row, turn
from tests.tasks.test_rescore import ECHO, Patient, guessed

TEXT = text_of(1, 3)
GIVEN = json.dumps({"message": TEXT})
CALLED = {"name": "echo", "arguments": {"message": TEXT}}
NOTATIONS = {
    "xLAM's": json.dumps([CALLED]),
    "ToolACE's [NAME(…)]": f'[echo(message="{TEXT}")]',
    "Glaive's <functioncall>": f'<functioncall> {{"name": "echo", "arguments": \'{GIVEN}\'}} <|endoftext|>',
    "Mistral's [TOOL_CALLS]": f"[TOOL_CALLS] {json.dumps([CALLED])}",
    "Llama's <|python_tag|>": f'<|python_tag|>{{"name": "echo", "parameters": {GIVEN}}}',
    "Functionary's or Qwen3-Coder's <function=NAME>": f"<tool_call><function=echo>{GIVEN}</function></tool_call>",
    "ReAct's Action Input": f"Thought: I repeat.\nAction: echo\nAction Input: {GIVEN}",
    "Python's NAME(…)": f"I call echo(message='{TEXT}').",
    "a call's arguments alone": GIVEN,
}
WRITTEN = f"<tool_call>{json.dumps(CALLED)}</tool_call>"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with odd_server("sound") as url:
        yield Bench(tmp_path, url)


def says(seed: int, text: str, **given: Any) -> dict[str, Any]:
    """A row that answers a text; the collect window has seeds 0 to 11."""
    message = {"role": "user", "content": text_of(seed, 3)}
    return {"messages": [message, {"role": "assistant", "content": text} | given]}


@pytest.mark.parametrize("seed", [1, 50], ids=["known", "unknown"])
@pytest.mark.parametrize("unverified", ["drop", "keep"])
@pytest.mark.parametrize("with_tools", [False, True])
def test_no_notation_that_is_not_read_is_learned_from(
    bench: Bench, tmp_path: Path, seed: int, unverified: str, with_tools: bool
):
    tools = {"tools": tools_text(ECHO.make().tools)} if with_tools else {}
    rows = [says(seed, text) | tools for text in NOTATIONS.values()]
    bench(folder_of(tmp_path, chat(2), *rows), unverified)
    assert [record.seed for record in bench.taken] == [2]
    for left, name in zip(bench.refused, NOTATIONS, strict=True):
        assert left["field"] == "messages.1.content"
        assert f"a call in a notation that is not read, {name}" in left["cause"]


def test_each_notation_is_counted_by_its_name(bench: Bench, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    bench(folder_of(tmp_path, chat(2), *(says(1, text) for text in NOTATIONS.values())))
    shown = json.loads((bench.out / "verification.json").read_text())["counts"]
    assert {f"refused: a call in a notation that is not read, {name}" for name in NOTATIONS} <= {
        each["rows"].removesuffix(' {"name", "arguments"}') for each in shown
    }


def test_the_table_shows_a_text_in_brackets_as_it_is(bench: Bench, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    bench(folder_of(tmp_path, chat(2), says(1, "[/INST] echo(message='a') [echo(message='b')]")))
    shown = "".join(capfd.readouterr().out.split())
    assert "[/INST]echo(message='a')[echo(message='b')]" in shown


def test_where_all_rows_are_in_such_a_notation_the_error_names_it(bench: Bench, tmp_path: Path):
    with pytest.raises(Stop, match=r"Mistral's \[TOOL_CALLS\].*give calls as `tool_calls`"):
        bench(folder_of(tmp_path, says(50, NOTATIONS["Mistral's [TOOL_CALLS]"])), "keep")


@pytest.mark.parametrize(
    ("given", "arguments", "text"),
    [
        (says(1, WRITTEN), TEXT, ""),
        (says(1, "", function_call=CALLED | {"arguments": GIVEN}), TEXT, ""),
        (says(1, "I repeat it.", function_call=CALLED), TEXT, "I repeat it."),
        (says(1, f"<think>{WRITTEN.replace(TEXT, 'x')}</think>{WRITTEN}"), TEXT, ""),
        (says(1, f"<think>{WRITTEN.replace(TEXT, 'x')}</think>{TEXT}"), TEXT, ""),
        (says(1, f"<think>echo(message='x')?</think>\n\n{TEXT}"), TEXT, ""),
        (says(1, TEXT, reasoning_content=WRITTEN), TEXT, ""),
        (says(1, f"echo (the nymph) said {TEXT}"), f"echo (the nymph) said {TEXT}", ""),
    ],
)
@pytest.mark.parametrize("unverified", [False, True])
def test_what_is_read_is_the_call_outside_of_thoughts(given: Any, arguments: str, text: str, unverified: bool):
    known = KnownQuestions({} if unverified else {TEXT: 1}, set())
    with odd_server("sound") as url:
        server = EnvironmentServer(url=url, sessions=1, patience=0.5)
        with EnvironmentPool(ECHO, server, size=1) as pool:
            ((_, found),) = pool.map(Verifier(ECHO, known, {}), [given])
    assert found.record, found.cause
    said = found.record.messages[2]
    assert [json.loads(call["function"]["arguments"]) for call in said["tool_calls"]] == [{"message": arguments}]
    assert (said["content"] or "") == text


@pytest.mark.parametrize(
    "message",
    [{"text": f"<think>I repeat it.</think>{TEXT}"}, {"text": TEXT, "reasoning_content": "I repeat it."}],
)
def test_an_answer_in_words_becomes_a_call_with_its_thought(message: dict[str, Any]):
    with odd_server("sound") as url:
        server = EnvironmentServer(url=url, sessions=1, patience=0.5)
        with EnvironmentPool(ECHO, server, size=1) as pool:
            verifier = Verifier(ECHO, KnownQuestions({TEXT: 1}, set()), {}, thoughts=True)
            ((_, found),) = pool.map(verifier, [says(1, **message)])
    assert found.record, found.cause
    said = found.record.messages[2]
    assert [json.loads(call["function"]["arguments"]) for call in said["tool_calls"]] == [{"message": TEXT}]
    assert said["reasoning_content"] == "I repeat it."


@pytest.mark.parametrize("text", [f"<think>{WRITTEN}</think>", f"I could {WRITTEN} </think>"])
@pytest.mark.parametrize("seed", [1, 50])
def test_a_thought_alone_answers_nothing(bench: Bench, tmp_path: Path, text: str, seed: int):
    bench(folder_of(tmp_path, chat(2), says(seed, text)), "keep")
    assert [record.seed for record in bench.taken] == [2]
    assert bench.refused[0]["cause"].startswith("no call of a tool")


@pytest.mark.parametrize(
    "message",
    ['[TOOL_CALLS] [{"name": "echo"}]', "<tool_call>{}</tool_call>", 'echo(message="x")', '[echo(message="x")]'],
)
def test_an_argument_that_holds_a_call_is_not_taken_at_its_word(bench: Bench, tmp_path: Path, message: str):
    bench(folder_of(tmp_path, chat(2), chat(50, said=message), row(1, said=message)), "keep")
    assert [record.seed for record in bench.taken] == [2, 1]
    assert bench.taken[1].reward != 1.0, "what the environment plays has its reward"
    assert "a call in a notation that is not read" in bench.refused[0]["cause"]


def test_a_call_in_the_text_beside_a_call_is_refused(bench: Bench, tmp_path: Path):
    beside = chat(1)
    beside["messages"][1]["content"] = NOTATIONS["ToolACE's [NAME(…)]"]
    bench(folder_of(tmp_path, chat(2), beside), "keep")
    assert [left["field"] for left in bench.refused] == ["messages.1.content"]


def weighed(*weights: int | None) -> dict[str, Any]:
    """A game in which 1 is wrong and 2 is right."""
    turns = [turn(number) | ({} if weight is None else {"weight": weight}) for number, weight in enumerate(weights, 1)]
    return {"messages": [*guessed(1).messages[:2], *turns]}


def confirmed(given: dict[str, Any]) -> Any:
    return Verifier(ECHO, KnownQuestions({"which number?": 2}, set()), {})(Player(Patient()), given)


@pytest.mark.parametrize(
    ("given", "learned"), [(weighed(0, 1), [2]), (weighed(0, None), [2]), (weighed(1, 0), [1]), (weighed(1, 1), [1, 2])]
)
def test_a_turn_of_weight_0_is_played_and_carries_no_loss(given: dict[str, Any], learned: list[int]):
    record = confirmed(given).record
    assert record.reward == 1.0
    tokenizer = prepare_tokenizer(toy_tokenizer(templates()["qwen2_5"]))
    row = labelled(tokenizer, training_row(record.messages, json.loads(record.tools)))
    plain = labelled(tokenizer, training_row(confirmed(weighed(None, None)).record.messages, json.loads(record.tools)))
    assert row["input_ids"] == plain["input_ids"]
    text = tokenizer.decode([token for token in row["labels"] if token != IGNORED])
    assert [number for number in (1, 2) if f'"number": {number}' in text] == learned
    assert text.endswith("Done.<|im_end|>")


def test_rows_without_weights_are_records_without_weights():
    assert all("weight" not in message for message in confirmed(weighed(1, None)).record.messages)


@pytest.mark.parametrize(
    "given",
    [weighed(0, 0), {"messages": [*weighed(0, 0)["messages"], {"role": "assistant", "content": "Done.", "weight": 1}]}],
)
def test_a_row_of_which_nothing_is_learned_is_refused(given: dict[str, Any]):
    assert confirmed(given).cause.startswith("every turn of the assistant has weight 0")
    alone = Verifier(ECHO, KnownQuestions({}, set()), {})(Player(Patient()), says(1, TEXT, weight=0))
    assert alone.record is None
    assert "weight 0" in alone.cause
