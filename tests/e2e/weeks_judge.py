"""What four weeks must not have cost: a row bought twice, a worse champion, room that nothing fills, a process.

In: the `World` after each week and at its end. Out: the figures; AssertionError where one is not as it must be.
`python -m tests.e2e.weeks_judge RECIPE [--set …]` prints the rounds as JSON, in a process that knows the Hub.
"""

import json
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.cluster import until
from tests.e2e.weeks_faults import World

MOST_GROWTH = 1.5
"""How much more than the week before a later week may add to the store, or to the server's database for a run."""


class Judge:
    def __init__(self, world: World, recipe: list[str]):
        self._world, self._recipe = world, recipe
        self._weighed = [self._sizes()]

    def weigh(self) -> None:
        """Notes how large everything is after a week."""
        self._weighed.append(self._sizes())
        print(f"  {json.dumps(self._weighed[-1])}", flush=True)

    def _sizes(self) -> dict[str, float]:
        """Megabytes by what holds them, and the rows of the server's database that nothing takes away."""
        folder, store = self._world.cluster.folder, self._world.cluster.store
        scratch = [store / ".scratch", store / ".staging"]
        return {
            "store": megabytes(store) - sum(map(megabytes, scratch)),
            "scratch": sum(map(megabytes, scratch)),
            "database": self._world.cluster.database_bytes() / 1e6,
            "temporary": megabytes(folder / "tmp"),
            "runs": float(len(list((store / "runs").glob("*")))),
        }

    def figures(self, rows: list[dict[str, Any]], messages: list[str]) -> dict[str, Any]:
        rounds = json.loads(self._world.cluster.run("python", "-m", "tests.e2e.weeks_judge", *self._recipe))
        weeks = len({row["week"] for row in rows})
        assert [each["number"] for each in rounds["rounds"]] == list(range(weeks)), rounds
        self._check_champion(rounds)
        bought = self._check_rows(len(rows))
        self._check_room()
        failed = [row for row in rows if row["state"] == "Failed"]
        return {
            "rounds": weeks,
            "runs": [
                {name: row[name] for name in ("week", "fault", "state", "seconds", "begun_again")} for row in rows
            ],
            "failed_and_picked_up": len(failed),
            "told": len(messages),
            "champions": [each["champion"] for each in rounds["rounds"]],
            **bought,
            "sizes_mb": [{name: round(size, 1) for name, size in each.items()} for each in self._weighed],
        }

    def _check_champion(self, found: dict[str, Any]) -> None:
        """A model that was promoted was better on questions that neither had seen; without one, the champion stays."""
        for each in found["rounds"]:
            assert not each["promoted"] or each["challenger"] > each["rival"], each
        for before, after in pairwise(found["rounds"]):
            assert after["promoted"] or after["champion"] == before["champion"], found
        promoted = [each["revision"] for each in found["rounds"] if each["promoted"]]
        assert found["champion"] == (promoted[-1] if promoted else None), found

    def _check_rows(self, runs: int) -> dict[str, int]:
        """Every answer that was paid is a row of a collection, but the one of each run that tries the endpoint out."""
        requests = (self._world.teacher / "asked.jsonl").read_text().splitlines()
        paid = Counter(each["question"] for each in map(json.loads, requests) if each["answered"])
        rows: Counter[str] = Counter()
        for file in self._world.cluster.store.glob("datasets/team/weeks-rollouts/snapshots/*/rollouts.jsonl"):
            rows.update(json.loads(line)["messages"][1]["content"] for line in file.read_text().splitlines())
        again = paid - rows
        assert again.total() <= runs, f"bought twice: {again}"
        assert not rows - paid, "rows that nobody paid"
        assert max(again.values(), default=0) <= runs, again
        return {"answers_paid": paid.total(), "rows": rows.total(), "tried_out": again.total(), "bought_twice": 0}

    def _check_room(self) -> None:
        """Nothing stays but what was made: no scratch, no temporary file, no week that takes much more than another."""
        last = self._weighed[-1]
        assert last["scratch"] == 0.0, self._weighed
        for what in ("store", "database", "temporary"):
            grown = [after[what] - before[what] for before, after in pairwise(self._weighed)]
            assert grown[-1] <= MOST_GROWTH * max(grown[:-1], default=grown[-1]), (what, grown)


def megabytes(folder: Path) -> float:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()) / 1e6


def left_behind(folder: str) -> list[str]:
    """The processes that know a folder which is gone, once those that end have had the time to."""

    def found() -> list[str]:
        lines = []
        for process in psutil.process_iter(["cmdline", "environ"]):
            said = [*(process.info["cmdline"] or []), *(process.info["environ"] or {}).values()]
            if any(folder in each for each in said):
                lines.append(" ".join(process.info["cmdline"] or []))
        return lines

    try:
        until("no process is left", lambda: not found(), 30.0)
    except AssertionError:
        return found()
    return []


def rounds_of(recipe: Path, overrides: list[str]) -> dict[str, Any]:
    from apprentice.flows.recipe.loading import load_recipe
    from apprentice.flows.runtime.servers import open_store
    from apprentice.tasks.analysis.past_rounds import past_rounds
    from apprentice.tasks.judgement.champions import Champions

    store = open_store(load_recipe(recipe, overrides))
    rounds, champion = [], ""
    for each in past_rounds(store):
        decision = each.node.inputs["decision"].inputs
        challenger, rival = (decision[f"evaluations.{who}"].artifact for who in ("challenger", "rival"))
        champion = each.release.revision if each.release.promoted else champion
        rounds.append(
            {
                "number": each.number,
                "revision": each.release.revision,
                "promoted": each.release.promoted,
                "challenger": challenger.mean_score,  # type: ignore[union-attr]
                "rival": rival.mean_score,  # type: ignore[union-attr]
                "champion": champion[:12],
            }
        )
    current = Champions(store).current()
    return {"rounds": rounds, "champion": current and current.revision}


if __name__ == "__main__":
    print(json.dumps(rounds_of(Path(sys.argv[1]), [each for each in sys.argv[2:] if each != "--set"])))
