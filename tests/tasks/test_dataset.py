"""Rollouts that exist are taken only if this environment would have rendered them so."""

import json
import re
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from huggingface_hub import HfApi

from apprentice.envs.base import tools_text
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.artifacts.rows import pinned_rows
from apprentice.tasks.dataset import take_rollouts
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.record import Record
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.stages import CollectSpec, DatasetSpec
from tests.hub_server import LocalHub
from tests.tasks.artifacts.test_hub import hub

assert hub  # a fixture


def row(task: EnvironmentSpec, **given: Any) -> dict[str, Any]:
    instance = task.make()
    about = {"seed": 1, "environment": task.played_by(instance), "tools": tools_text(instance), "reward": 1.0}
    return about | {"messages": prompt(instance, "1 + 2 ="), "prompt_tokens": 5} | given


def folder_of(tmp_path: Path, *rows: dict[str, Any]) -> DatasetSpec:
    (tmp_path / "rows").mkdir(exist_ok=True)
    (tmp_path / "rows/kept.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    return DatasetSpec(path=str(tmp_path / "rows"))


def test_rows_of_this_environment_become_rollouts(context: StageContext, tmp_path: Path, chain_sum: EnvironmentSpec):
    spec = folder_of(tmp_path, row(chain_sum), row(chain_sum, seed=2, reward=None, failed_at="teacher"))
    counts = take_rollouts.body(context, pinned_rows(spec), chain_sum)
    assert (counts["episodes"], counts["failed"], counts["prompt_tokens"]) == (2, 1, 10)
    assert len((context.out / "rollouts.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"environment": "wordle 1"}, "its environment is 'wordle 1'"),
        ({"tools": "[]"}, "its tools have another schema"),
        ({"messages": [{"role": "system", "content": "Be nice."}, {"role": "user", "content": "?"}]}, "its prompt"),
        ({"messages": []}, "its prompt"),
        ({"answer": "3"}, "its answer"),
        ({"reward": "good"}, "its reward"),
        ({"reward": float("nan")}, "its reward is nan"),
        ({"reward": 2.0}, "its reward is 2.0"),
        ({"cost_usd": float("inf")}, "its cost_usd is inf"),
        ({"messages": None}, "its messages: Field required"),
    ],
)
def test_the_first_row_that_does_not_fit_is_named(
    context: StageContext, tmp_path: Path, chain_sum: EnvironmentSpec, wrong: dict[str, Any], said: str
):
    spec = folder_of(tmp_path, row(chain_sum), row(chain_sum, **wrong))
    with pytest.raises(Stop, match=f"kept.jsonl, line 2 of .* {said}"):
        take_rollouts.body(context, spec, chain_sum)


def as_lines(*rows: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in rows)


def as_parquet(*rows: dict[str, Any]) -> bytes:
    written = BytesIO()
    Dataset.from_list(list(rows)).to_parquet(written)
    return written.getvalue()


EMPTY = {"role": None, "content": None, "tool_calls": None, "tool_call_id": None, "name": None}
ANSWER = {"role": "assistant", "content": "3"}


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (lambda one, two: {"rollouts.jsonl": as_lines(one, two)}, ""),
        (lambda one, two: {"a.jsonl": as_lines(one), "b.jsonl": as_lines(two)}, ""),
        (lambda one, two: {"rollouts.jsonl": b"\xef\xbb\xbf" + as_lines(one, two)}, ""),
        (lambda one, two: {"rollouts.jsonl": as_lines(one) + b"\n" + as_lines(two) + b"\r\n  \n"}, ""),
        (lambda one, two: {"rollouts.jsonl": as_lines(one, two).replace(b"\n", b"\r\n")}, ""),
        (lambda one, two: {"rollouts.jsonl": as_lines(one | {"correct": None, "cost_usd": None}, two)}, ""),
        (lambda one, two: {"rollouts.jsonl": as_lines(one | {"cost_usd": float("nan")}, two)}, ""),
        (lambda one, two: {"rollouts.jsonl": as_lines(one | {"tools": json.loads(one["tools"])}, two)}, ""),
        (
            lambda one, two: {
                "rollouts.jsonl": as_lines(one | {"messages": [EMPTY | m for m in one["messages"]]}, two)
            },
            "",
        ),
        (lambda one, two: {"rollouts.jsonl": as_lines(one, two, one)}, "1 rows .* twice .* rollouts.jsonl, line 3"),
        (
            lambda one, two: {"rollouts.jsonl": as_lines(one, two), "kept.jsonl": as_lines(one)},
            "kept.jsonl is left out",
        ),
        (lambda one, two: {"rows.parquet": as_parquet(one, two)}, ""),
        (lambda one, two: {"data/train-00000-of-00001.parquet": as_parquet(one, two)}, ""),
        (
            lambda one, two: {
                "data/train-0-of-2.parquet": as_parquet(one),
                "data/train-1-of-2.parquet": as_parquet(two),
            },
            "",
        ),
    ],
)
def test_the_forms_in_which_rows_come_are_the_same_rows(
    context: StageContext, tmp_path: Path, chain_sum: EnvironmentSpec, form: Any, said: str, caplog
):
    one, two = (row(chain_sum, seed=seed, messages=[*row(chain_sum)["messages"], ANSWER]) for seed in (1, 2))
    for name, content in form(one, two).items():
        (tmp_path / "rows" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "rows" / name).write_bytes(content)
    counts = take_rollouts.body(context, pinned_rows(DatasetSpec(path=str(tmp_path / "rows"))), chain_sum)
    assert (counts["episodes"], counts["prompt_tokens"], counts["cost_usd"]) == (2, 10, 0.0)
    wanted = [Record.model_validate(each).line() for each in (one, two)]
    assert (context.out / "rollouts.jsonl").read_bytes() == b"".join(wanted)
    assert re.search(said, " ".join(caplog.text.split()))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rollouts.jsonl", b"{}\n{broken\n", "rollouts.jsonl, line 1 of"),
        ("rollouts.jsonl", b"{broken\n", "rollouts.jsonl, line 1: this is not JSON"),
        ("rollouts.jsonl", b"\xff\xfe{\n", "rollouts.jsonl, line 1: this is not JSON"),
        ("rollouts.jsonl", b"[1]\n", "rollouts.jsonl, line 1 of"),
        ("rollouts.jsonl", b"\n\n", "its files have no row"),
        ("rollouts.jsonl", b"", "holds no rollouts"),
        ("rows.parquet", b"PAR1 not at all", "rows.parquet is not a Parquet file"),
        ("rows.csv", b"a,b\n", "holds no rollouts: no row in"),
    ],
)
def test_a_file_that_holds_no_rows_is_refused_with_its_place(
    context: StageContext, tmp_path: Path, chain_sum: EnvironmentSpec, name: str, content: bytes, said: str
):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Stop, match=said):
        take_rollouts.body(context, DatasetSpec(path=str(tmp_path)), chain_sum)


def test_rows_are_known_by_their_content_wherever_they_lie(tmp_path: Path, chain_sum: EnvironmentSpec):
    spec = pinned_rows(folder_of(tmp_path, row(chain_sum)))
    (tmp_path / "rows").rename(tmp_path / "moved")
    assert pinned_rows(DatasetSpec(path=str(tmp_path / "moved"))).in_key() == spec.in_key()
    (tmp_path / "moved/kept.jsonl").write_text(json.dumps(row(chain_sum, seed=9)) + "\n")
    with pytest.raises(Stop, match="other rows than before"):
        pinned_rows(spec.model_copy(update={"path": str(tmp_path / "moved")}))


@pytest.mark.parametrize(("path", "said"), [("nowhere", "no folder"), ("owner/rows", "has a commit")])
def test_a_dataset_that_is_nowhere_is_named(path: str, said: str):
    with pytest.raises(Stop, match=said):
        pinned_rows(DatasetSpec(path=path))


def test_a_dataset_of_the_hub_is_taken_at_its_commit_and_refused_like_a_folder(
    hub: LocalHub, context: StageContext, tmp_path: Path, chain_sum: EnvironmentSpec
):
    folder_of(tmp_path, row(chain_sum), row(chain_sum, seed=2))
    api = HfApi()
    api.create_repo("team/rows", repo_type="dataset")
    upload = partial(api.upload_file, repo_id="team/rows", repo_type="dataset", path_in_repo="kept.jsonl")
    good = upload(path_or_fileobj=tmp_path / "rows/kept.jsonl").oid
    folder_of(tmp_path, row(chain_sum), row(chain_sum, environment="wordle 1"))
    bad = upload(path_or_fileobj=tmp_path / "rows/kept.jsonl").oid
    spec = pinned_rows(DatasetSpec(path="team/rows", revision=good))
    assert take_rollouts.body(context, spec, chain_sum)["episodes"] == 2
    with pytest.raises(Stop, match=r"kept.jsonl, line 2 of team/rows .* its environment is 'wordle 1'"):
        take_rollouts.body(context, pinned_rows(DatasetSpec(path="team/rows", revision=bad)), chain_sum)
    with pytest.raises(Stop, match="The Hub has no dataset team/none"):
        pinned_rows(DatasetSpec(path="team/none", revision=good))


def test_a_dataset_may_be_named_in_one_text():
    on_hub = CollectSpec.model_validate({"dataset": f"owner/rows@{'a' * 40}"}).dataset
    assert on_hub == DatasetSpec(path="owner/rows", revision="a" * 40)
    assert CollectSpec.model_validate({"dataset": "some/folder"}).dataset == DatasetSpec(path="some/folder")
