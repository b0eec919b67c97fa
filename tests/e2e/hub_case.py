"""One fault of a Hub: a Hub of its own that is empty, machines that know it, and what is judged afterwards.

In: a function `fault(case) -> bool`, which disturbs a publication and says whether another machine found what it
should, with the same bytes. Out: its row.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.hub_judge import judge
from tests.e2e.hub_machines import TOKENS, Machine, machine_of, secrets_in
from tests.hub_server import LocalHub

SEED = int.from_bytes(random.SystemRandom().randbytes(3))
Row = dict[str, Any]


class Case:
    """One fault.

    Attributes:
        name: What the row is called.
        server: The variables by which machines know Prefect's server.
    """

    def __init__(self, name: str, folder: Path, server: dict[str, str]):
        self.name, self.folder, self.server = name, folder, server
        folder.mkdir()
        self.hub = LocalHub(folder / "hub")
        self.machines: dict[str, Machine] = {}
        self.contents = 0

    def machine(self, name: str = "one", token: str = "write") -> Machine:
        """The machine of that name, switched on; with the same disk where it was there before."""
        if name not in self.machines:
            self.machines[name] = machine_of(self.folder / name, self.hub, token, **self.server)
        self.machines[name].env["HF_TOKEN"] = TOKENS[token]
        return self.machines[name]

    def content(self) -> dict[str, Any]:
        """What nobody published before, and a key for it."""
        self.contents += 1
        content = [SEED, self.contents]
        return {
            "content": content,
            "key": random.Random(str(content)).randbytes(10).hex(),
            "project": "toy",
            "store": "a",
        }

    def elsewhere(self, project: str, *made: Row) -> bool:
        """Whether a machine with an empty disk finds these artifacts and fetches the same bytes."""
        there = self.machine("elsewhere")
        try:
            return all(
                there.ask("fetch", store="a", project=project, kind=each["kind"], key=each["key"])
                == {"revision": each["revision"], "files": each["files"]}
                for each in made
            )
        finally:
            shutil.rmtree(there.folder / "a", ignore_errors=True)

    def is_nothing(self, content: Row, kind: str) -> bool:
        """Whether a machine with an empty disk finds nothing under the key."""
        found = self.machine("elsewhere").ask("fetch", store="a", project="toy", kind=kind, key=content["key"])
        return found is None

    def row(self, found: bool) -> Row:
        judged = judge(self.hub.folder)
        return {
            "name": self.name,
            "half_artifacts": len(judged.half),
            "double_artifacts": len(judged.double),
            "found_after": found,
        }

    def close(self) -> None:
        """Switches everything off, and looks for the tokens."""
        for machine in self.machines.values():
            machine.end()
        if self.hub.process.poll() is None:
            self.hub.kill()
        found = secrets_in(self.folder)
        shutil.rmtree(self.folder)
        assert not found, f"a token stands in {found}"


Fault = Callable[[Case], bool]
FAULTS: dict[str, Fault] = {}


def fault(do: Fault) -> Fault:
    """Names a fault after its function."""
    FAULTS[do.__name__.replace("_", " ").strip()] = do
    return do
