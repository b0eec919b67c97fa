"""Which files of a folder are read: one split, found as the package datasets finds it."""

import gzip
import json
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict, load_dataset_builder

from apprentice.tasks.files.splits import part_of
from apprentice.tasks.reporting.errors import Stop

TWO = """
configs:
- config_name: easy
  data_files: [{split: train, path: easy/a*.jsonl}, {split: test, path: [easy/b.jsonl]}]
- config_name: hard
  data_dir: hard
"""
DEFAULT = TWO.replace("  data_dir: hard", "  data_dir: hard\n  default: true")
FILES = ["easy/a1.jsonl", "easy/a2.jsonl", "easy/b.jsonl", "hard/train.jsonl", "hard/dev.jsonl"]


def folder(at: Path, *names: str, readme: str = "") -> Path:
    """A folder whose files have one row each: their own name."""
    at.mkdir(exist_ok=True)
    for name in names:
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"from": name}).encode() + b"\n"
        if name.endswith(".parquet"):
            Dataset.from_list([{"from": name}]).to_parquet(at / name)
        else:
            (at / name).write_bytes(gzip.compress(line) if name.endswith(".gz") else line)
    if readme:
        (at / "README.md").write_text(f"---\n{readme}\n---\n# Rows\n")
    return at


def read(at: Path, split: str = "train", config: str | None = None) -> list[str]:
    return [file.relative_to(at).as_posix() for file in part_of("rows", at, split, config).files]


@pytest.mark.parametrize(
    ("names", "readme", "config", "expected"),
    [
        (["train.jsonl", "test.jsonl"], "", None, ["train.jsonl"]),
        (["train.json", "test.json"], "", None, ["train.json"]),
        (["train.jsonl.gz", "test.jsonl.gz"], "", None, ["train.jsonl.gz"]),
        (["data/train.json", "data/validation.json"], "", None, ["data/train.json"]),
        (["training.jsonl", "dev.jsonl", "evaluation.jsonl"], "", None, ["training.jsonl"]),
        (["train-1.jsonl", "train_2.jsonl", "val.jsonl"], "", None, ["train-1.jsonl", "train_2.jsonl"]),
        (["my_train_rows.jsonl", "my_eval_rows.jsonl"], "", None, ["my_train_rows.jsonl"]),
        (["train.jsonl", "test.jsonl", "heldout.jsonl"], "", None, ["train.jsonl"]),
        (["train/a.jsonl", "train/b.jsonl", "test/a.jsonl"], "", None, ["train/a.jsonl", "train/b.jsonl"]),
        (["default/train/0.parquet", "default/test/0.parquet"], "", None, ["default/train/0.parquet"]),
        (
            [
                "data/train-00000-of-00002.parquet",
                "data/train-00001-of-00002.parquet",
                "data/test-00000-of-00001.parquet",
            ],
            "",
            None,
            ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"],
        ),
        (["a/train.jsonl", "b/train.jsonl", "b/test.jsonl"], "", None, ["a/train.jsonl", "b/train.jsonl"]),
        (["contest.jsonl", "latest.jsonl"], "", None, ["contest.jsonl", "latest.jsonl"]),
        (["train.jsonl", "test.jsonl"], "license: mit", None, ["train.jsonl"]),
        (FILES, TWO, "easy", ["easy/a1.jsonl", "easy/a2.jsonl"]),
        (FILES, TWO, "hard", ["hard/train.jsonl"]),
        (FILES, DEFAULT, None, ["hard/train.jsonl"]),
        (["a.jsonl", "test.jsonl"], "configs: [{config_name: x, data_files: test.jsonl}]", None, ["test.jsonl"]),
        (
            ["d/a.jsonl", "a.jsonl"],
            "configs: [{config_name: x, data_dir: d, data_files: a.jsonl}]",
            None,
            ["d/a.jsonl"],
        ),
        (["a.jsonl", "b/c/d.jsonl"], "configs: [{config_name: x, data_files: ['b/**']}]", None, ["b/c/d.jsonl"]),
    ],
)
def test_the_split_train_is_that_of_the_package_datasets(
    tmp_path: Path, names: list[str], readme: str, config: str | None, expected: list[str]
):
    at = folder(tmp_path / "rows", *names, readme=readme)
    assert read(at, config=config) == expected
    data_files = load_dataset_builder(str(at), config, cache_dir=str(tmp_path / "cache")).config.data_files
    assert data_files
    for split, files in data_files.items():
        assert read(at, str(split), config) == sorted(Path(file).relative_to(at).as_posix() for file in files)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["rollouts.jsonl"], ["rollouts.jsonl"]),
        (["a.jsonl", "b.jsonl", "eval_results.json", "notes.test.txt"], ["a.jsonl", "b.jsonl"]),
        (["rows.jsonl", "test/more.jsonl"], ["rows.jsonl"]),
        (["train.jsonl", "old/train.jsonl"], ["train.jsonl"]),
        (["data/train-00000-of-00001.parquet"], ["data/train-00000-of-00001.parquet"]),
        (["data/sft-00000-of-00001.parquet"], ["data/sft-00000-of-00001.parquet"]),
        (["fix-test-a__x/agent/trajectory.json", "b__y/trajectory.json"], None),
        (["2026-01-01T00-00-00+00-00_my-eval_a.json", "2026-01-02T00-00-00+00-00_sum_b.json"], None),
        (["b.json", "a.json"], ["a.json", "b.json"]),
    ],
)
def test_what_was_read_before_of_a_folder_without_other_splits_is_read_still(
    tmp_path: Path, names: list[str], expected: list[str] | None
):
    assert read(folder(tmp_path / "rows", *names)) == (sorted(names) if expected is None else expected)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["train.parquet", "test.jsonl"], "train.parquet"),
        (["train.json", "train.parquet", "test.jsonl"], "train.parquet"),
        (["Train.jsonl", "Test.jsonl"], "Train.jsonl"),
        (["TRAIN/a.jsonl", "TEST/a.jsonl"], "TRAIN/a.jsonl"),
    ],
)
def test_a_split_may_be_of_another_form_than_others_or_in_capitals(tmp_path: Path, names: list[str], expected: str):
    assert read(folder(tmp_path / "rows", *names)) == [expected]


@pytest.mark.parametrize(
    ("names", "split", "said"),
    [
        (["train.jsonl", "test.jsonl", "dev.jsonl"], "train", " (split train; not read: validation, test)"),
        (["train.jsonl", "test.jsonl", "x.jsonl"], "train", " (split train; not read: test, in no split x.jsonl)"),
        (["train.jsonl", "test.jsonl"], "test", " (split test; not read: train)"),
        (["train.jsonl", "test.jsonl"], "all", " (splits train, test)"),
        (["rows.jsonl", "test/more.jsonl"], "train", " (split train; not read: test)"),
        (["data/sft-00000-of-00001.parquet"], "train", " (split sft)"),
        (["train.jsonl"], "train", ""),
        (["rows.jsonl"], "train", ""),
    ],
)
def test_the_split_and_what_is_left_out_are_said(tmp_path: Path, names: list[str], split: str, said: str):
    assert part_of("rows", folder(tmp_path / "rows", *names), split).said == said


def test_the_other_configurations_are_said(tmp_path: Path):
    at = folder(tmp_path / "rows", *FILES, readme=DEFAULT)
    assert part_of("rows", at).said == " (hard, split train; not read: validation, the configurations easy)"


@pytest.mark.parametrize(
    ("names", "readme", "split", "config", "said"),
    [
        (["test.jsonl"], "", "train", None, "rows has no split train. It has test."),
        (["test.jsonl", "dev.jsonl"], "", "train", None, "It has validation, test."),
        (["test.jsonl", "rows.jsonl"], "", "train", None, "It has test. Not read: in no split rows.jsonl."),
        (["train.jsonl", "test.jsonl"], "", "dev", None, "rows has no split dev. It has train, test."),
        (
            ["train.jsonl", "test.jsonl"],
            "",
            "train[:100]",
            None,
            "Parts of a split cannot be named. It has train, test",
        ),
        (["train.jsonl", "test.jsonl"], "", "train+test", None, "Parts of a split cannot be named"),
        (["data/test_sft-00000-of-00001.parquet"], "", "train", None, "It has test_sft."),
        (["rows.jsonl"], "", "test", None, "rows has no splits, so none is called test"),
        (["rows.jsonl"], "", "train", "easy", "rows has no configurations, so none is called easy"),
        (FILES, TWO, "train", None, "2 configurations, and no default among them. It has easy, hard."),
        (FILES, TWO, "train", "other", "no configuration other. It has easy, hard."),
        (FILES, TWO, "validation", "easy", "rows has no split validation. It has train, test."),
        (["a.jsonl"], "configs: [{config_name: x, data_files: b.csv}]", "train", None, "no file in .jsonl, .parquet"),
        (
            ["a.jsonl"],
            "configs: 3",
            "train",
            None,
            "does not name its configurations .*: Expected configs to be a list",
        ),
        (["a.jsonl"], "configs: [{config_name: x, data_files: 'a**.jsonl'}]", "train", None, "pattern a.* is none"),
    ],
)
def test_a_split_or_configuration_that_is_not_there_is_refused_with_the_choices(
    tmp_path: Path, names: list[str], readme: str, split: str, config: str | None, said: str
):
    with pytest.raises(Stop, match=said):
        part_of("rows", folder(tmp_path / "rows", *names, readme=readme), split, config)


def test_the_remedy_for_several_configurations_and_splits_works(tmp_path: Path):
    at = folder(tmp_path / "rows", *FILES, readme=TWO)
    with pytest.raises(Stop, match="--config easy"):
        read(at)
    with pytest.raises(Stop, match="--split train"):
        read(at, "dev", "easy")
    assert read(at, "train", "easy") == FILES[:2]


def test_a_readme_whose_head_is_not_yaml_leaves_the_names_of_files(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    assert read(folder(tmp_path / "rows", "train.jsonl", "test.jsonl", readme="configs: [")) == ["train.jsonl"]
    assert "not YAML" in caplog.text


def test_a_job_of_harbor_is_read_by_its_trials(tmp_path: Path):
    names = ["config.json", "result.json", "sum__a/agent/trajectory.json", "sum__a/result.json"]
    assert read(folder(tmp_path / "rows", *names)) == ["sum__a/agent/trajectory.json"]
    assert read(folder(tmp_path / "other", "result.json")) == ["result.json"]


def test_a_folder_may_have_letters_of_patterns_in_its_name(tmp_path: Path):
    assert read(folder(tmp_path / "rows [test]", "train.jsonl", "test.jsonl")) == ["train.jsonl"]


def test_a_folder_of_save_to_disk_lists_its_files_and_its_splits(tmp_path: Path):
    one, two = Dataset.from_list([{"a": 1}] * 4), Dataset.from_list([{"a": 2}])
    one.save_to_disk(tmp_path / "one", num_shards=2)
    DatasetDict({"train": one, "test": two}).save_to_disk(tmp_path / "both")
    assert read(tmp_path / "one") == [f"data-0000{n}-of-00002.arrow" for n in (0, 1)]
    assert read(tmp_path / "both") == ["train/data-00000-of-00001.arrow"]
    assert part_of("rows", tmp_path / "both").said == " (split train; not read: test)"
    assert read(tmp_path / "both", "all") == [f"{name}/data-00000-of-00001.arrow" for name in ("test", "train")]
    (tmp_path / "both/train/data-00000-of-00001.arrow").unlink()
    with pytest.raises(Stop, match="not wholly written by save_to_disk"):
        read(tmp_path / "both")
