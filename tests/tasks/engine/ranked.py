"""A stage's body that says which process it is: its module is imported by processes of their own, quickly."""

import os
import time
from typing import Any

from apprentice.envs.wire.metrics import count
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop


def ranked(context: StageContext, word: str) -> dict[str, Any]:
    count("episodes", 2)
    announce.warn(f"{word} {os.environ['RANK']}")
    if word == "wait":
        time.sleep(600)
    if word == "stop":
        raise Stop("It cannot be done.", "Leave it.") from ValueError("why")
    return {"rank": os.environ["RANK"], "key": context.key, "store": context.run.store.project}
