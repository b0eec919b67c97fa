"""One collection as a process: `python -m tests.faults.collector SETTINGS_JSON`.

In: the servers' URLs, a folder, the number of episodes, and settings of server and teacher. Out: FOLDER/rollouts.jsonl
and exit code 0, or the words of a Stop and exit code 1.

With `stale`, seconds after which a lease is over, it is the whole stage, on a store where flock says yes to everybody.
"""

import fcntl
import json
import shutil
import sys
from pathlib import Path

from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.collect import collect_shard
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.files import lease
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.endpoint import TeacherSpec
from apprentice.tasks.settings.spec import CollectSpec, Window
from tests.conftest import TASKS


def main() -> None:
    given = json.loads(sys.argv[1])
    folder = Path(given["folder"])
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    store = LocalStore(folder / "store", "faults")
    work = RunContext(
        store, StandingServers({"reasoning_gym": EnvironmentServer(**given["server"])}, f"{given['teacher_url']}/v1")
    )
    teacher = TeacherSpec(model="faulty", **given["teacher"])
    arguments = CollectSpec(), teacher, TASKS["chain_sum"], Window(start=0, size=given["episodes"])
    try:
        if stale := given.get("stale"):
            fcntl.flock = lambda file, how: None
            lease.PERIOD, lease.STALE = stale / 12, stale
            made = store.fetch(collect_shard(work, *arguments))
            shutil.copyfile(made / "rollouts.jsonl", folder / "rollouts.jsonl")
            return
        with store.staging() as out:
            collect_shard.body(StageContext(work, "0" * 20, out, scratch), *arguments)
            shutil.copyfile(out / "rollouts.jsonl", folder / "rollouts.jsonl")
    except Stop as stop:
        print(stop)
        sys.exit(1)


if __name__ == "__main__":
    main()
