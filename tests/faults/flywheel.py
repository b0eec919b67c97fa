"""What kills cost the second round of `apprentice improve`: time. `make faults NAME=flywheel`, real processes.

In: nothing; two folders of its own. Out: one line of JSON; exit code 1 when anything is not as it must be.
Round 0 is run once and copied. In one copy round 1 is undisturbed; in the other `kill -9` strikes all its processes
in every stage, and the same command is given again each time. Keys and revisions of all artifacts must be the same.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

from tests.bench.laptop import APPRENTICE, ROOT
from tests.prefect_database import prefect_home

RECIPE = ROOT / "deployments" / "recipes" / "toy.yaml"
SETTINGS = ["sft.learning_rate=1.0e-2", "sft.epochs=10", "gate.metric=mean_score", "collect.students=2"]
FIRST = ["collect.students=0"]
COMMAND = [str(APPRENTICE), "improve", str(RECIPE), *(part for each in SETTINGS for part in ("--set", each))]
POLL_S = 0.05


def started(home: Path, *overrides: str) -> "subprocess.Popen[bytes]":
    own = os.environ | {"PREFECT_HOME": prefect_home(home), "HF_HUB_OFFLINE": "1"}
    more = [part for each in overrides for part in ("--set", each)]
    with (home / "said.txt").open("ab") as said:
        return subprocess.Popen(
            [*COMMAND, *more], cwd=home, env=own, stdin=subprocess.DEVNULL, stdout=said, stderr=said
        )


def finished(home: Path, *overrides: str) -> None:
    if code := started(home, *overrides).wait():
        raise SystemExit(f"a round ended with {code}:\n{(home / 'said.txt').read_text()[-3000:]}")


def killed_in(home: Path, done: set[str]) -> str | None:
    """Start the round and kill it in the first stage that was not killed yet, each evaluation being one of its own.

    Returns: the stage's name and key, or None at the end.
    """
    process = started(home)
    staging = home / "artifacts" / ".staging"
    while process.poll() is None:
        running = {each.name for each in staging.glob("*")} - done
        if running:
            tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for each in tree:
                each.send_signal(signal.SIGKILL)
            process.wait()
            return running.pop()
        time.sleep(POLL_S)
    if process.returncode:
        raise SystemExit(f"a round ended with {process.returncode}:\n{(home / 'said.txt').read_text()[-3000:]}")
    return None


def refs(home: Path) -> dict[str, str]:
    """Revision by repository and key; the changes of champion, which hold the time, by their revisions."""
    found = {}
    for ref in (home / "artifacts").glob("*s/local/*/refs/*"):
        named = ref.name.split("-2")[0] if ref.name.startswith("champion-") else ref.name
        found[f"{ref.parent.parent.name}@{named}"] = ref.read_text()
    return found


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="apprentice-flywheel-") as folder:
        calm, rough = Path(folder) / "calm", Path(folder) / "rough"
        calm.mkdir()
        finished(calm, *FIRST)
        shutil.copytree(calm, rough, symlinks=True)
        finished(calm)
        kills: set[str] = set()
        while (stage := killed_in(rough, kills)) is not None:
            kills.add(stage)
            print(f"killed in {stage}", file=sys.stderr, flush=True)
        same = refs(calm) == refs(rough)
        differ = sorted(set(refs(calm).items()) ^ set(refs(rough).items()))
        stages = Counter(each.partition("-")[0] for each in kills)
        print(json.dumps({"killed_in": stages, "same": same, "differ": differ[:10]}))
        sys.exit(0 if same and kills else 1)


if __name__ == "__main__":
    main()
