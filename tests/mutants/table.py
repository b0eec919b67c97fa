"""The mutants of tests/mutants/*.yaml.

A mutant is a text of a file, what stands there instead, what that breaks, and the tests that must fail.
"""

from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).parent.parent.parent


class Mutant(NamedTuple):
    """One small fault. `survives`: why no test can notice it; it does not count then."""

    file: str
    old: str
    new: str
    breaks: str
    tests: list[str]
    survives: str = ""

    def broken(self, text: str) -> str:
        """The file's text with the fault. Raises ValueError unless `old` occurs exactly once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} holds {text.count(self.old)} times: {self.old!r}")
        return text.replace(self.old, self.new)


def read_mutants() -> list[Mutant]:
    """The tables in the order of their files; a mutant without tests has those of the one before."""
    found: list[Mutant] = []
    for table in sorted(Path(__file__).parent.glob("*.yaml")):
        for row in yaml.safe_load(table.read_text()):
            found.append(Mutant(**({"tests": found[-1].tests if found else []} | row)))
    return found
