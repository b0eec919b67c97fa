"""A file's rows are read in every form that the pages name, with their places; what nobody wrote is no part of them."""

import datetime
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from datasets import Dataset

from apprentice.tasks.files.forms import form_of, rows_in, without_nulls
from apprentice.tasks.reporting.errors import Stop

ROWS = [{"prompt": "ä 😀", "completion": "b"}, {"prompt": "c", "completion": "d", "reward": 1.0}]
READ = [ROWS[0] | {"reward": None}, ROWS[1]]
"""As a table has them."""


def lines(*rows: Any, end: str = "\n") -> str:
    return "".join(json.dumps(each, ensure_ascii=False) + end for each in rows)


def arrow(file: Path, new: Callable[[Any, pyarrow.Schema], Any]) -> None:
    table = pyarrow.Table.from_pylist(READ)
    with pyarrow.OSFile(str(file), "wb") as out, new(out, table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize(
    ("name", "write", "where"),
    [
        ("rows.jsonl", lambda file: file.write_text(lines(*ROWS)), "line"),
        ("rows.jsonl", lambda file: file.write_text("\ufeff" + lines(*ROWS)), "line"),
        ("rows.jsonl", lambda file: file.write_bytes(lines(*ROWS, end="\r\n").encode()), "line"),
        ("rows.jsonl", lambda file: file.write_bytes(lines(*ROWS, end="\r").encode()), "line"),
        ("rows.jsonl", lambda file: file.write_text(lines(*ROWS), "utf-16"), "line"),
        ("rows.json", lambda file: file.write_text(lines(*ROWS)), "line"),
        ("rows.json", lambda file: file.write_text("\ufeff" + lines(*ROWS)), "line"),
        ("rows.json", lambda file: file.write_text(json.dumps(ROWS)), "item"),
        ("rows.json", lambda file: file.write_text("\ufeff\n" + json.dumps(ROWS, indent=1)), "item"),
        ("rows.json", lambda file: file.write_text(json.dumps(ROWS), "utf-16"), "item"),
        ("rows.jsonl.gz", lambda file: file.write_bytes(gzip.compress(lines(*ROWS).encode())), "line"),
        ("rows.json.gz", lambda file: file.write_bytes(gzip.compress(json.dumps(ROWS).encode())), "item"),
        ("rows.parquet", lambda file: Dataset.from_list(READ).to_parquet(file), "row"),
        ("rows.arrow", lambda file: arrow(file, pyarrow.ipc.new_stream), "row"),
        ("rows.arrow", lambda file: arrow(file, pyarrow.ipc.new_file), "row"),
        ("rows.txt", lambda file: file.write_text(lines(*ROWS)), "line"),
    ],
)
def test_the_same_rows_are_read_of_each_form(tmp_path: Path, name: str, write: Callable[[Path], Any], where: str):
    write(tmp_path / name)
    read = list(rows_in(tmp_path / name))
    assert [each.where for each in read] == [f"{name}, {where} {number}" for number in (1, 2)]
    assert [{k: v for k, v in each.data.items() if v is not None} for each in read] == ROWS


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.jsonl", b'{"a": 1}\n{"a": \n', "rows.jsonl, line 2: this is not JSON"),
        ("rows.json", b'{"a": 1}\n{"a": \n', "rows.json, line 2: this is not JSON"),
        ("rows.json", b'[{"a": 1},\n{"a": \n', "rows.json: this is not JSON"),
        ("rows.jsonl.gz", b"no gzip", "rows.jsonl.gz cannot be read: Not a gzipped file"),
        ("rows.jsonl.gz", gzip.compress(b'{"a": 1}\n', mtime=0)[:12], "rows.jsonl.gz cannot be read"),
        ("rows.parquet", b"PAR1", "rows.parquet is not a Parquet file"),
        ("rows.arrow", b"ARROW1", "rows.arrow is not a file of save_to_disk"),
        ("rows.arrow", b"", "rows.arrow is not a file of save_to_disk"),
    ],
)
def test_a_file_that_cannot_be_parsed_stops_with_its_place(tmp_path: Path, name: str, content: bytes, said: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Stop, match=said):
        list(rows_in(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.jsonl", b'{"a": "b"}\n{"a": "\xff\xfe"}\n{"a": "c"}\n'),
        ("rows.jsonl", b'{"a": "b"}\n{"a": "\\ud83d"}\n{"a": "c"}\n'),
        ("rows.json", b'[{"a": "b"}, {"a": "\xff\xfe"}, {"a": "c"}]'),
        ("rows.json", b'{"a": "b"}\n{"a": "\xff\xfe"}\n{"a": "c"}\n'),
    ],
)
def test_bytes_that_are_no_text_stay_in_their_row(tmp_path: Path, name: str, content: bytes):
    (tmp_path / name).write_bytes(content)
    one, broken, two = (each.data["a"] for each in rows_in(tmp_path / name))
    assert (one, two) == ("b", "c")
    with pytest.raises(UnicodeEncodeError):
        broken.encode()


CALL = {"function": {"name": "a", "arguments": {"content": None, "message": "b", "reward": None}}}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"messages": None, "tools": None, "seed": 1}, {"seed": 1}),
        ({"reward": None, "info": {"reward": None, "content": None}}, {"reward": None, "info": {}}),
        ({"seed": float("nan")}, {}),
        (
            {"messages": [{"role": "user", "content": None, "name": None, "tool_calls": None}]},
            {"messages": [{"role": "user", "content": None}]},
        ),
        (
            {"messages": [{"role": None, "content": None, "from": "human", "value": "a"}]},
            {"messages": [{"from": "human", "value": "a"}]},
        ),
        ({"messages": [{"role": "a", "tool_calls": [CALL]}]}, {"messages": [{"role": "a", "tool_calls": [CALL]}]}),
        (
            {"tools": [{"name": "a", "parameters": {"properties": {"message": {}, "content": None, "reward": None}}}]},
            {"tools": [{"name": "a", "parameters": {"properties": {"message": {}}}}]},
        ),
        ({"args": {"at": datetime.date(2026, 1, 2), "n": float("nan")}}, {"args": {"at": "2026-01-02", "n": None}}),
        ({"args": {"raw": b"a", "of": [datetime.time(1)]}}, {"args": {"raw": "a", "of": ["01:00:00"]}}),
    ],
)
def test_keys_that_a_table_filled_with_null_are_absent_but_for_arguments(row: Any, expected: Any):
    assert without_nulls(row, frozenset({"reward"})) == expected


def test_a_column_that_was_named_stays_where_it_is_null(tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text(lines({"info": {"score": None, "other": None}, "nr": None, "x": None}))
    (read,) = rows_in(tmp_path / "rows.jsonl", ["info.score", "nr"])
    assert read.data == {"info": {"score": None}, "nr": None}


def test_values_of_several_types_and_maps_of_a_table_are_those_that_were_written(tmp_path: Path):
    mixed = Dataset.from_list([{"args": {"x": 1}}, {"args": {"x": "b"}}], on_mixed_types="use_json")
    mixed.to_parquet(tmp_path / "mixed.parquet")
    mixed.save_to_disk(tmp_path / "saved")
    for file in (tmp_path / "mixed.parquet", tmp_path / "saved/data-00000-of-00001.arrow"):
        assert [each.data for each in rows_in(file)] == [{"args": {"x": 1}}, {"args": {"x": "b"}}]
    table = pyarrow.table({"args": pyarrow.array([[("x", "1")]], pyarrow.map_(pyarrow.string(), pyarrow.string()))})
    pyarrow.parquet.write_table(table, tmp_path / "map.parquet")
    assert [each.data for each in rows_in(tmp_path / "map.parquet")] == [{"args": {"x": "1"}}]


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.jsonl", ".jsonl"),
        ("a.json.gz", ".json"),
        ("a.parquet.gz", None),
        ("a.csv", None),
        ("a.gz", None),
        ("a", None),
    ],
)
def test_a_file_is_read_by_the_end_of_its_name(name: str, form: str | None):
    assert form_of(Path(name)) == form
