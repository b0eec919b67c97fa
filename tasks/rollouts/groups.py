"""The groups of an online training that have a right and a wrong rollout, kept whole: pairs for a training after it.

In: the rollouts of a batch. Out: groups.jsonl in the checkpoint: step, seed, reward, messages, tools of each.
"""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apprentice.envs.reward import is_right
from apprentice.envs.tools import tools_text
from apprentice.tasks.files.json_lines import JsonLines, as_line, read_rows

if TYPE_CHECKING:
    from apprentice.tasks.rollouts.live_rollouts import LiveRollouts

GROUPS = "groups.jsonl"


class GroupLog:
    """The groups so far, a file for each process, which survives an interruption."""

    def __init__(self, folder: Path):
        self._lines = JsonLines(folder / f"{os.environ.get('RANK', '0')}-{GROUPS}")
        self._resumed = False

    def note(self, step: int, rollouts: "LiveRollouts") -> None:
        """Keeps the groups of a batch. Drops what a repeated step has noted before.

        Args:
            step: Optimizer steps before this batch.
        """
        if not self._resumed:
            before = [line for line in self._lines if json.loads(line)["step"] < step]
            self._lines.path.write_bytes(b"".join(before))
            self._resumed = True
        by_seed: dict[int, list[dict[str, Any]]] = {}
        for seed, messages, environment in rollouts.played():
            if environment.reward is not None:
                row = {"step": step, "seed": seed, "reward": environment.reward, "messages": messages}
                by_seed.setdefault(seed, []).append(row | {"tools": tools_text(environment.tools)})
        for group in by_seed.values():
            if len({is_right(row["reward"]) for row in group}) == 2:
                self._lines.append(*map(as_line, group))

    @staticmethod
    def publish(folder: Path, out: Path) -> None:
        """Writes the groups of all processes, in the order of steps."""
        rows = [row for file in sorted(folder.glob(f"*-{GROUPS}")) for row in read_rows(file)]
        (out / GROUPS).write_bytes(b"".join(map(as_line, sorted(rows, key=lambda row: row["step"]))))


def read_groups(checkpoint: Path) -> list[list[dict[str, Any]]]:
    """The groups of a checkpoint; empty for one that kept none."""
    path = checkpoint / GROUPS
    groups: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in read_rows(path) if path.exists() else []:
        groups.setdefault((row["step"], row["seed"]), []).append(row)
    return [*groups.values()]
