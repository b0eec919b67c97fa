"""How long the commands take that have nothing to train: whole processes, five runs each, the median.

In: nothing; a toy run in a temporary folder is made first. Out: a table, then one line of JSON.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

APPRENTICE = str(Path(sys.executable).parent / "apprentice")
RUNS = 5
COMMANDS = {
    "run, everything cached": ["run", "toy"],
    "champion show": ["champion", "show", "toy"],
    "runs": ["runs"],
    "status, no server": ["status"],
    "compare": ["compare", "last", "{first}"],
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run([APPRENTICE, "run", "toy"], cwd=folder, capture_output=True, text=True, check=True)
        subprocess.run(
            [APPRENTICE, "run", "toy", "--set", "grpo.max_steps=2"], cwd=folder, capture_output=True, check=True
        )
        first = Path(made.stdout.strip().splitlines()[-1]).name
        medians = {
            name: seconds([each.format(first=first) for each in given], folder) for name, given in COMMANDS.items()
        }
    empty = seconds_of([sys.executable, "-c", "import prefect"], ".")
    print("| command | seconds |\n| --- | --- |")
    for name, took in {**medians, "for comparison: import prefect": empty}.items():
        print(f"| {name} | {took:.2f} |")
    print(json.dumps({"seconds": {name: round(took, 2) for name, took in medians.items()}, "import prefect": empty}))


def seconds(arguments: list[str], folder: str) -> float:
    return seconds_of([APPRENTICE, *arguments], folder)


def seconds_of(command: list[str], folder: str) -> float:
    """The median over `RUNS` whole processes; the exit code may say that there is nothing to show."""
    took = []
    for _ in range(RUNS):
        began = time.perf_counter()
        subprocess.run(command, cwd=folder, capture_output=True, env=os.environ)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


if __name__ == "__main__":
    main()
