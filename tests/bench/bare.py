"""A recipe's stages as bare scripts: `python -m tests.bench.bare RECIPE FOLDER SERVER_URL TEACHER_URL SCRIPT …`.

In: the recipe for its settings, servers that run, the scripts by name. Out: files in FOLDER, and in
FOLDER/seconds.json how long each script took, its imports included.
No Prefect, no store, no keys, no cards, no report. The scripts borrow plain functions (the environment, the episode,
the student's tokenizer, the batched evaluation), so that the work is the same; some lie in modules that import Prefect,
which a bare script would not: that import comes first, and is not counted.
"""

import importlib
import json
import os
import sys
import time
from pathlib import Path


def main(recipe: str, folder: str, server_url: str, teacher_url: str, *scripts: str) -> None:
    from apprentice.flows.runtime.environment_variables import quiet

    quiet()  # libraries read their settings when they are imported
    os.environ["TRACKIO_DIR"] = str(Path(folder) / "trackio")
    began = time.perf_counter()
    importlib.import_module("apprentice.tasks.reporting.announce")
    noted = {"not counted": time.perf_counter() - began}
    for name in scripts:
        began = time.perf_counter()
        run(name, recipe, folder, server_url, teacher_url)
        noted[name] = time.perf_counter() - began
    path = Path(folder) / "seconds.json"
    before = json.loads(path.read_text()) if path.exists() else {"not counted": 0.0}
    noted["not counted"] += before["not counted"]
    path.write_text(json.dumps(before | noted))


def run(name: str, recipe: str, folder: str, server_url: str, teacher_url: str) -> None:
    from apprentice.envs.wire.server import EnvironmentServer
    from apprentice.flows.recipe.loading import load_recipe
    from tests.bench.scripts.given import Given

    chosen = load_recipe(Path(recipe), [])
    server = chosen.server.at(server_url)
    assert isinstance(server, EnvironmentServer)
    importlib.import_module(f"tests.bench.scripts.{name}").main(Given(chosen, Path(folder), server, teacher_url))


if __name__ == "__main__":
    main(*sys.argv[1:])
