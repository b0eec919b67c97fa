"""An exported row has, in TRL's own SFTTrainer, the token ids of our SFT under every template that a student may have.

The tokenizers are of single bytes, with a family's template of the installed TRL.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, load_dataset

from apprentice.envs.player import Player
from apprentice.tasks.dataset import KnownQuestions, Verifier
from apprentice.tasks.episodes.record import Record
from apprentice.tasks.episodes.rendering import row_ids, training_row
from apprentice.tasks.formats.exports import export
from apprentice.tasks.formats.trl_rows import EXACT
from apprentice.tasks.models.tokenizer import prepare_tokenizer, unparsed
from apprentice.tasks.training.template import fault_of
from tests.students_page import TOOL, templates, toy_tokenizer
from tests.tasks.formats.test_exports import RIGHT, guess, played
from tests.tasks.test_one_prompt import tiny_model
from tests.tasks.test_rescore import ECHO, Patient

QUICK = ("gemma4_v5", "llama3_2", "qwen2_5", "qwen3")
WHERE = {"where": {"type": "string", "description": "Where."}, "deep": {"type": "object", "description": "How."}}
LOOK = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": WHERE, "required": []}}
TOOLS = json.dumps([TOOL, {"type": "function", "function": LOOK}])
BEGIN = [{"role": "system", "content": "system"}, {"role": "user", "content": "Wie heißt 漢?"}]


def calls(*named: tuple[str, Any], text: str | None = "", ids: bool = True) -> list[dict[str, Any]]:
    """A turn with these calls, and the replies."""
    spelt = [(name, each if isinstance(each, str) else json.dumps(each, ensure_ascii=False)) for name, each in named]
    called = [{"type": "function", "function": {"name": name, "arguments": each}} for name, each in spelt]
    replies = [{"role": "tool", "name": name, "content": f"reply {at}"} for at, (name, _) in enumerate(named)]
    if ids:
        called = [{"id": f"call_{at}"} | each for at, each in enumerate(called)]
        replies = [each | {"tool_call_id": f"call_{at}"} for at, each in enumerate(replies)]
    return [{"role": "assistant", "content": text, "tool_calls": called}, *replies]


END = ("answer", {"answer": 'é漢 🌍 "q" it\'s / \\', "count": -7})
EPISODES = {
    "one call": calls(END),
    "spelt otherwise, without text": calls(("answer", '{"answer":"a\\u00e9","count":1e2}'), text=None),
    "calls with other arguments": [*calls(("look", {"where": "a"})), *calls(END)],
    "empty arguments, and a text": [*calls(("look", {}), text="Let me look."), *calls(END)],
    "nested arguments and a float": [
        *calls(("look", {"deep": {"a": [1, {"b": "n"}], "f": 0.25, "t": True}})),
        *calls(END),
    ],
    "without ids": [*calls(("look", {"where": "b"}), ids=False), *calls(END, ids=False)],
    "two calls in a turn": [*calls(("look", {"where": "b"}), ("answer", {"answer": "c", "count": 1})), *calls(END)],
}
ONE_CALL_A_TURN = ("llama3_1", "llama3_2")


def record(seed: int, turns: list[dict[str, Any]], **given: Any) -> Record:
    return Record(seed=seed, environment="toy 1", messages=[*BEGIN, *turns], tools=TOOLS, reward=1.0, **given)


RECORDS = [record(seed, turns) for seed, turns in enumerate(EPISODES.values())]


def usable() -> list[str]:
    names = [name for name, template in templates().items() if not unparsed(toy_tokenizer(template))]
    return [name for name in names if not fault_of(prepare_tokenizer(toy_tokenizer(templates()[name])), [TOOL])]


def read(folder: Path, records: list[Record]) -> Dataset:
    folder.mkdir(exist_ok=True)
    export(records, "trl", folder, "toy")
    rows: Any = load_dataset(str(folder), split="train", cache_dir=str(folder.parent / "cache"))
    return rows


def ids_of_trl(tokenizer: Any, rows: Dataset, folder: Path) -> list[list[int]]:
    from trl import SFTConfig, SFTTrainer

    args = SFTConfig(str(folder / "trained"), report_to="none", use_cpu=True, bf16=False, max_length=None)
    trainer = SFTTrainer(tiny_model(tokenizer), processing_class=tokenizer, train_dataset=rows, args=args)
    trained: Any = trainer.train_dataset
    return trained["input_ids"]


def own_ids(tokenizer: Any, record: Record) -> list[int]:
    row = training_row(record.messages, json.loads(record.tools))
    return row_ids(tokenizer, row | {"messages": row["messages"][:-1]})


def check(name: str, folder: Path) -> None:
    tokenizer = prepare_tokenizer(toy_tokenizer(templates()[name]))
    records = RECORDS[:-1] if name in ONE_CALL_A_TURN else RECORDS
    found = ids_of_trl(tokenizer, read(folder / "out", records), folder)
    for each, ids, kind in zip(records, found, EPISODES, strict=False):
        assert tokenizer.decode(ids) == tokenizer.decode(own_ids(tokenizer, each)), kind
        assert ids == own_ids(tokenizer, each)


@pytest.mark.parametrize("name", QUICK)
def test_trl_learns_the_tokens_of_our_own_sft(name: str, tmp_path: Path):
    check(name, tmp_path)


@pytest.mark.long
def test_trl_learns_them_under_every_template_of_the_page_of_students(tmp_path: Path):
    names = usable()
    assert len(names) >= 25
    for name in names:
        (tmp_path / name).mkdir()
        check(name, tmp_path / name)


def test_no_argument_of_another_call_is_read_as_null(tmp_path: Path):
    rows = read(tmp_path / "out", RECORDS)
    for row, before in zip(rows, RECORDS, strict=True):
        given: Any = row
        found = [call["function"]["arguments"] for each in given["messages"] for call in each.get("tool_calls", [])]
        said = [call["function"]["arguments"] for each in before.messages for call in each.get("tool_calls", [])]
        assert found == list(map(json.loads, said))
    parquet = tmp_path / "rows.parquet"
    rows.to_parquet(parquet)
    again: Any = load_dataset("parquet", data_files=str(parquet), split="train", cache_dir=str(tmp_path / "cache"))
    assert again["messages"][:] == rows["messages"][:]


def test_a_row_says_nothing_twice_where_it_holds_all(tmp_path: Path):
    rows: Any = read(tmp_path / "out", [record(0, calls(END, ids=False)), record(1, calls(END))])
    assert rows[0][EXACT] == ""
    assert list(json.loads(rows[1][EXACT])) == ["2"]


@pytest.mark.parametrize(
    "turns",
    [
        (guess('{"number":1}', id="b"), RIGHT),
        (guess('{"number": 1}', "Text.") | {"weight": 0}, RIGHT),
        (guess("{broken"), guess('{"number": 12345678901234567890123}'), RIGHT),
        (guess("[1]"), guess('{"number": 0.3}'), RIGHT),
    ],
)
def test_what_datasets_wrote_again_is_imported_as_it_was(turns: Any, tmp_path: Path):
    before = played(*turns)
    (row,) = read(tmp_path / "out", [before]).to_list()
    for column in (row, json.loads((tmp_path / "out/train.jsonl").read_text())):
        after = Verifier(ECHO, KnownQuestions({}, set()), {})(Player(Patient()), column)
        assert after.record == before, after.cause


@pytest.mark.parametrize(
    ("arguments", "is_text"),
    [('{"n": 0.7}', False), ('{"n": 0.12345678901}', False), ('{"n": 123456789012345678901}', True)],
)
def test_a_number_that_datasets_changes_is_said(arguments: str, is_text: bool, tmp_path: Path, caplog: Any):
    read(tmp_path / "fine", RECORDS)
    assert "cannot keep" not in caplog.text
    rows: Any = read(tmp_path / "out", [*RECORDS, record(9, calls(("look", arguments)))])
    assert f"{arguments} of seed 9" in " ".join(caplog.text.split())
    (call,) = rows[-1]["messages"][2]["tool_calls"]
    assert isinstance(call["function"]["arguments"], str) == is_text
    assert rows[0]["messages"][2]["tool_calls"][0]["function"]["arguments"] == END[1], "the others are read as before"


def test_a_turn_of_weight_0_is_exported_with_it_and_said(tmp_path: Path, caplog: Any):
    turns = calls(("look", {"where": "a"}))
    rows: Any = read(tmp_path / "out", [record(9, [turns[0] | {"weight": 0}, turns[1], *calls(END)])])
    assert [message.get("weight") for message in rows[0]["messages"]] == [None, None, 0, None, None, None]
    assert "A turn of seed 9 has weight 0, and TRL learns it" in " ".join(caplog.text.split())


def test_a_half_character_does_not_break_the_file(tmp_path: Path):
    rows: Any = read(tmp_path / "out", [*RECORDS, record(9, calls(("look", '{"where": "\\ud800"}')))])
    assert len(rows) == len(RECORDS) + 1
