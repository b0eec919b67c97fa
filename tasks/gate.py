"""Decides whether a trained model takes the champion's place.

In: challenger and rival (the champion, or the untrained student where there is none), both examined on the same
questions and guard rails. Out: `Decision`: decision.json, with every rule, what was found, and whether it held.
The rules are the recipe's, written down before training: better on one metric by a margin with the interval above zero,
on questions that neither has seen; no guard rail down by more than its allowance; no contamination.
"""

import json
from pathlib import Path
from typing import Any

from apprentice.tasks import announce
from apprentice.tasks.artifacts import Checkpoint, Decision, Evaluation, Verdict
from apprentice.tasks.contamination import seen_by
from apprentice.tasks.evaluate import read_episodes
from apprentice.tasks.questions import same_text
from apprentice.tasks.record import Examined
from apprentice.tasks.specs import GateSpec
from apprentice.tasks.stage import Bench, stage
from apprentice.tasks.verdict import compare, rate, read_verdict, unclean


@stage(gives=Decision, version=1, title="Gate: challenger against {rival.stage}")
def gate(
    bench: Bench,
    spec: GateSpec,
    challenger: Checkpoint,
    rival: Checkpoint,
    evaluations: dict[str, Evaluation],
    guards: dict[str, Evaluation],
    allowances: dict[str, float],
    judged: Verdict,
    rolled_back: bool,
) -> dict[str, Any]:
    """Applies the rules.

    Args:
        evaluations: "challenger" and "rival".
        guards: By `<guard>.challenger` and `<guard>.rival`.
        allowances: By guard, the share by which it may fall.
        rolled_back: The challenger was the champion once, and someone took it back.
    """
    ours, theirs = (read_episodes(bench.fetch(evaluations[name])) for name in ("challenger", "rival"))
    seen = seen_by(bench.fetch(challenger), ours) | seen_by(bench.fetch(rival), ours)
    unseen = [place for place, record in enumerate(ours) if same_text(record.question) not in seen]
    compared = _compare(spec, [theirs[place] for place in unseen], [ours[place] for place in unseen])
    shared = read_verdict(bench.fetch(judged))["contamination"]
    guarded = [
        _guard(
            guard, allowed, *(read_episodes(bench.fetch(guards[f"{guard}.{who}"])) for who in ("rival", "challenger"))
        )
        for guard, allowed in allowances.items()
    ]
    rules = [
        _clean(shared),
        _enough(spec, len(unseen), len(ours)),
        *_better(spec, compared),
        *(rule for rule, _ in guarded),
    ]
    if rolled_back:
        rules.append(_rule("not rolled back", False, "It was the champion once and was rolled back."))
    decision = {
        "rival": rival.stage,
        "rival_revision": rival.revision,
        "challenger_revision": challenger.revision,
        "metric": spec.metric,
        "questions": len(ours),
        "unseen_by_both": len(unseen),
        "comparison": compared,
        "guards": [row for _, row in guarded],
        "rules": rules,
        "promoted": all(rule["holds"] for rule in rules),
    }
    (bench.out / "decision.json").write_text(json.dumps(decision, indent=2))
    announce.markdown("gate", as_markdown(decision), "The gate's verdict")
    reasons = [rule["found"] for rule in rules if not rule["holds"]]
    delta = compared and compared["delta"]
    return {"promoted": decision["promoted"], "metric": spec.metric, "delta": delta, "reasons": reasons}


def read_decision(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "decision.json").read_text())


def as_markdown(decision: dict[str, Any]) -> str:
    """The verdict for people: promoted or kept, and every rule with what was found."""
    rival = {"champion": "the champion", "base": "the untrained student; there was no champion"}[decision["rival"]]
    lines = [
        f"**{'Promoted' if decision['promoted'] else 'Not promoted'}**, compared with {rival}.",
        "",
        "| rule | holds | found |",
        "| --- | --- | --- |",
        *(
            f"| {rule['rule']} | {'yes' if rule['holds'] else '**no**'} | {rule['found']} |"
            for rule in decision["rules"]
        ),
    ]
    return "\n".join(lines) + "\n"


def _rule(rule: str, holds: bool, found: str) -> dict[str, Any]:
    return {"rule": rule, "holds": holds, "found": found}


def _clean(shared: dict[str, Any]) -> dict[str, Any]:
    found = f"{shared['shared_with_training']} of {shared['questions']} questions were seen in training."
    return _rule("no contamination", shared["clean"], found if shared["clean"] else unclean(shared))


def _enough(spec: GateSpec, unseen: int, questions: int) -> dict[str, Any]:
    found = f"{unseen} of {questions} questions are new to both models; {spec.least_unseen:.0%} must be."
    return _rule("enough questions that neither has seen", unseen >= spec.least_unseen * questions, found)


def _compare(spec: GateSpec, before: list[Examined], after: list[Examined]) -> dict[str, Any] | None:
    return compare(before, after, spec.metric) if before else None


def _better(spec: GateSpec, compared: dict[str, Any] | None) -> list[dict[str, Any]]:
    metric = spec.metric.replace("_", " ")
    rules = (f"{metric} better{f' by {_points(spec.margin)}' if spec.margin else ''}", "interval above zero")
    if compared is None:
        return [_rule(rule, False, "There was no question to compare them on.") for rule in rules]
    low, high = compared["ci"]
    found = f"{_points(compared['delta'])} ({_points(low)} to {_points(high)}), p = {compared['p_value']:.2g}"
    margin_met = compared["delta"] >= spec.margin and compared["delta"] > 0
    return [_rule(rules[0], margin_met, f"{metric}: {found}"), _rule(rules[1], low > 0, f"{metric}: {found}")]


def _guard(
    guard: str, allowed: float, before: list[Examined], after: list[Examined]
) -> tuple[dict[str, Any], dict[str, Any]]:
    row = {"guard": guard, "before": rate(before), "after": rate(after)} | compare(before, after)
    low, high = row["ci"]
    found = f"{guard}: {_points(row['delta'])} ({_points(low)} to {_points(high)}); {_points(-allowed)} is allowed."
    return _rule(f"guard rail {guard}", row["delta"] >= -allowed, found), row


def _points(share: float) -> str:
    return f"{100 * share:+.1f} points"
