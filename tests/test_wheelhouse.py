"""What travels to a GPU machine without a network: which packages, and how much."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.wheelhouse import (
    IMAGE,
    ROOT,
    RUN,
    UNUSED,
    pins,
    preferred,
    required,
    split,
    to_carry,
    too_large,
    torch_refused,
)

PYPROJECT = '[project]\ndependencies = ["torch>=2.11", "transformers>=5.23,<5.24", "pandas>=2.2", "trl"]'
NEEDED = required(PYPROJECT)


def test_a_list_of_pip_is_read_by_normalised_names_and_without_what_has_no_version():
    lines = "Torch==2.11.0+cu130\nhuggingface_hub==1.33.0\nown @ file:///src/own\n# a comment\n-e .\n"
    assert pins(lines) == {"torch": "2.11.0+cu130", "huggingface-hub": "1.33.0"}


def test_a_version_of_the_machine_is_preferred_where_the_project_takes_it_else_the_locked_one():
    have = {"torch": "2.11.0+cu130", "transformers": "5.17.0", "pandas": "3.0.0", "xxhash": "3.5.0"}
    locked = {"transformers": "5.23.0", "pandas": "3.1.1", "trl": "1.16.0", "xxhash": "4.1.0"}
    assert preferred(have, locked, NEEDED) == {
        "torch": "2.11.0",
        "transformers": "5.23.0",
        "pandas": "3.0.0",
        "xxhash": "3.5.0",
        "trl": "1.16.0",
    }


def test_what_the_machine_has_in_that_version_is_left_out_whatever_its_build_is_called():
    have = {"pandas": "3.0.0", "numpy": "2.5.2+mkl", "huggingface-hub": "1.33.0"}
    resolved = {"pandas": "3.0.0", "numpy": "2.5.2", "huggingface-hub": "2.4.0", "trl": "1.16.0"}
    assert to_carry(resolved, have) == {"huggingface-hub": "2.4.0", "trl": "1.16.0"}


@pytest.mark.parametrize(("torch", "said"), [("2.10.0", "has 2.10.0"), (None, "has no torch"), ("2.11.0+cu130", "")])
def test_a_machine_whose_torch_the_project_does_not_take_is_refused(torch: str | None, said: str):
    have = {"torch": torch} if torch else {}
    assert said in torch_refused(have, NEEDED)
    assert bool(torch_refused(have, NEEDED)) == bool(said)


def test_the_common_image_has_a_torch_that_the_project_takes_and_nothing_unused_travels_by_name():
    needed = required((ROOT / "pyproject.toml").read_text())
    assert torch_refused(pins(IMAGE.read_text()), needed) == ""
    assert {"torch", "prefect", "openai", "trackio", "sqlalchemy"} <= {each.name for each in needed}
    assert set(UNUSED) >= {"torch", "prefect"}


def test_a_folder_above_the_limit_is_refused_with_its_largest_files(tmp_path: Path):
    for name, size in (("small.whl", 10), ("large.whl", 60)):
        (tmp_path / name).write_bytes(bytes(size))
    assert too_large(tmp_path, limit=70) == ""
    assert "large.whl" in too_large(tmp_path, limit=69)
    assert "HAVE=FILE" in too_large(tmp_path, limit=69)


def test_parts_joined_in_the_order_of_their_names_are_the_file(tmp_path: Path):
    whole = tmp_path / "model.whl"
    whole.write_bytes(bytes(range(25)))
    (tmp_path / "parts").mkdir()
    assert split(whole, tmp_path / "parts", 10) == 3
    parts = sorted((tmp_path / "parts").glob("*.part*"))
    assert b"".join(part.read_bytes() for part in parts) == whole.read_bytes()
    assert (tmp_path / "parts" / "parts").read_text() == "3\n"


def test_the_script_that_installs_and_runs_is_one_that_sh_reads(tmp_path: Path):
    (script := tmp_path / "run.sh").write_text(RUN)
    subprocess.run(["sh", "-n", str(script)], check=True)


def test_a_python_that_the_wheels_are_not_for_is_refused_before_anything_is_installed(tmp_path: Path):
    (script := tmp_path / "run.sh").write_text(RUN)
    (tmp_path / "python").write_text("3.7\n")
    done = subprocess.run(
        ["sh", str(script)], env=os.environ | {"PYTHON": sys.executable}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "are for Python 3.7, and " in done.stderr
    assert "PYTHON=python3.7" in done.stderr
    assert not (tmp_path / "site").exists()


def test_trainings_are_imported_without_what_does_not_travel():
    gone = [name for name in UNUSED if name != "torch"]
    code = f"import sys; sys.modules |= dict.fromkeys({gone}); import apprentice.tasks.grpo, apprentice.tasks.sft"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
