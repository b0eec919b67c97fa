"""Of a dataset that exists one split is taken, of its rows those that can be written, under the questions that they ask
in whatever form; seen at what the stage publishes."""

import gzip
import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
from datasets import Dataset, DatasetDict
from huggingface_hub import HfApi

from apprentice.envs.echo.text import text_of
from apprentice.envs.player import Player
from apprentice.tasks.artifacts.foreign.rows import pinned_rows
from apprentice.tasks.dataset import KnownQuestions, Verifier
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import DatasetSpec
from tests.hub_server import LocalHub
from tests.odd_server import odd_server
from tests.tasks.artifacts.test_hub import hub
from tests.tasks.test_dataset import Bench, as_lines, as_parquet, call, chat, row
from tests.tasks.test_rescore import ECHO, Guess, Patient, Settings

assert hub  # a fixture
TEST = [chat(seed) for seed in (5, 6)]
"""Rows that nobody should train on."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with odd_server("sound") as url:
        yield Bench(tmp_path, url)


def written(at: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_bytes(content)
    return at


def title(bench: Bench) -> str:
    """Of the table that is shown."""
    return json.loads((bench.out / "verification.json").read_text())["title"]


def as_json(*rows: dict[str, Any]) -> bytes:
    return json.dumps(rows).encode()


def packed(*rows: dict[str, Any]) -> bytes:
    return gzip.compress(as_lines(*rows))


README = b"""---
configs:
- config_name: default
  data_files: [{split: train, path: a.jsonl}, {split: test, path: b.jsonl}]
---
"""
LAYOUTS: list[tuple[dict[str, Any], str]] = [
    ({"train.jsonl": as_lines, "test.jsonl": as_lines}, "train.jsonl, line 1"),
    ({"train.json": as_json, "test.json": as_json}, "train.json, item 1"),
    ({"train.json": as_lines, "test.json": as_lines}, "train.json, line 1"),
    ({"data/train.json": as_json, "data/test.json": as_json}, "train.json, item 1"),
    ({"train.jsonl.gz": packed, "test.jsonl.gz": packed}, "train.jsonl.gz, line 1"),
    ({"data/train-00000-of-00001.parquet": as_parquet, "data/test-00000-of-00001.parquet": as_parquet}, "row 1"),
    ({"default/train/0.parquet": as_parquet, "default/test/0.parquet": as_parquet}, "0.parquet, row 1"),
    ({"a.jsonl": as_lines, "b.jsonl": as_lines, "README.md": README}, "a.jsonl, line 1"),
]
"""Files of the split train, of the split test, and others; and the place of the first row."""


@pytest.mark.parametrize("on_hub", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize(("layout", "where"), LAYOUTS)
def test_of_a_folder_and_of_the_hub_the_split_train_is_taken_and_the_others_are_said(
    layout: dict[str, Any], where: str, on_hub: bool, hub: LocalHub, bench: Bench, tmp_path: Path, capfd: Any
):
    contents = dict(zip(layout, ([chat(1), chat(2)], TEST), strict=False))
    files = {name: form if isinstance(form, bytes) else form(*contents[name]) for name, form in layout.items()}
    at = written(tmp_path / "rows", files)
    spec = DatasetSpec(path=str(at))
    if on_hub:
        HfApi().create_repo("team/rows", repo_type="dataset")
        commit = HfApi().upload_folder(repo_id="team/rows", repo_type="dataset", folder_path=at).oid
        spec = DatasetSpec(path="team/rows", revision=commit)
    bench(pinned_rows(spec))
    assert [record.seed for record in bench.taken] == [1, 2]
    assert title(bench) == f"2 rows of {spec.path} (split train; not read: test)"
    assert where in " ".join(capfd.readouterr().out.split())
    bench(pinned_rows(spec.model_copy(update={"split": "test"})))
    assert [record.seed for record in bench.taken] == [5, 6]
    bench(pinned_rows(spec.model_copy(update={"split": "all"})))
    assert sorted(record.seed for record in bench.taken) == [1, 2, 5, 6]
    assert title(bench).endswith("(splits train, test)")
    with pytest.raises(Stop, match=r"has no split validation. It has train, test\."):
        pinned_rows(spec.model_copy(update={"split": "validation"}))


@pytest.mark.long
def test_a_folder_of_save_to_disk_is_read_and_so_are_its_splits(bench: Bench, tmp_path: Path):
    train, test = Dataset.from_list([chat(1), chat(2)]), Dataset.from_list(TEST)
    train.save_to_disk(tmp_path / "one")
    DatasetDict({"train": train, "test": test}).save_to_disk(tmp_path / "both")
    for path, split, seeds in (("one", "train", [1, 2]), ("both", "train", [1, 2]), ("both", "test", [5, 6])):
        bench(pinned_rows(DatasetSpec(path=str(tmp_path / path), split=split)))
        assert [record.seed for record in bench.taken] == seeds
    bench(pinned_rows(DatasetSpec(path=str(tmp_path / "one/data-00000-of-00001.arrow"))))
    assert [record.seed for record in bench.taken] == [1, 2]


def test_a_file_that_is_named_is_read_whatever_it_is_called_and_has_no_splits(bench: Bench, tmp_path: Path):
    written(tmp_path / "rows", {"train.jsonl": as_lines(chat(1)), "test.jsonl": as_lines(*TEST)})
    bench(pinned_rows(DatasetSpec(path=str(tmp_path / "rows/test.jsonl"))))
    assert [record.seed for record in bench.taken] == [5, 6]
    with pytest.raises(Stop, match="has no splits, so none is called test"):
        pinned_rows(DatasetSpec(path=str(tmp_path / "rows/test.jsonl"), split="test"))


def test_rows_are_named_by_their_content_whichever_split_they_are(tmp_path: Path):
    for name, files in {"a": {"train.jsonl": TEST[:1], "test.jsonl": TEST[1:]}, "b": {"rows.jsonl": TEST[:1]}}.items():
        written(tmp_path / name, {file: as_lines(*rows) for file, rows in files.items()})
    one, alone = (pinned_rows(DatasetSpec(path=str(tmp_path / name))) for name in ("a", "b"))
    other = pinned_rows(DatasetSpec(path=str(tmp_path / "a"), split="test"))
    assert one.in_key() == alone.in_key() == {"content": one.content} != other.in_key()
    assert {"split", "config"}.isdisjoint(one.model_copy(update={"content": None}).in_key())
    assert alone.content == sha256(as_lines(TEST[0])).hexdigest(), "as every store so far names them"


HALF = "\ud83d"


@pytest.mark.parametrize(
    ("name", "content", "where", "field"),
    [
        ("rows.jsonl", as_lines(chat(1), chat(3, said=f"a{HALF}"), chat(2)), "line 2", "messages.1.tool_calls.0"),
        ("rows.jsonl", as_lines(chat(1), {"prompt": HALF, "completion": "a"}, chat(2)), "line 2", "messages.0.content"),
        ("rows.jsonl", as_lines(chat(1), {HALF: "a"}, chat(2)), "line 2", "messages"),
        (
            "rows.jsonl",
            as_lines(chat(1)) + b'{"prompt": "a\xff", "completion": "b"}\n' + as_lines(chat(2)),
            "line 2",
            "messages.0.content",
        ),
        (
            "rows.json",
            b"[" + json.dumps(chat(1)).encode() + b', {"prompt": "\xe2\x82", "completion": ""}, '
            b"" + json.dumps(chat(2)).encode() + b"]",
            "item 2",
            "messages.0.content",
        ),
        (
            "rows.json",
            as_lines(chat(1)) + b'{"prompt": "a", "completion": "\xed\xa0\xbd"}\n' + as_lines(chat(2)),
            "line 2",
            "messages.1.content",
        ),
    ],
)
@pytest.mark.parametrize("unverified", ["drop", "keep"])
def test_a_row_with_half_a_character_is_refused_alone(
    bench: Bench, tmp_path: Path, name: str, content: bytes, where: str, field: str, unverified: str
):
    (tmp_path / name).write_bytes(content)
    bench(DatasetSpec(path=str(tmp_path / name)), unverified)
    assert [record.seed for record in bench.taken] == [1, 2]
    (left,) = bench.refused
    assert (left["where"], left["field"]) == (f"{name}, {where}", field)


def test_a_rollout_of_this_project_may_name_half_a_character_by_its_number(bench: Bench, tmp_path: Path):
    own = row(1)
    own["messages"][2]["tool_calls"][0]["function"]["arguments"] = json.dumps({"message": HALF})
    (tmp_path / "rows.jsonl").write_bytes(as_lines(own))
    bench(DatasetSpec(path=str(tmp_path / "rows.jsonl")))
    assert [(record.seed, record.reward) for record in bench.taken] == [(1, 0.0)]


def padded(**arguments: Any) -> dict[str, Any]:
    """A row of a table, in which other rows have other keys."""
    question, said = chat(1)["messages"]
    empty = {"role": None, "content": None, "name": None, "tool_calls": None, "tool_call_id": None}
    said = said | {"tool_calls": [{"id": None, "function": {"name": "echo", "arguments": arguments}}]}
    return {"messages": [empty | question, empty | said], "tools": None, "reward": None, "seed": None, "prompt": None}


@pytest.mark.parametrize("form", [as_lines, as_parquet])
@pytest.mark.parametrize("others", [{}, {"content": None}, {"reward": None}, {"text": None, "at": {"x": None}}])
def test_arguments_that_a_table_filled_with_null_are_not_played(
    form: Callable[..., bytes], others: dict[str, Any], bench: Bench, tmp_path: Path
):
    others = {name: None for name in others}
    rows = [padded(message=text_of(1, 3), **others), padded(message=text_of(1, 3), **dict.fromkeys(others, "a"))]
    name = "rows.jsonl" if form is as_lines else "rows.parquet"
    (tmp_path / name).write_bytes(form(*rows))
    bench(DatasetSpec(path=str(tmp_path / name)))
    assert [(record.seed, record.reward) for record in bench.taken] == [(1, 1.0)]
    called = bench.taken[0].messages[2]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(called) == {"message": text_of(1, 3)}
    assert len(bench.refused) == bool(others), "the other row gives an argument that the tool does not have"


class Noting(Guess):
    """Takes a number, and what may be said beside it."""

    def guess(self, number: int, content: str | None, reward: float | None = None) -> str:  # type: ignore[override]
        """Guess the number.

        Args:
            number: Your guess.
            content: A remark, or nothing.
            reward: What you expect.
        """
        self.done, self.reward = True, float(number == self.seed)
        return f"{content} {reward}"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"number": 2, "content": None, "reward": None}, {"number": 2, "content": None}),
        ({"number": 2, "content": "a", "reward": None}, {"number": 2, "content": "a"}),
        ({"number": 2, "content": "a", "reward": 0.5}, {"number": 2, "content": "a", "reward": 0.5}),
        ({"number": 2, "content": None, "message": None}, {"number": 2, "content": None}),
    ],
)
def test_an_argument_that_must_be_given_may_be_null(arguments: dict[str, Any], expected: dict[str, Any]):
    given = {"messages": [{"role": "user", "content": "Which number?"}, call("guess", arguments)]}
    found = Verifier(ECHO, KnownQuestions({"which number?": 2}, set()), {})(
        Player(Noting(Settings(dataset="chain_sum"))), given
    )
    assert found.record is not None, found.cause
    assert json.loads(found.record.messages[2]["tool_calls"][0]["function"]["arguments"]) == expected
    assert found.record.reward == 1.0


def test_a_column_that_was_named_may_be_null_in_a_row(bench: Bench, tmp_path: Path):
    rows = [chat(1, info={"score": 1.0}, nr=1), chat(2, info={"score": None}, nr=None)]
    (tmp_path / "rows.jsonl").write_bytes(as_lines(*rows, chat(3, nr=3)))
    bench(DatasetSpec(path=str(tmp_path / "rows.jsonl"), columns={"reward": "info.score", "seed": "nr"}))
    assert [record.seed for record in bench.taken] == [1, 2]
    assert [left["cause"][:15] for left in bench.refused] == ["no such column;"]


@pytest.mark.parametrize(
    ("reply", "recorded", "taken"),
    [
        ("Höher.\nNoch einmal.", normalize("NFD", "Höher.\nNoch einmal."), True),
        ("Höher.\nNoch einmal.", "Höher.\r\nNoch einmal.", True),
        ("Höher.\nNoch einmal.", "höher.\nNoch einmal.", False),
        ("Höher.\nNoch einmal.", "Höher. Noch einmal.", False),
    ],
)
def test_a_reply_is_the_same_in_another_unicode_form_and_with_other_line_ends(reply: str, recorded: str, taken: bool):
    turns = [call("guess", {"number": 1}), {"role": "tool", "content": recorded}, call("guess", {"number": 2})]
    given = {"messages": [{"role": "user", "content": "Which number?"}, *turns]}
    found = Verifier(ECHO, KnownQuestions({"which number?": 2}, set()), {})(Player(Patient(wrong=reply)), given)
    assert bool(found.record) == taken
    assert found.record is None or found.record.messages[3]["content"] == reply


QUESTION = "Zähle, wie oft das ﬁ in „Caﬀé“ steht: １７ mal?"


@pytest.mark.parametrize(
    "question",
    [
        QUESTION,
        normalize("NFD", QUESTION),
        normalize("NFKC", QUESTION),
        QUESTION.upper(),
        QUESTION.replace(" ", "\u00a0"),
        QUESTION.replace(" ", "\r\n"),
        QUESTION.replace("oft", "o\u00adft\u200b"),
        f"\ufeff{QUESTION} ",
        f"Antworte kurz.\n\n{normalize('NFD', QUESTION)}\nDanke!",
    ],
)
def test_a_question_is_known_in_whatever_unicode_form_a_row_has_it(question: str):
    from apprentice.tasks.episodes.texts import same_text

    class Counting(Guess):
        def reset(self, *, seed: int, **row: Any) -> str:
            super().reset(seed=seed)
            return QUESTION

    given = {"messages": [{"role": "user", "content": question}, call("guess", {"number": 2})]}
    instance = Player(Counting(Settings(dataset="chain_sum")))
    found = Verifier(ECHO, KnownQuestions({same_text(QUESTION): 2}, set()), {})(instance, given)
    assert found.record is not None, found.cause
    assert (found.record.seed, found.record.reward, found.record.messages[1]["content"]) == (2, 1.0, QUESTION)
    for seeds in ({}, {same_text(QUESTION): 2}):
        evaluated = Verifier(ECHO, KnownQuestions(seeds, {same_text(QUESTION)}), {})(instance, given)
        assert evaluated.cause == "its question stands in the evaluation set"
