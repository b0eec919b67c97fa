"""What a busy neighbour costs a training: GRPO's step on an idle machine, and beside a process that takes one core.

In: nothing. Out: a table, then one line of JSON. Takes about ten minutes on two cores that are idle otherwise. torch's
threads wait for one another after every product of matrices. libgomp's wait by spinning, and where another process has
the core of one thread, the others spin in vain. `ours` is the spin count that `envs.defaults` sets.
The steps are those of `make bench NAME=step`, with shared prompts: the laptop recipe's student in fp32, and SmolLM2's
shape in bf16. Idle and busy take turns; the median step counts.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from apprentice.envs.defaults import SPINS

SETTINGS: dict[str, dict[str, str]] = {
    "libgomp's own": {"GOMP_SPINCOUNT": "300000"},
    "ours": {"GOMP_SPINCOUNT": SPINS},
    "no spinning": {"GOMP_SPINCOUNT": "0"},
    "spins 10,000": {"GOMP_SPINCOUNT": "10000"},
    "spins 100,000": {"GOMP_SPINCOUNT": "100000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
NAMES = ("GOMP_SPINCOUNT", "OMP_NUM_THREADS", "OMP_WAIT_POLICY")
CASES = {"laptop's student": 1, "SmolLM2-135M's shape": 4}
"""The student, and its place among `step.CASES`."""
STEPS = {"laptop's student": 30, "SmolLM2-135M's shape": 3}
ROUNDS = 2


def steps(name: str) -> list[float]:
    """Seconds of each step but the first; in a process of its own."""
    from tests.bench.step import CASES as OF_STEP
    from tests.bench.step import Side

    case = OF_STEP[CASES[name]]._replace(steps=STEPS[name])
    with tempfile.TemporaryDirectory() as folder:
        side = Side(case, True, "SmolLM2" in name, folder)
        return [side.step()[0] for _ in range(case.steps)][1:]


def measured(name: str, setting: str, busy: bool) -> list[float]:
    environment = {key: value for key, value in os.environ.items() if key not in NAMES} | SETTINGS[setting]
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "tests.bench.neighbour", "--steps", name],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
    finally:
        if neighbour:
            neighbour.kill()
            neighbour.wait()
    return json.loads(ran.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--students", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--waiting", nargs="+", choices=SETTINGS, default=[*SETTINGS], help="beside libgomp's own")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--steps", choices=CASES, help="what a process of the bench runs")
    given = parser.parse_args()
    if given.steps:
        print(json.dumps(steps(given.steps)))
        return
    settings = dict.fromkeys(["libgomp's own", *given.waiting])
    rows: list[dict[str, Any]] = []
    for name in given.students:
        taken: dict[tuple[str, bool], list[float]] = {}
        for _ in range(given.rounds):
            for setting in settings:
                for busy in (False, True):
                    taken.setdefault((setting, busy), []).extend(measured(name, setting, busy))
        today = statistics.median(taken["libgomp's own", False])
        for setting in settings:
            idle, busy = (statistics.median(taken[setting, each]) for each in (False, True))
            row = {"student": name, "setting": setting, "idle_s": round(idle, 3), "busy_s": round(busy, 3)}
            rows.append(row | {"idle": round(idle / today, 2), "busy": round(busy / idle, 2)})
            print(rows[-1], file=sys.stderr, flush=True)
    print("| student | waiting | idle, s a step | against libgomp's own | beside one busy core | against idle |")
    print("|" + " --- |" * 6)
    for row in rows:
        cells = [row["student"], row["setting"], row["idle_s"], row["idle"], row["busy_s"], row["busy"]]
        print(f"| {' | '.join(map(str, cells))} |")
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
