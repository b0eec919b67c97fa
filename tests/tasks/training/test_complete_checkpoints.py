"""A training resumes from a checkpoint only if its files are complete."""

from pathlib import Path

from apprentice.tasks.training.complete_checkpoints import LIST, newest_checkpoint, step_of, write_list


def test_an_incomplete_checkpoint_is_skipped_for_the_one_before(tmp_path: Path):
    for step in (2, 4, 10):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text("{}")
        write_list(folder)
    (tmp_path / "checkpoint-10/trainer_state.json").write_text('{"global_st')
    (tmp_path / "checkpoint-12").mkdir()
    (tmp_path / "checkpoint-12/trainer_state.json").write_text("{}")  # killed before the list was written
    assert step_of(newest_checkpoint(tmp_path)) == 4
    assert newest_checkpoint(tmp_path / "checkpoint-12") is None


def test_a_checkpoint_is_complete_though_a_process_was_killed_while_it_wrote_its_list_before(tmp_path: Path):
    checkpoint = tmp_path / "checkpoint-2"
    checkpoint.mkdir()
    (checkpoint / "trainer_state.json").write_text("{}")
    (checkpoint / f"{LIST}.half").write_text('{"trainer_st')
    write_list(checkpoint)
    assert newest_checkpoint(tmp_path) == checkpoint
