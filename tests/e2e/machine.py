"""What a machine of its own runs, in its folder: `python -m tests.e2e.machine stage | cpu | gpu | hand`.

stage RECIPE [--set …]   `apprentice run` that ends the process right after its first publication
cpu RECIPE [PATH=VALUE]  the whole run, its GPU stages each in a process with another disk
gpu                      one of these: the stage, the recipe and the arguments come as JSON on standard input
hand                     a function of HAND for every line of JSON on standard input; the answer is a line "= JSON"
"""

import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from apprentice.flows.runtime.environment_variables import quiet

KINDS = ("Questions", "BaseStudent")
"""A dataset, which has a small file, and a model, which has a large one."""


def stage(arguments: list[str]) -> None:
    from apprentice.deployments.cli import app
    from apprentice.tasks.artifacts.hub import HubStore

    publish, turn = HubStore.publish, threading.Lock()

    def publish_and_end(*given: Any, **named: Any) -> Any:
        with turn:  # never left: whoever comes second waits for the end
            artifact = publish(*given, **named)
            print(f"published {artifact.key}", flush=True)
            os._exit(0)

    HubStore.publish = publish_and_end  # type: ignore[method-assign]
    app(["run", *arguments])


class OtherMachines:
    """Runs each GPU stage as its own flow, in a process whose disk is empty."""

    numbers = itertools.count(1)

    def __init__(self, recipe: Any, deployment: str):
        self._recipe, self._pool = recipe, deployment

    def __call__(self, stage: str, title: str, given: dict[str, Any], key: str) -> Any:
        from apprentice.tasks.engine.run import Dispatched, WorkerLocation

        folder = Path.cwd() / f"gpu-{next(self.numbers)}"
        folder.mkdir()
        values = list(given.items())[1:]  # without the bench
        arguments = {name: value if isinstance(value, int) else value.model_dump(mode="json") for name, value in values}
        request = {"stage": stage, "recipe": self._recipe.as_parameters(), "arguments": arguments}
        own = {"HF_HOME": str(folder / "hf"), "PREFECT_HOME": str(folder / "prefect")}
        command = [sys.executable, "-m", "tests.e2e.machine", "gpu"]
        subprocess.run(command, cwd=folder, env=os.environ | own, input=json.dumps(request), text=True, check=True)
        return Dispatched(WorkerLocation(self._pool, folder.name), 1, {})


def cpu(arguments: list[str]) -> None:
    import apprentice.flows.retrain as whole
    from apprentice.flows.recipe.loading import load_recipe

    whole.Pool = OtherMachines  # type: ignore[misc]
    recipe, *settings = arguments
    print(whole.retrain(recipe=load_recipe(Path(recipe), settings), runs=Path("runs"), gpu="gpu"))


def gpu() -> None:
    from apprentice.flows.stages import STAGES

    request = json.load(sys.stdin)
    STAGES[request["stage"]](request["recipe"], **request["arguments"])


def publish(content: list[int], mib: float = 3, kinds: list[str] = list(KINDS), **where: Any) -> list[dict[str, Any]]:  # noqa: B006
    """Publishes an artifact of each kind; what is in them follows from the numbers in `content`."""
    import numpy
    from safetensors.numpy import save_file

    from apprentice.tasks.artifacts.store_files import hashes

    here, key = opened(**where), where["key"]
    made = []
    for kind in kinds:
        with here.staging() as folder:
            if kind == "Questions":
                (folder / "questions.jsonl").write_text(f"{json.dumps(content)}\n")
                counts = {"collect": 1, "grpo": 2, "evaluate": 3, "dropped_from_grpo": 0}
            else:
                noise = numpy.random.default_rng(content).bytes(int(mib * 2**20))
                save_file({"weights": numpy.frombuffer(noise, dtype=numpy.uint8)}, folder / "model.safetensors")
                counts = {"parameters": 1}
            files = hashes(folder)
            artifact = here.publish(named(kind), key, folder, counts, {"stage": "by-hand"})
            made.append({"kind": kind, "key": key, "revision": artifact.revision, "files": files})
    return made


def fetch(kind: str, key: str, **where: Any) -> dict[str, Any] | None:
    """What a machine finds under a key, its files' hashes without the record's; None for nothing."""
    from apprentice.tasks.artifacts.store_files import hashes

    here = opened(**where)
    artifact = here.find(named(kind), key)
    if artifact is None:
        return None
    files = hashes(here.fetch(artifact))
    return {
        "revision": artifact.revision,
        "files": {name: each for name, each in files.items() if name != "artifact.json"},
    }


def send(**where: Any) -> list[str]:
    """Sends what waits; the keys in the order in which they were sent, `*` behind one that another machine has."""
    sent = opened(**where).send_waiting()
    return [artifact.key + ("" if is_first else "*") for artifact, is_first in sent]


def push(repository: str, files: dict[str, str]) -> None:
    """Pushes files by hand, as a person does, to a dataset's and a model's repository."""
    from huggingface_hub import HfApi

    for kind, suffix in (("dataset", "questions"), ("model", "base")):
        name = f"{repository}-{suffix}"
        HfApi().create_repo(name, repo_type=kind, private=True)
        for path, text in files.items():
            HfApi().upload_file(path_or_fileobj=text.encode(), path_in_repo=path, repo_id=name, repo_type=kind)


def load_model(repository: str, revision: str) -> int:
    """Loads a model as anybody would; how many parameters it has."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(repository, revision=revision, use_safetensors=True).num_parameters()


def named(kind: str) -> Any:
    from apprentice.tasks.artifacts.types import kind_or_none

    return kind_or_none(kind)


def opened(
    store: str, project: str, key: str = "", needed: bool = True, patience: float = 120.0, namespace: str = "team"
) -> Any:
    from apprentice.tasks.artifacts.hub import HubStore

    return HubStore(Path(store), project, namespace, patience=patience, needed=needed)


HAND: dict[str, Callable[..., Any]] = {each.__name__: each for each in (publish, fetch, send, push, load_model)}


def hand() -> None:
    from apprentice.tasks.reporting.errors import Stop

    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer: Any = HAND[request.pop("do")](**request)
        except Stop as stop:
            answer = {"stop": str(stop)}
        print("= " + json.dumps(answer), flush=True)


def main(what: str, *arguments: str) -> None:
    quiet()  # libraries read their settings when they are imported
    if what in ("stage", "cpu"):
        {"stage": stage, "cpu": cpu}[what](list(arguments))
    else:
        {"gpu": gpu, "hand": hand}[what]()


if __name__ == "__main__":
    main(*sys.argv[1:])
