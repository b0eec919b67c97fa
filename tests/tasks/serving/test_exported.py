"""What is said of an exported file follows from its answers, the margin and the interval."""

from pathlib import Path

import pytest

from apprentice.tasks.serving.exported import CONTENTS, ExportContents, MeasuredFile, measured, read_export
from tests.tasks.evaluations import episodes


def of(tmp_path: Path, before: list[float], after: list[float], same: int = 100) -> MeasuredFile:
    (tmp_path / "toy-q8_0.gguf").write_bytes(bytes(2_000_000))
    given = episodes(before), episodes(after), (same, 100), (500.0, 50.0), 30_000_000
    return measured("q8_0", tmp_path / "toy-q8_0.gguf", "llama-server …", *given, 0.02)


@pytest.mark.parametrize(
    ("lost", "state", "said"),
    [
        (0, "as good", "q8_0 answers as the checkpoint does: +0.0 pp accuracy on 1,000 questions"),
        (200, "worse", "q8_0 is WORSE than the checkpoint: -20.0 pp accuracy on 1,000 questions"),
        (15, "not shown", "q8_0 is not shown to be as good as the checkpoint: -1.5 pp"),
    ],
)
def test_a_file_is_marked_by_its_loss_and_its_interval(tmp_path: Path, lost: int, state: str, said: str):
    found = of(tmp_path, [1.0] * 900 + [0.0] * 100, [0.0] * lost + [1.0] * (900 - lost) + [0.0] * 100)
    assert found.state == state
    assert found.sentence.startswith(said)
    assert "2 points are allowed (export.margin)" in found.sentence
    assert (found.difference.won, found.difference.lost) == (0, lost)


def test_prompts_with_other_ids_are_told(tmp_path: Path):
    assert of(tmp_path, [1.0] * 10, [1.0] * 10, same=97).sentence.endswith(
        "3 of 100 prompts have other token ids than in training."
    )


def test_the_table_begins_with_the_checkpoint_and_is_read_back(tmp_path: Path):
    file = of(tmp_path, [1.0] * 8 + [0.0] * 2, [1.0] * 7 + [0.0] * 3)
    given = {"checkpoint_bytes": 4_000_000, "checkpoint_right": 0.8, "questions": 10}
    contents = ExportContents(llama_cpp="version: 1", context=512, slots=4, margin=0.02, files=[file], **given)
    (tmp_path / CONTENTS).write_text(contents.model_dump_json())
    read = read_export(tmp_path)
    assert read.worse == ["q8_0"]
    first, second = read.rows()
    assert first.keys() == second.keys()
    assert (first["form"], first["MB"], first["accuracy"][:5]) == ("checkpoint", "4.0", "80.0%")
    assert (second["MB"], second["difference"], second["verdict"]) == ("2.0", "-10.0 pp", "worse")
    assert (second["same prompts"], second["written, tokens/s"], second["memory, MB"]) == ("100 of 100", "50", "30.0")
