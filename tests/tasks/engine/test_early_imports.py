"""Two stages at once in one process import transformers once, before their threads. A process that imported nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL

TWO_STAGES = """
import sys, threading
from pathlib import Path
from prefect import flow

class Watch:
    @staticmethod
    def find_spec(name, *_):
        if name.startswith("transformers") and threading.current_thread() is not threading.main_thread():
            imported.append(name)

imported = []
sys.meta_path.insert(0, Watch)

from apprentice.envs.tools import tools_text
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import stage

assert "transformers" not in sys.modules
both = threading.Barrier(2)

@stage(produces=Questions, version=1, title="Toy {number}")
def toy(context, number):
    both.wait(60)
    tools_text(EnvironmentSpec(name="echo").make().tools)
    (context.out / "questions.jsonl").write_text(str(number))
    return {"collect": number, "grpo": 0, "evaluate": 0, "dropped_from_grpo": 0}

@flow
def two():
    run = RunContext(LocalStore(Path("store"), project="toy"), StandingServers({}, None))
    return [each.collect for each in toy.map(run, [(1,), (2,)])]

assert two() == [1, 2]
print("imported in threads:", imported)
"""


@pytest.mark.long
@pytest.mark.usefixtures("prefect_server")
def test_two_stages_at_once_find_transformers_imported(tmp_path: Path):
    env = os.environ | {"PREFECT_API_URL": PREFECT_API_URL.value() or "", "PREFECT_HOME": str(tmp_path / "prefect")}
    script = tmp_path / "two_stages.py"
    script.write_text(TWO_STAGES)
    ended = subprocess.run([sys.executable, script], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "imported in threads: []" in ended.stdout
