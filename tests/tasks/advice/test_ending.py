"""How a run ended is said by one function of its figures, whatever combination of them there is."""

from typing import Any

import pytest

from apprentice.tasks.advice import ending as endings
from apprentice.tasks.advice.ending import Ending
from apprentice.tasks.advice.learning import learning_of
from apprentice.tasks.judgement.contents import GateDecision, VerdictContents

RECIPE: dict[str, Any] = {
    "sft": {"epochs": 8, "learning_rate": 3e-5},
    "grpo": {"max_steps": 40, "num_generations": 8, "learning_rate": 3e-6},
    "windows": {"collect": {"size": 192}},
}


def ending(verdict: dict[str, Any], decision: dict[str, Any], recipe: dict[str, Any]) -> Ending:
    """The ending of a run with these files; the token accuracy of its SFT is the last entry of its log."""
    read, decided_on = VerdictContents.model_validate(verdict), GateDecision.model_validate(decision)
    log = [{"loss": loss, "mean_token_accuracy": read.token_accuracy} for loss in (2.0, 1.0, 0.5, 0.25)]
    known = {"learning": learning_of(log)} if read.token_accuracy is not None else {}
    found = endings.evidence_in(read, decided_on, recipe)._replace(**known)
    return endings.ending(read, decided_on, recipe, found)


def rates(accuracy: float, form: float = 1.0) -> dict[str, Any]:
    around = (max(0.0, accuracy - 0.03), min(1.0, accuracy + 0.03))
    return {"n": 1000, "accuracy": accuracy, "format_compliance": form, "ci": {"accuracy": around}}


def gain(one: str, other: str, delta: float, half: float = 0.04) -> dict[str, Any]:
    return {"from": one, "to": other, "delta": delta, "ci": (delta - half, delta + half)}


def judged(
    sft: float = 0.5,
    grpo: float | None = 0.8,
    form: float = 1.0,
    over: float | None = None,
    control: bool = False,
    reading: str = "learning",
    equal: float = 0.2,
    stopped: str = "",
    clean: bool = True,
) -> dict[str, Any]:
    """A verdict; `over`: GRPO's gain, that of the rates by default; `equal`: the share of groups without signal."""
    models = {"base": rates(0.0, 0.0), "sft": rates(sft, form)}
    comparisons = [gain("base", "sft", sft)]
    if grpo is not None:
        models["grpo"] = rates(grpo, form)
        comparisons.append(gain("control" if control else "sft", "grpo", grpo - sft if over is None else over))
    read = {"diagnosis": reading, "dead_groups": equal} if grpo is not None else None
    return {
        "models": models,
        "comparisons": comparisons if clean else [],
        "contamination": {"clean": clean},
        "grpo": read,
        "stopped": stopped,
    }


def decided(
    verdict: dict,
    floor: float = 0.45,
    delta: float | None = None,
    needed: int = 800,
    unmet: str = "",
    champion: bool = False,
) -> dict[str, Any]:
    """The gate's decision on a verdict, by its own rules; `unmet`: a further rule that does not hold."""
    reached = [*verdict["models"].values()][-1]["accuracy"]
    found: dict[str, Any] = gain("", "", reached if delta is None else delta) | {"questions_for_5_points": needed}
    holds: dict[str, bool] = {
        f"at least {floor:.1%}": reached >= floor,
        "accuracy better": found["delta"] > 0,
        "interval above zero": found["ci"][0] > 0,
        "no contamination": verdict["contamination"]["clean"],
    } | ({unmet: False} if unmet else {})
    return {
        "promoted": all(holds.values()),
        "rival": "champion" if champion else "base",
        "metric": "accuracy",
        "floor": {"at_least": floor, "why": "half of the teacher's 90.0%", "holds": reached >= floor},
        "comparison": found if verdict["contamination"]["clean"] else None,
        "unseen_by_both": 1000,
        "rules": [{"rule": rule, "holds": each, "found": f"{rule}: so it is."} for rule, each in holds.items()],
    }


WRONG = "GRPO did not start: in none of 48 groups of 8 answers did the rewards differ (all wrong), so …"
RIGHT = WRONG.replace("all wrong", "all right")
COMBINATIONS = {
    "good, better, and GRPO paid": (
        judged(),
        {},
        "promoted",
        ["above the floor of 45.0%", "GRPO paid: +30.0 pp over SFT"],
        None,
    ),
    "over SFT at its best": (judged(control=True), {}, "promoted", ["GRPO paid: +30.0 pp over SFT to its best"], None),
    "good, and GRPO within its noise": (
        judged(0.79),
        {},
        "promoted",
        ["GRPO did not pay: +1.0 pp"],
        ("grpo.max_steps", "80 (40 now)"),
    ),
    "nearly all right, and GRPO within its noise": (
        judged(0.97, 0.98),
        {},
        "promoted",
        ["GRPO did not pay"],
        None,
    ),
    "good, and GRPO made it worse": (
        judged(0.9, reading="fell"),
        {},
        "promoted",
        ["GRPO made it worse: -10.0 pp"],
        ("grpo.learning_rate", "1.0e-06 (3.0e-06 now)"),
    ),
    "good, and most groups were right as a whole": (
        judged(0.8, reading="saturated"),
        {},
        "promoted",
        [],
        ("environment.settings", ""),
    ),
    "most groups were the same, and wrong": (
        judged(0.2, 0.2, reading="saturated", equal=0.8),
        {},
        "not promoted",
        ["GRPO did not pay"],
        ("grpo.num_generations", "16 (8 now)"),
    ),
    "below the floor, and GRPO made it worse": (
        judged(0.2, 0.07, reading="saturated"),
        {},
        "not promoted",
        ["GRPO made it worse: -13.0 pp"],
        ("grpo.learning_rate", "1.0e-06 (3.0e-06 now)"),
    ),
    "no GRPO in the recipe": (judged(grpo=None), {}, "promoted", ["Sft answers 50.0%"], None),
    "no floor": (judged(0.01, 0.08), {"floor": 0.0}, "promoted", ["no floor is set (gate.at_least)"], None),
    "better than nothing, and below the floor": (
        judged(0.01, 0.027),
        {"floor": 0.45, "delta": 0.1},
        "not promoted",
        ["2.7%", "below the floor of 45.0%", "It is better than the untrained student"],
        ("grpo.max_steps", "80 (40 now)"),
    ),
    "below the floor, GRPO still gaining": (
        judged(0.1, 0.3),
        {},
        "not promoted",
        ["GRPO paid"],
        ("grpo.max_steps", "160 (40 now)"),
    ),
    "below the floor, GRPO paid until its groups were equal": (
        judged(0.12, 0.2, equal=0.7),
        {},
        "not promoted",
        ["GRPO paid"],
        ("grpo.num_generations", "16 (8 now)"),
    ),
    "below the floor, no group with a right answer": (
        judged(0.02, 0.02, reading="no signal"),
        {},
        "not promoted",
        ["GRPO did not pay", "nearly all groups of GRPO were wrong"],
        ("windows.collect.size", "768 (192 now)"),
    ),
    "below the floor, without GRPO": (
        judged(0.3, None),
        {},
        "not promoted",
        [],
        ("windows.collect.size", "768 (192 now)"),
    ),
    "the form was not learned": (
        judged(0.01, 0.01, form=0.2) | {"token_accuracy": 0.92},
        {},
        "not promoted",
        ["below the floor"],
        ("sft.epochs", "32 (8 now)"),
    ),
    "stopped: nothing right": (
        judged(0.0, None, stopped=WRONG),
        {},
        "stopped early",
        ["GRPO did not start"],
        ("windows.collect.size", "768 (192 now)"),
    ),
    "stopped: nothing right, for want of the form": (
        judged(0.0, None, form=0.1, stopped=WRONG) | {"token_accuracy": 0.92},
        {},
        "stopped early",
        [],
        ("sft.epochs", "32 (8 now)"),
    ),
    "stopped: nothing right, and its rows not learned either": (
        judged(0.0, None, stopped=WRONG) | {"token_accuracy": 0.92},
        {},
        "stopped early",
        [],
        ("sft.epochs", "32 (8 now)"),
    ),
    "stopped: nothing right, its rows learned": (
        judged(0.0, None, stopped=WRONG) | {"token_accuracy": 0.99},
        {},
        "stopped early",
        [],
        ("windows.collect.size", "768 (192 now)"),
    ),
    "stopped: all right already": (
        judged(1.0, None, stopped=RIGHT),
        {},
        "promoted",
        ["GRPO did not start"],
        ("environment.settings", ""),
    ),
    "not better than the champion": (
        judged(0.79),
        {"delta": 0.0, "champion": True},
        "not promoted",
        ["It is not shown to be better than the champion"],
        ("grpo.max_steps", "80 (40 now)"),
    ),
    "better by too little to be shown": (
        judged(0.6),
        {"delta": 0.03, "needed": 3000, "champion": True},
        "not promoted",
        ["It is not shown to be better"],
        ("evaluate.questions", "3000"),
    ),
    "worse than the champion": (
        judged(),
        {"delta": -0.2, "champion": True},
        "not promoted",
        ["It is worse than the champion: -20.0 pp"],
        None,
    ),
    "another skill was lost": (
        judged(),
        {"unmet": "guard rail sums"},
        "not promoted",
        ["guard rail sums: so it is."],
        ("grpo.learning_rate", "1.0e-06 (3.0e-06 now)"),
    ),
    "better, and by less than the margin": (
        judged(),
        {"unmet": "accuracy better by +90.0 points"},
        "not promoted",
        ["The gate asks for +90.0 points."],
        None,
    ),
    "contaminated": (
        judged(clean=False),
        {},
        "not promoted",
        ["questions that training has partly seen"],
        ("windows.evaluate.start", ""),
    ),
}


@pytest.mark.parametrize(("verdict", "given", "state", "says", "change"), COMBINATIONS.values(), ids=COMBINATIONS)
def test_every_combination_of_figures_has_one_ending(verdict: dict, given: dict, state: str, says: list, change: tuple):
    found = ending(verdict, decided(verdict, **given), RECIPE)
    assert found.state == state
    assert found.headline.startswith(f"{state.capitalize()}: ")
    for each in says:
        assert each.lower() in found.sentence().lower()
    assert (found.change and (found.change.field, found.change.value)) == change
    assert ("Nothing needs to be changed." in found.next) is (change is None)


def test_without_the_recipe_a_change_names_the_field_and_no_number():
    verdict = judged(0.79)
    assert "`grpo.max_steps: 2 times as many`" in ending(verdict, decided(verdict), {}).next


def test_a_sign_of_reward_hacking_stands_in_the_closing_sentence():
    verdict = judged()
    assert "Look at its episodes" not in ending(verdict, decided(verdict), RECIPE).sentence()
    signs = [{"kind": "length", "said": "It got longer.", "places": [3]}]
    hacked = ending(verdict | {"signs": signs}, decided(verdict), RECIPE)
    assert hacked.reasons.endswith("Look at its episodes. It got longer.")
    assert hacked.sentence().count("It got longer.") == hacked.as_json()["reasons"].count("It got longer.") == 1


@pytest.mark.parametrize(
    ("low", "high", "begins"),
    [
        (0.01, 0.09, "GRPO paid: +5.0 pp over SFT (+1.0 pp to +9.0 pp)"),
        (0.0, 0.1, "GRPO did not pay: +5.0 pp"),
        (-0.1, 0.0, "GRPO did not pay: -5.0 pp"),
        (-0.09, -0.01, "GRPO made it worse: -5.0 pp"),
    ],
)
def test_grpo_paid_where_the_whole_interval_is_above_zero(low: float, high: float, begins: str):
    found = {"from": "sft", "to": "grpo", "delta": (low + high) / 2, "ci": (low, high)}
    other = found | {"to": "sft", "from": "base"}
    clean = {"contamination": {"clean": True}}
    said = endings._paid(VerdictContents.model_validate(clean | {"comparisons": [other, found]}))
    assert said.replace("−", "-").startswith(begins)
    assert endings._paid(VerdictContents.model_validate(clean | {"comparisons": [other]})) == ""
    compared = {"comparison": {"ci": (low, high), "delta": (low + high) / 2}, "metric": "mean_score"}
    better = GateDecision.model_validate(compared | {"rival": "champion", "promoted": False})
    verb = "is better than" if low > 0 else "is worse than" if high < 0 else "is not shown to be better than"
    assert endings._better(better).startswith(f"It {verb} the champion: ")
    assert " mean score (" in endings._better(better)


@pytest.mark.parametrize(("before", "idle"), [(0.02, True), (0.05, True), (0.06, False)])
def test_a_regression_evaluation_that_could_not_fall_is_told(before: float, idle: bool):
    after = {"after": {"accuracy": 0.5}, "delta": -0.09, "ci": (-0.1, -0.08)}
    regressions = [{"guard": "sums", "before": {"accuracy": before}}, {"guard": "other", "before": {"accuracy": 0.9}}]
    rules = [
        {"rule": "guard rail sums", "holds": True, "found": "+0.1 points"},
        {"rule": "guard rail other", "holds": False, "found": "-9 points"},
    ]
    decision = {"guards": [each | after for each in regressions], "rules": rules, "promoted": False, "rival": "base"}
    decision |= {"decided_by": {"guards": {"sums": 0.05, "other": 0.05}}}
    text = endings.as_markdown(GateDecision.model_validate(decision))
    assert text.startswith("**Not promoted**, compared with the untrained student; there was no champion.\n")
    assert (f"It was at {before:.1%}: it could not fall by more." in text) == idle
    assert "90.0%" not in text
    assert ("| regression evaluation sums |" in text, "guard rail" in text) == (True, False)
    assert ("| yes |" in text, "| **no** |" in text) == (True, True)
    promoted = GateDecision.model_validate(decision | {"guards": [], "promoted": True})
    assert endings.as_markdown(promoted).startswith("**Promoted**")
