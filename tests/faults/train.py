"""What ten kills cost a training: time. `python -m tests.faults.train [--seed N]`, or `make faults NAME=train`.

In: nothing; two folders of its own. Out: a table, then one line of JSON; exit code 1 when anything is not as it must
be. `apprentice run` on a small recipe is killed with -9, with all its children, at ten random moments of SFT and GRPO,
and begun again each time by the same command. Three of the ten strike as soon as a checkpoint begins to be written.
What is compared with an undisturbed run: the rows whose gradients are in the final weights (of each step those that
were trained on last: what came after the checkpoint from which one went on is lost), the completions, the questions
that the environment was asked, the logs, and the weights, bit for bit.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from tests.digests import digest_of_some
from tests.prefect_database import prefect_home

ROOT = Path(__file__).parent.parent.parent
SETTINGS = {
    "windows.grpo.size": 240,
    "evaluate.questions": 20,
    "student.build.hidden_size": 64,
    "student.build.intermediate_size": 128,
    "sft.epochs": 6,
    "sft.batch_size": 4,
    "sft.gradient_accumulation": 2,
    "sft.learning_rate": 2e-2,
    "sft.logging_steps": 1,
    "sft.checkpoint_steps": 5,
    "grpo.max_steps": 40,
    "grpo.gradient_accumulation": 2,
    "grpo.checkpoint_steps": 5,
    "grpo.oversample": 3.0,
    "grpo.curriculum.by": ["word_len"],
}
"""Over the toy recipe's: epochs of several steps, steps of several batches, checkpoints in mid-epoch, an SFT that
learns enough of the form for GRPO to have rewards to learn from, and all that GRPO does about groups without signal.
"""
KILLS = 10
AT_CHECKPOINTS = 3
MISSED = 6
"""Steps after which a kill strikes that was aimed at a checkpoint: writing one takes milliseconds and may be missed."""
LEAVES = 15.0
"""Seconds within which a killed run's processes must be gone."""
Line = dict[str, Any]


class Run:
    """One store, and `apprentice run` on it as often as it takes."""

    def __init__(self, folder: Path):
        folder.mkdir()
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.left_over: list[str] = []
        self.kills = 0
        """Of runs that were at work until then."""

    def start(self) -> "subprocess.Popen[bytes]":
        recipe = str(ROOT / "deployments" / "recipes" / "toy.yaml")
        sets = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
        own = {"PREFECT_HOME": prefect_home(self.folder), "HF_HUB_OFFLINE": "1", "APPRENTICE_FAULTS": self.mark}
        own["TRACKIO_DIR"] = str(self.folder / "artifacts" / "trackio")  # TRL is imported before the recipe is read
        paths = {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
        with (self.folder / "said.txt").open("ab") as said:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.faults.trainer", str(self.folder / "seen.jsonl"), recipe, *sets],
                cwd=self.folder,
                env=os.environ | own | paths,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )

    def seen(self) -> list[Line]:
        """What was noted so far, without a line at which a run was killed."""
        path = self.folder / "seen.jsonl"
        return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []

    def finish(self) -> None:
        if code := self.start().wait(1200):
            raise SystemExit(f"a run ended with {code}:\n{(self.folder / 'said.txt').read_text()[-3000:]}")

    def kill(self, process: "subprocess.Popen[bytes]") -> None:
        """All of it at once, with -9; what is there after a while all the same is noted."""
        tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for each in tree:
            each.kill()
        self.kills += process.wait() == -signal.SIGKILL
        deadline = time.monotonic() + LEAVES
        while (there := list(self._alive())) and time.monotonic() < deadline:
            time.sleep(0.1)
        for each in there:
            self.left_over.append(" ".join(each.cmdline()))
            each.kill()

    def _alive(self) -> Iterable[psutil.Process]:
        """Every process that inherited this run's mark, whoever its parent is by now."""
        for each in psutil.process_iter():
            try:
                if each.environ().get("APPRENTICE_FAULTS") == self.mark and each.status() != psutil.STATUS_ZOMBIE:
                    yield each
            except psutil.Error:  # it has just ended, or is someone else's
                continue

    def started_checkpoints(self) -> set[tuple[str, int]]:
        """Checkpoints whose last file, the trainer's state, is not there: they are being written, or were torn.

        Each with its last write: one that was torn is begun anew in the same folder.
        """
        folders = (self.folder / "artifacts" / ".scratch").glob("*/checkpoint-*")
        return {(str(each), last_write(each)) for each in folders if not (each / "trainer_state.json").exists()}

    def made(self) -> dict[str, str]:
        """Digests of what the two trainings left."""
        found = {}
        for stage in ("sft", "grpo"):
            for pattern in ("*.safetensors", "log.json", "learned.jsonl"):
                found[f"{stage} {pattern}"] = digest_of_some(self.snapshot(stage), pattern)
        return found

    def snapshot(self, stage: str) -> Path:
        (only,) = (self.folder / "artifacts" / "models" / "local" / f"toy-{stage}" / "snapshots").iterdir()
        return only


def last_write(folder: Path) -> int:
    """In or to a folder, in nanoseconds; 0 for one that is being removed."""
    try:
        return max(each.stat().st_mtime_ns for each in (folder, *folder.iterdir()))
    except FileNotFoundError:
        return 0


def history(seen: list[Line]) -> list[Line]:
    """What the final weights stand on: where a run did a step that an earlier one had done, all since is done anew."""
    kept: dict[tuple[str, int], list[Line]] = {}
    for line in seen:
        here = (line["stage"], line["step"])
        if here in kept and kept[here][0]["run"] != line["run"]:
            kept = {at: lines for at, lines in kept.items() if at[0] != here[0] or at[1] < here[1]}
        kept.setdefault(here, []).append(line)
    return [line for lines in kept.values() for line in lines]


def rows_of(lines: list[Line]) -> Counter[tuple[str, str]]:
    return Counter((line["stage"], row) for line in lines if line["did"] == "trained" for row in line["rows"])


def without_run(lines: list[Line]) -> list[Line]:
    return [{name: value for name, value in line.items() if name not in ("run", "at")} for line in lines]


def disturbed(run: Run, whole: list[Line], draw: random.Random) -> int:
    """Kills a training ten times and lets it end; returns how often it was killed in the midst of training."""
    steps = list(dict.fromkeys((line["stage"], line["step"]) for line in whole))
    # the last kills must find it at work, also where one before missed the moment of a checkpoint
    targets = sorted(draw.sample(range(1, len(steps) - 2 * MISSED), KILLS))
    at_checkpoints = set(draw.sample(range(KILLS), AT_CHECKPOINTS))
    times = [line["at"] for line in whole if line["did"] == "trained"]
    typical = statistics.median(after - before for before, after in pairwise(times))
    print(
        "| kill | aimed at | struck in | checkpoint cut | its run began at | steps of others that it did anew |\n|"
        + " --- |" * 6,
        flush=True,
    )
    for number, target in enumerate(targets):
        before, torn = len(run.seen()), run.started_checkpoints()
        process = run.start()

        def reached(before: int = before, target: int = target) -> bool:
            return any(steps.index((line["stage"], line["step"])) >= target for line in run.seen()[before:])

        def started_to_keep(before: int = before, target: int = target, torn: set[tuple[str, int]] = torn) -> bool:
            return bool(run.started_checkpoints() - torn) or reached(before, target + MISSED)

        until(reached, process)
        if number in at_checkpoints:
            until(started_to_keep, process)
        else:
            time.sleep(draw.random() * 4 * typical)
        if process.poll() is not None:
            raise SystemExit(f"it ended before it was killed:\n{(run.folder / 'said.txt').read_text()[-3000:]}")
        run.kill(process)
        tell(run, number, steps[target], before, run.started_checkpoints() - torn)
    run.finish()
    print(f"then it ended, after {len(run.seen())} lines in all where {len(whole)} were needed", flush=True)
    return run.kills


def tell(run: Run, number: int, aimed: tuple[str, int], before: int, torn: set[tuple[str, int]]) -> None:
    """The row of one kill; `before`: the lines that were there when its run began."""
    seen = run.seen()
    first, last = seen[before], seen[-1]
    lost = len({_at(line) for line in seen[:before] if _at(line) >= _at(first)})
    cut = ", ".join(Path(each).name for each, _ in torn) or "–"
    print(f"| {number + 1} | {aimed[0]} {aimed[1]} | {_named(last)} | {cut} | {_named(first)} | {lost} |", flush=True)


def _at(line: Line) -> tuple[int, int]:
    return ("sft", "grpo").index(line["stage"]), line["step"]


def _named(line: Line) -> str:
    return f"{line['stage']} {line['step']}"


def until(condition: Callable[[], Any], process: "subprocess.Popen[bytes]", seconds: float = 600.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and process.poll() is None:
        if time.monotonic() > deadline:
            raise SystemExit("the condition did not come about")
        time.sleep(0.001)


def check_whole(run: Run, whole: list[Line]) -> None:
    """The undisturbed run is one from which something can be told: raises SystemExit where it is not.

    Most of GRPO's steps must have a gradient: without one any two trainings end alike.
    """
    trained = [line for line in whole if line["did"] == "trained"]
    if any(line["run"] != whole[0]["run"] for line in whole):
        raise SystemExit("the undisturbed run was begun twice")
    times = {count for (stage, _), count in rows_of(trained).items() if stage == "sft"}
    if any(count % SETTINGS["sft.epochs"] for count in times):  # two episodes may be the same text
        raise SystemExit(f"SFT saw its rows {sorted(times)} times in {SETTINGS['sft.epochs']} epochs")
    log = json.loads((run.snapshot("grpo") / "log.json").read_text())
    gradient_share = sum(entry["grad_norm"] > 0 for entry in log) / len(log)
    if gradient_share < 0.75:
        raise SystemExit(f"only {gradient_share:.0%} of GRPO's steps had a gradient")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--keep", type=Path, help="an empty folder that is left; a temporary one when left out")
    given = parser.parse_args()
    print(f"random seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        calm, killed = Run(folder / "calm"), Run(folder / "killed")
        calm.finish()
        whole = calm.seen()
        check_whole(calm, whole)
        kills = disturbed(killed, whole, random.Random(given.seed))
        stands_on = history(killed.seen())
        rows, wanted = rows_of(stands_on), rows_of(whole)
        made, wished = killed.made(), calm.made()
        left_over = killed.left_over
    differs = [name for name in wished if made[name] != wished[name]]
    same_order = without_run(stands_on) == without_run(whole)
    found = {
        "kills": kills,
        "rows_repeated": (rows - wanted).total(),
        "rows_missed": (wanted - rows).total(),
        "weights_equal": not any("safetensors" in name for name in differs),
    }
    print(f"{wanted.total()} rows in {len(whole)} lines; the same rows, samples and questions in order: {same_order}")
    print(f"files that differ: {', '.join(differs) or 'none'}; processes left over: {'; '.join(left_over) or 'none'}")
    print(json.dumps(found))
    fine = found == {"kills": KILLS, "rows_repeated": 0, "rows_missed": 0, "weights_equal": True}
    return 0 if fine and same_order and not differs and not left_over else 1


if __name__ == "__main__":
    sys.exit(main())
