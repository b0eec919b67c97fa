"""Says how a run ended, and what to change first: the one place that words it for terminal, page, card and Prefect.

In: a verdict, the gate's decision, the recipe as a run records it. Out: `Ending`. Every sentence is a reading of
figures that the verdict and the decision hold; the held-out questions decide, the curves of the training only explain.

Reads verdicts and the gate's decisions.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from apprentice.tasks.analysis.comparison import named
from apprentice.tasks.analysis.difficulty import FORM
from apprentice.tasks.artifacts.types import ModelName
from apprentice.tasks.reporting.safe_text import code, markdown_table, points
from apprentice.tasks.settings.spec import GateSpec
from apprentice.tasks.settings.training import GrpoSpec, SftSpec

MANY = 0.5
"""Share of a training's last groups, all of equal rewards, from which more steps would teach little."""
READING = "grpo"
"""Where a verdict has what GRPO's curves say."""
WITHOUT_TEACHER = 0.2
"""The floor where no teacher's rate is known."""


def read_verdict(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "verdict.json").read_text())


def unclean(shared: dict[str, Any]) -> str:
    """The reason why nothing is compared, with advice."""
    return (
        f"Nothing was compared: training has seen {shared['shared_with_training']} of the {shared['questions']} "
        f"questions by text ({shared['share']:.1%}; gate.max_overlap allows {shared['limit']:.1%}) and "
        f"{shared['shared_seeds']} by seed. Move windows.evaluate or widen the task (environment.settings)."
    )


def decided_by(spec: GateSpec, allowances: dict[str, float]) -> dict[str, Any]:
    """The rules as a decision records them, to detect later whether the recipe's rules have changed."""
    return {"gate": spec.in_key(), "guards": allowances, "has_floor": True}


def floor_of(spec: GateSpec, verdict: dict[str, Any]) -> tuple[float, str]:
    """What the gate's metric must reach at least, and where that number comes from."""
    if spec.at_least is not None:
        return spec.at_least, "gate.at_least"
    teacher = verdict.get("teacher")
    if teacher is None:
        return WITHOUT_TEACHER, "gate.at_least, by default"
    return teacher["accuracy"] / 2, f"half of the teacher's {teacher['accuracy']:.1%}"


def read_decision(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "decision.json").read_text())


def rival_of(decision: dict[str, Any]) -> str:
    """Whom the challenger was compared with, in words."""
    rivals = {"champion": "the champion", "base": "the untrained student; there was no champion"}
    return rivals.get(decision["rival"], "the model that it began from; there was no champion")


def as_markdown(decision: dict[str, Any]) -> str:
    """The decision as Markdown: promoted or not, and every rule with its finding."""
    idle = {
        f"guard rail {row['guard']}": f" It was at {row['before']['accuracy']:.1%}: it could not fall by more."
        for row in decision.get("guards", [])
        if row["before"]["accuracy"] <= decision["decided_by"]["guards"][row["guard"]]
    }
    rows = [
        {
            "rule": rule["rule"],
            "holds": "yes" if rule["holds"] else "**no**",
            "found": rule["found"] + idle.get(rule["rule"], ""),
        }
        for rule in decision["rules"]
    ]
    outcome = "Promoted" if decision["promoted"] else "Not promoted"
    return f"**{outcome}**, compared with {rival_of(decision)}.\n\n{markdown_table(rows)}"


State = Literal["promoted", "not promoted", "stopped early"]
FACTOR = 2
"""By how much a number of steps, epochs or rows is raised at a time."""
MUCH = 4
"""By how much, where nothing at all was learned."""
LEARNED = 0.97
"""The share of its rows' tokens that a model predicts that has learned them."""
GENTLER = 3
"""By how much a learning rate is divided at a time."""
SHOWN = 4
"""Settings that a comparison of runs names; its table has them all."""
ENOUGH = 0.05
"""The difference that an evaluation is expected to show, see `questions_for_5_points`."""


class Change(NamedTuple):
    """What to change first: one field of the recipe."""

    field: str
    value: str
    """The value to try, with the present one; empty where only a person can choose it."""
    why: str

    def sentence(self) -> str:
        return f"Change first: {code(self.field + (f': {self.value}' if self.value else ''))}. {self.why}"


class Ending(NamedTuple):
    """How a run ended, in sentences; those that do not apply are empty."""

    state: State
    reached: str
    """What the last model does, its interval, and whether that is above the floor."""
    better: str
    """Whether it is better than its baseline, by how much, and whether that is more than noise."""
    paid: str
    """Whether GRPO paid, over the best SFT where that was measured."""
    unmet: str
    """The first rule of the gate that does not hold, where neither floor nor comparison says it."""
    signs: str
    """Signs that GRPO learned the reward's weakness instead of the task."""
    change: Change | None

    @property
    def headline(self) -> str:
        return f"{self.state.capitalize()}: {self.reached}"

    @property
    def reasons(self) -> str:
        return " ".join(filter(None, (self.better, self.paid, self.unmet, self.signs)))

    @property
    def next(self) -> str:
        return self.change.sentence() if self.change else "Nothing needs to be changed."

    def sentence(self) -> str:
        return " ".join(filter(None, (self.headline, self.reasons, self.next)))

    def as_json(self) -> dict[str, Any]:
        """What report.json keeps of it."""
        words = {"headline": self.headline, "reasons": self.reasons, "next": self.next}
        return {"state": self.state, **words, "change": self.change and self.change._asdict()}


def ending(verdict: dict[str, Any], decision: dict[str, Any], recipe: Mapping[str, Any]) -> Ending:
    """Read the figures of a run that is over.

    Args:
        verdict: As verdict.json has it.
        decision: As decision.json has it.
        recipe: As a run records it; {} where it is not known. Only the values to try are taken from it.
    """
    return Ending(
        state_of(verdict, decision),
        _reached(verdict, decision),
        _better(decision),
        verdict.get("stopped") or _paid(verdict),
        _unmet(decision),
        " ".join(["Look at its episodes.", *(sign["said"] for sign in signs)]) if (signs := signs_of(verdict)) else "",
        _change(verdict, decision, recipe),
    )


def state_of(verdict: dict[str, Any], decision: dict[str, Any]) -> State:
    """How the run ended; a run that stopped early and was promoted all the same is called promoted."""
    return "promoted" if decision["promoted"] else "stopped early" if verdict.get("stopped") else "not promoted"


def is_below_the_floor(decision: dict[str, Any]) -> bool:
    floor = decision.get("floor") or {}
    return bool(floor) and not floor["holds"]


def signs_of(verdict: dict[str, Any]) -> list[dict[str, Any]]:
    """The signs of reward hacking, each with the places of episodes that show it; verdicts of older code have none."""
    return verdict.get("signs", [])


def reading_of(verdict: dict[str, Any]) -> dict[str, Any] | None:
    """What GRPO's curves say; None without GRPO."""
    return verdict[READING]


def paid(comparisons: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The comparison that decides whether GRPO paid: with the best SFT, or with its start; None without."""
    return next((each for each in comparisons if each["to"] == ModelName.GRPO), None)


def compared(found: dict[str, Any]) -> str:
    """Which of several runs ended better, by how much, whether that is more than noise, and which settings differ.

    Args:
        found: As compare.json has it: comparisons of the first run's models with the others', and differing settings.
    """
    last = {each["to"].partition(" ")[0]: each for each in found["comparisons"]}  # of each run what it ended with
    said = [_better_of(each) for each in last.values()] or ["The runs ended with the same model."]
    differ = [
        f"{code(row['setting'])} ({', '.join(list(row.values())[1:])})"
        for row in found["settings"]
        if row["setting"] != "environment.code"
    ]
    more = f" and {len(differ) - SHOWN} more" if len(differ) > SHOWN else ""
    what = f"Their recipes differ in {', '.join(differ[:SHOWN])}{more}." if differ else "Their recipes are the same."
    return " ".join([*said, what])


def _better_of(each: dict[str, Any]) -> str:
    low, high = each["ci"]
    by = f"{points(abs(each['delta']))} ({points(low)} to {points(high)} for {each['to']})"
    if low <= 0 <= high:
        return f"{each['from']} and {each['to']} cannot be told apart: {points(each['delta'])} is within the noise."
    better, worse = (each["to"], each["from"]) if low > 0 else (each["from"], each["to"])
    return f"{better} is better than {worse} by {by}, more than noise."


def _reached(verdict: dict[str, Any], decision: dict[str, Any]) -> str:
    name, model = [*verdict["models"].items()][-1]
    low, high = model["ci"]["accuracy"]
    unseen = "unseen questions" if verdict["contamination"]["clean"] else "questions that training has partly seen"
    said = f"{named(name)} answers {model['accuracy']:.1%} of {model['n']:,} {unseen} ({low:.1%} to {high:.1%})"
    floor = decision.get("floor") or {}
    if not floor:
        return f"{said}."
    if not floor["at_least"]:
        return f"{said}; no floor is set (gate.at_least)."
    metric = "" if decision["metric"] == "accuracy" else f" {decision['metric'].replace('_', ' ')}"
    where = "above" if floor["holds"] else "below"
    return f"{said}, {where} the floor of {floor['at_least']:.1%}{metric} ({floor['why']})."


def _better(decision: dict[str, Any]) -> str:
    found, metric = decision["comparison"], decision["metric"].replace("_", " ")
    rival = rival_of(decision).partition(";")[0]
    if found is None:
        return "It could not be compared: no question was new to both models."
    low, high = found["ci"]
    by = f"{points(found['delta'])} {metric} ({points(low)} to {points(high)})"
    if low > 0:
        return f"It is better than {rival}: {by}."
    if high < 0:
        return f"It is worse than {rival}: {by}."
    return f"It is not shown to be better than {rival}: {by}."


def _paid(verdict: dict[str, Any]) -> str:
    found = paid(verdict["comparisons"])
    if found is None:
        return ""
    low, high = found["ci"]
    by = f"{points(found['delta'])} over {named(found['from'])} ({points(low)} to {points(high)})"
    return f"GRPO paid: {by}." if low > 0 else f"GRPO made it worse: {by}." if high < 0 else f"GRPO did not pay: {by}."


def _unmet(decision: dict[str, Any]) -> str:
    """The first rule that does not hold, where the other sentences do not say so."""
    told = ("at least", " better", "interval above zero", "exact test")
    unmet = [rule for rule in decision["rules"] if not rule["holds"]]
    others = [rule for rule in unmet if not any(word in rule["rule"] for word in told)]
    if others:
        return others[0]["found"]
    margin = next((rule["rule"].partition(" better by ")[2] for rule in unmet if " better by " in rule["rule"]), "")
    found = decision["comparison"]
    return f"The gate asks for {margin}." if margin and found and found["ci"][0] > 0 else ""


def _change(verdict: dict[str, Any], decision: dict[str, Any], recipe: Mapping[str, Any]) -> Change | None:
    """The first thing to change, by the main obstacle: data, floor, regression evaluations, noise, GRPO."""
    if not verdict["contamination"]["clean"]:
        return Change("windows.evaluate.start", "", "The questions must be ones that training has not seen.")
    unmet = {rule["rule"] for rule in decision["rules"] if not rule["holds"]}
    if "enough questions that neither has seen" in unmet:
        return Change("windows.evaluate.start", "", "The champion has been trained on most of these questions.")
    if not decision["promoted"] and (formless := _formless(verdict, recipe)):
        return formless
    if is_below_the_floor(decision) or verdict.get("stopped"):
        return _to_reach_the_floor(verdict, recipe)
    if any(rule.startswith("guard rail") for rule in unmet):
        return _guarded(verdict, recipe)
    compared, grpo = decision["comparison"], paid(verdict["comparisons"])
    needed = compared and compared.get("questions_for_5_points")
    if not decision["promoted"] and compared and compared["ci"][0] <= 0 <= compared["ci"][1]:
        if needed and needed > decision["unseen_by_both"] and 0 < compared["delta"] < ENOUGH:
            return Change("evaluate.questions", f"{needed}", "So few questions cannot show so small a difference.")
        return _of_grpo(verdict, recipe) or _more_sft(verdict, recipe)
    if grpo and grpo["ci"][0] <= 0:
        return _of_grpo(verdict, recipe)
    return None


def _formless(verdict: dict[str, Any], recipe: Mapping[str, Any]) -> Change | None:
    """More of SFT, where its answers are seldom valid calls: nothing that comes after can mend that."""
    sft, last = verdict["models"].get(ModelName.SFT), [*verdict["models"].values()][-1]
    if sft is None or max(sft["format_compliance"], last["format_compliance"]) >= FORM:
        return None
    why = f"Only {sft['format_compliance']:.0%} of SFT's answers are valid calls: it has not learned the form."
    return _more(recipe, "sft.epochs", why, MUCH)


def _to_reach_the_floor(verdict: dict[str, Any], recipe: Mapping[str, Any]) -> Change:
    if verdict.get("stopped"):
        harder = Change("environment.settings", "", "A harder level leaves GRPO something to learn.")
        return harder if _mostly_right(verdict) else _more_sft(verdict, recipe)
    found = paid(verdict["comparisons"])
    if found and found["ci"][0] > 0:
        equal = (reading_of(verdict) or {}).get("dead_groups", 0.0)
        if equal >= MANY:
            why = (
                f"GRPO paid, but at its end {equal:.0%} of its groups had equal answers: larger ones differ more often."
            )
            return _more(recipe, "grpo.num_generations", why)
        return _more(recipe, "grpo.max_steps", "GRPO was still gaining.")
    return _of_grpo(verdict, recipe) or _more_sft(verdict, recipe)


def _more_sft(verdict: dict[str, Any], recipe: Mapping[str, Any]) -> Change:
    """More passes over the rows while they are not yet learned, more rows once they are."""
    learned = verdict.get("token_accuracy")
    if learned is not None and learned < LEARNED:
        return _more(
            recipe, "sft.epochs", f"SFT predicts {learned:.0%} of its own rows' tokens: it has not learned them."
        )
    return _more(recipe, "windows.collect.size", "SFT has learned its rows, and they are too few for more.")


def _guarded(verdict: dict[str, Any], recipe: Mapping[str, Any]) -> Change:
    stage = (GrpoSpec if reading_of(verdict) else SftSpec).section
    return _gentler(recipe, f"{stage}.learning_rate", "Another skill fell by more than it may.")


def _of_grpo(verdict: dict[str, Any], recipe: Mapping[str, Any]) -> Change | None:
    """What the curves say of a GRPO that did not pay; None without GRPO."""
    read = reading_of(verdict)
    if not read:
        return None
    found, gain = read["diagnosis"], paid(verdict["comparisons"])
    if found == "fell" or (gain and gain["ci"][1] < 0):
        return _gentler(recipe, "grpo.learning_rate", "GRPO went too far: the model was better before.")
    if found in ("too easy", "saturated") and _mostly_right(verdict):
        return Change("environment.settings", "", "Most of GRPO's groups were right as a whole: make it harder.")
    if found in ("no signal", "saturated"):
        return _more(
            recipe, "grpo.num_generations", "In most groups all answers were wrong, so nothing told them apart."
        )
    return _more(recipe, "grpo.max_steps", "Its reward moved no further than its noise.")


def _mostly_right(verdict: dict[str, Any]) -> bool:
    return [*verdict["models"].values()][-1]["accuracy"] >= 0.5


def _more(recipe: Mapping[str, Any], field: str, why: str, factor: int = FACTOR) -> Change:
    now = _now(recipe, field)
    return Change(field, f"{now * factor:g} ({now:g} now)" if now else f"{factor} times as many", why)


def _gentler(recipe: Mapping[str, Any], field: str, why: str) -> Change:
    now = _now(recipe, field)
    return Change(field, f"{now / GENTLER:.1e} ({now:.1e} now)" if now else "a third", why)


def _now(recipe: Mapping[str, Any], field: str) -> float | None:
    value: Any = recipe
    for part in field.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
