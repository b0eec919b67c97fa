"""Follows a run's own advice: run after run, each with the field changed that the closing sentence names.

In: a recipe, and how often to follow. Out: the runs, the best of them confirmed on questions that no choice saw. Stages
that a change does not touch are cache hits. A field is changed once: advice that names it again is passed over for the
next cause.
"""

import json
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from apprentice.tasks.judgement.contents import GateDecision, Rates, VerdictContents
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.safe_text import code, points
from apprentice.tasks.statistics.intervals import percent

FOLLOWS = "follows.json"
"""In a run's folder: the run whose advice it follows, and what was changed."""


R = TypeVar("R")


class Followed(NamedTuple, Generic[R]):
    """One run of the chain."""

    folder: Path
    report: dict[str, Any]
    recipe: R
    change: str
    """What was changed for it; empty for the first run."""

    @property
    def verdict(self) -> VerdictContents:
        return VerdictContents.model_validate(self.report)

    @property
    def last(self) -> Rates:
        """The figures of its last model."""
        return self.verdict.models.last

    @property
    def accuracy(self) -> str:
        return percent(self.last.accuracy, self.last.ci["accuracy"])

    @property
    def reached(self) -> bool:
        """Whether the floor is reached, or the model is promoted."""
        decision = GateDecision.model_validate(self.report["gate"])
        return decision.promoted or (decision.floor is not None and not decision.is_below_the_floor)

    @property
    def cost(self) -> float:
        """Of its rollouts, in USD, those of a smaller window included."""
        return (self.report["collect"] or {}).get("cost_usd") or 0.0

    @property
    def model(self) -> str:
        """The key of its last model."""
        return self.report["artifacts"]["models"][self.verdict.models.last_name]["key"]

    def row(self, number: int) -> dict[str, str]:
        return {"run": str(number), "changed": self.change or "–", "accuracy": self.accuracy}

    def line(self) -> str:
        what = self.change or "the recipe as it is"
        return f"{what}: {self.accuracy}{', the floor is reached' if self.reached else ''}"


class FollowBudget(NamedTuple):
    """What a chain of runs may take. None sets no limit."""

    times: int
    """Runs after the first one."""
    minutes: float | None = None
    usd: float | None = None

    def why_over(self, chain: list[Followed[Any]], began: float) -> str:
        """Why no further run begins; empty if one may."""
        if len(chain) > self.times:
            return f"--follow {self.times} is used up"
        if self.minutes is not None and time.monotonic() - began >= 60 * self.minutes:
            return f"--minutes {self.minutes:g} are over"
        if self.usd is not None and max(each.cost for each in chain) >= self.usd:  # of a window that grew: all of it
            return f"--usd {self.usd:g} are spent"
        return ""


def follow(
    recipe: R, run: Callable[[R], Path], with_overrides: Callable[[R, list[str]], R], budget: FollowBudget
) -> list[Followed[R]]:
    """Run the recipe, then follow its advice until the floor is reached, the budget is used up, or nothing is left.

    Args:
        run: Runs a recipe and returns the folder of its report.
        with_overrides: Changes fields of a recipe, each as path=value. Raises Stop.
    """
    began = time.monotonic()

    def finished(recipe: R, change: str = "") -> Followed[R]:
        folder = run(recipe)
        return Followed(folder, json.loads((folder / "report.json").read_text()), recipe, change)

    chain, tried, shown = [finished(recipe)], set[str](), 0
    while True:
        if len(chain) > shown:
            shown = len(chain)
            announce.say(f"Run {shown}, {chain[-1].line()}")
        if chain[-1].reached:
            return chain
        if why := budget.why_over(chain, began):
            announce.say(f"No further run: {why}.")
            return chain
        begun_from = best_of(chain)
        step = _next(begun_from, with_overrides, tried)
        if isinstance(step, str):
            announce.say(f"No further run: {step}.")
            return chain
        advice, changed = step
        change = f"{advice['field']}: {advice['value']}"
        announce.say(f"Following: {change}.")
        tried.add(advice["field"])
        try:
            chain.append(finished(changed, change))
        except Stop as stop:  # such as a model that cannot be downloaded: the runs before it stand
            announce.warn(f"{change} could not be followed: {' '.join(str(stop).split())}")
            continue
        follows = {"after": begun_from.folder.name, "change": change}
        (chain[-1].folder / FOLLOWS).write_text(json.dumps(follows) + "\n")


def best_of(chain: list[Followed[R]]) -> Followed[R]:
    """Return the run that is right most often; among equals the one with more valid calls, then the later one."""
    return max(chain, key=lambda each: (each.last.accuracy, each.last.format_compliance, chain.index(each)))


def as_sentence(first: Followed[Any], best: Followed[Any], questions: int, found: dict[str, Any]) -> str:
    """How the best run's model compares with the first run's on the fresh questions."""
    compared = found["comparisons"][0]
    low, high = compared["ci"]
    by = f"{points(compared['delta'])} ({points(low)} to {points(high)})"
    verb = "is better than" if low > 0 else "is worse than" if high < 0 else "cannot be told apart from"
    return f"On {questions:,} questions that no choice saw, {best.folder.name} {verb} {first.folder.name}: {by}."


def _next(
    last: Followed[R], with_overrides: Callable[[R, list[str]], R], tried: Collection[str]
) -> tuple[dict[str, Any], R] | str:
    """Return the first advice of a run that was not tried, with the recipe that it leads to, or why there is none."""
    why = "nothing is left to try"
    for advice in last.report["ending"]["advised"]:
        if advice["field"] in tried:
            continue
        if not advice["changes"]:
            return f"only a person can choose {code(advice['field'])} ({advice['why'].rstrip('.')})"
        try:
            overrides = [f"{path}={json.dumps(value)}" for path, value in advice["changes"].items()]
            return advice, with_overrides(last.recipe, overrides)
        except Stop as stop:
            why = f"{code(advice['field'])} cannot be changed so: {stop.cause}".removesuffix(".")
    return why
