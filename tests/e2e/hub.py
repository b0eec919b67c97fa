"""The toy recipe over a Hub: every stage on a machine of its own, and what faults of the Hub cost. `make e2e NAME=hub`.

In: names of faults, or parts of them; none for everything. Out: a line for each part as it ends, and a last one of
JSON: {"stages_from_hub": …, "faults": [{"name", "half_artifacts", "double_artifacts", "found_after"}, …]}.
"""

import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.hub_case import SEED, Case, Row
from tests.e2e.hub_faults import FAULTS, HUB
from tests.e2e.hub_judge import KEY, judge
from tests.e2e.hub_machines import Machine, machine_of, prefect_server, secrets_in, toy
from tests.hub_server import LocalHub

AT_ONCE = 3
"""Parts that run beside each other: most of them wait most of the time."""
WHOLE = "hub away for a whole run"
Variables = dict[str, str]


class Part(NamedTuple):
    """What a part of this test found.

    Attributes:
        keys: Every artifact's revision, by repository and key.
    """

    keys: dict[str, str]
    stages_from_hub: int = 0
    row: Row | None = None


def a_machine_for_every_stage(folder: Path, server: Variables) -> Part:
    """Each has an empty disk and makes one artifact; the last one finds all of them and makes none."""
    hub, keys, number = LocalHub(folder / "hub"), {}, 0
    try:
        while True:
            number += 1
            machine = machine_of(folder / f"machine-{number}", hub, **server)
            said = machine.drive("stage", *toy(*HUB))
            before, keys = keys, judge(hub.folder).keys
            if "published " not in said:
                break
            assert before.items() < keys.items(), said
            assert len(keys) == number, (number, keys)
        assert keys == before, "the last machine published without saying so"
        check_hub(hub)
        report = newest_report(machine)
        assert {stage["state"] for stage in report["stages"]} == {"cached"}, report["stages"]
        check_model_loads(folder, hub)
    finally:
        hub.kill()
    assert not secrets_in(folder)
    return Part(keys, len(report["stages"]))


def undisturbed(folder: Path, server: Variables) -> Part:
    """One machine, no Hub."""
    machine = Machine(folder / "machine", {"HF_HUB_OFFLINE": "1", **server})
    machine.apprentice("run")
    return Part(made(machine.store))


def gpu_stages_on_other_machines(folder: Path, server: Variables) -> Part:
    """As in production: the parent keeps its disk, every GPU stage runs as its own flow on an empty one."""
    hub = LocalHub(folder / "hub")
    try:
        machine = machine_of(folder / "cpu", hub, **server)
        recipe, *settings = toy(*HUB)
        machine.drive("cpu", recipe, *settings[1::2])
        check_hub(hub)
        places = [stage["worker"] for stage in newest_report(machine)["stages"] if stage["pool"] == "gpu"]
        assert places == [f"gpu-{number}" for number in range(1, 9)], places
        keys = judge(hub.folder).keys
    finally:
        hub.kill()
    assert not secrets_in(folder)
    return Part(keys)


def check_hub(hub: LocalHub) -> None:
    found = judge(hub.folder)
    assert (found.half, found.double) == ([], []), found


def check_model_loads(folder: Path, hub: LocalHub) -> None:
    """The released model, by its key, from the Hub, as safetensors."""
    state = json.loads((hub.folder / "repos/models/team/toy-model/repo.json").read_bytes())
    (key,) = [tag for tag in state["tags"] if KEY.fullmatch(tag)]
    somebody = machine_of(folder / "somebody", hub)
    try:
        assert somebody.ask("load_model", repository="team/toy-model", revision=key) > 0
    finally:
        somebody.end()
    files = {line.split()[1].rsplit("/", 1)[1] for line in hub.requests("GET .*toy-model/resolve/.* 20[06]")}
    assert "model.safetensors" in files, files


def made(store: Path) -> dict[str, str]:
    """Every artifact of a folder."""
    refs = store.glob("*/local/*/refs/*")
    return {f"{ref.parent.parent.name}:{ref.name}": ref.read_text() for ref in refs if KEY.fullmatch(ref.name)}


def newest_report(machine: Machine) -> dict[str, Any]:
    return json.loads(max((machine.folder / "runs").glob("*/report.json")).read_text())


def with_fault(name: str, folder: Path, server: Variables) -> Part:
    case = Case(name, folder, server)
    try:
        row = case.row(FAULTS[name](case))
        return Part(judge(case.hub.folder).keys, row=row)
    finally:
        case.close()


def timed(name: str, do: Callable[[], Part]) -> Part | None:
    """Says how long it took, or why it failed."""
    began = time.monotonic()
    try:
        part = do()
    except BaseException:
        print(f"FAILED after {time.monotonic() - began:.0f} s: {name}\n{traceback.format_exc()}", flush=True)
        return None
    print(
        f"{time.monotonic() - began:4.0f} s  {name}: {json.dumps(part.row) if part.row else 'as it should be'}",
        flush=True,
    )
    return part


def begin_all(
    names: list[str], folder: Path, server: Variables, pool: ThreadPoolExecutor
) -> dict[str, Future[Part | None]]:
    """Begins every part whose name is asked for, the longest first."""
    runs = [a_machine_for_every_stage, gpu_stages_on_other_machines, undisturbed]
    parts = {do.__name__.replace("_", " "): do for do in runs}
    parts |= {name: partial(with_fault, name) for name in sorted(FAULTS, key=lambda name: name != WHOLE)}
    futures = {}
    for number, (name, do) in enumerate(parts.items()):
        if not names or any(part in name for part in names):
            where = folder / f"part-{number}"
            futures[name] = pool.submit(timed, name, partial(do, where, server))
    return futures


def unlike_in(wholes: list[dict[str, str]]) -> list[str]:
    """What some of several whole runs have and others have not, or not with that revision."""
    sets = [set(keys.items()) for keys in wholes]
    in_all = set.intersection(*sets) if sets else set()
    return sorted(f"{name}@{revision[:8]}" for name, revision in set().union(*sets) - in_all)


def before_the_gate(keys: dict[str, str]) -> dict[str, str]:
    """What a run has whether or not it can see who is champion: without the Hub its gate lets nothing through."""
    return {name: revision for name, revision in keys.items() if not name.startswith(("toy-decisions:", "toy-model:"))}


def main(names: list[str]) -> None:
    print(f"seed {SEED}", flush=True)
    with tempfile.TemporaryDirectory(prefix="apprentice-e2e-hub-") as folder:
        with prefect_server(Path(folder) / "prefect") as server, ThreadPoolExecutor(AT_ONCE) as pool:
            found = {name: part.result() for name, part in begin_all(names, Path(folder), server, pool).items()}
        bad = [name for name, part in found.items() if part is None]
        bad += [f"a token stands in {path}" for path in secrets_in(Path(folder))]
    parts = {name: part for name, part in found.items() if part is not None}
    wholes = {name: part.keys for name, part in parts.items() if part.row is None}
    undecided = [before_the_gate(part.keys) for name, part in parts.items() if part.row is None or name == WHOLE]
    if unlike := unlike_in(list(wholes.values())) + unlike_in(undecided):
        bad.append(f"{', '.join(wholes)} do not have the same artifacts: {' '.join(unlike)}")
    rows = [part.row for part in parts.values() if part.row is not None]
    bad += [
        row["name"]
        for row in rows
        if (row["half_artifacts"], row["double_artifacts"], row["found_after"]) != (0, 0, True)
    ]
    from_hub = sum(part.stages_from_hub for part in parts.values())
    print(json.dumps({"stages_from_hub": from_hub, "faults": rows}))
    sys.exit(f"not as it should be: {'; '.join(bad)}" if bad else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
