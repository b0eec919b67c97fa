"""What the report says in words: outcome, decision, cost, contamination, power.

In: the report's data. Out: the view that the templates of the page and of its brief read, and a terminal's last lines.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from apprentice.flows.pages.curves import curve_of, heat_of
from apprentice.flows.pages.html import as_title
from apprentice.tasks.advice.ending import tries_of, unclean
from apprentice.tasks.analysis.comparison import comparison_rows, difference_cells, table
from apprentice.tasks.analysis.diagnose import ENDS
from apprentice.tasks.analysis.thought_worth import shown_rows, shown_tokens
from apprentice.tasks.artifacts.types import ModelName
from apprentice.tasks.judgement.contents import (
    Contamination,
    Curves,
    GateDecision,
    Rates,
    RegressionEvaluation,
    TeacherRates,
    VerdictContents,
)
from apprentice.tasks.judgement.model_names import label, named
from apprentice.tasks.reporting.safe_text import code, points
from apprentice.tasks.statistics.intervals import Interval, percent

HEATS = {"asked": "Share of the questions", "rate": "Success rate, as it was known"}
"""What is drawn of each kind of question that a curriculum asked."""
EMPTY = {
    "pool, worker": "here",
    "begun": "1",
    "episodes": "–",
    "tokens read + written": "–",
    "USD": "–",
    "retries, reconnects": "0, 0",
    "waited s": "0",
    "device s": "–",
}
"""Columns of the stages' table that are left out where no stage has more to tell than this."""


def closing_lines(report: dict[str, Any]) -> str:
    """What a terminal shows at the end of a run, as Markdown: warnings, outcome, reasons, next step, cost.

    The folder of the page follows in its own line, for scripts.
    """
    warnings, ended = report["warnings"], report["ending"]
    listed = f"Warned of {len(warnings)} thing{'s' * (len(warnings) > 1)}:", "\n".join(f"- {each}" for each in warnings)
    return "\n\n".join(
        [
            *(listed if warnings else ()),
            f"**{ended['headline']}** {ended['reasons']}",
            ended["next"],
            f"Cost: {_cost(report)}. Duration: {_duration(report['stages'])}. The page is report.html in",
        ]
    )


def view_of(report: dict[str, Any]) -> dict[str, Any]:
    """What the page says of a run beyond its figures. `report`: as report.json has it."""
    verdict, decision = VerdictContents.model_validate(report), GateDecision.model_validate(report["gate"])
    thinks = report.get("thinks", False)
    return {
        "last": verdict.models.last_name,
        "rate_rows": rate_rows(verdict.models, verdict.teacher, report.get("tokens", {}) if thinks else {}),
        "model_rows": [
            row | _tokens(report, name) for name, row in zip(verdict.models, table(verdict.models), strict=True)
        ],
        "thought_rows": shown_rows(report.get("thoughts", {})),
        "rates": rates_of(verdict.models),
        "pass_rows": pass_rows(verdict.models),
        "weakness": _weakness(verdict, report["kinds_of_failure"]),
        "decision": decision,
        "standing": _standing(report, decision),
        "cost": _cost(report),
        "duration": _duration(report["stages"]),
        "contaminated_by": "" if verdict.contamination.clean else unclean(verdict.contamination),
        "contamination_line": _contamination(verdict.contamination),
        "power": _power(verdict),
        "comparison_rows": comparison_rows(verdict.comparisons),
        "difference_rows": [
            row | {"from": as_title(each.from_), "to": as_title(each.to)}
            for row, each in zip(comparison_rows(verdict.comparisons), verdict.comparisons, strict=True)
        ],
        "guard_rows": regression_rows(verdict.guards, report.get("guard_tokens", {}) if thinks else {}),
        "guards_at_zero": ", ".join(each.guard for each in verdict.guards if not each.before.accuracy),
        "usage_corrected": sum(stage["counts"].get("usage_corrected", 0) for stage in report["stages"]),
        "stage_rows": _stage_rows(report["stages"], (report["collect"] or {}).get("cost_usd") is not None),
        "drawings": {
            stage: [curve_of(drawn, _says(verdict.curves, drawn)) for drawn in of_it]
            for stage, of_it in report["curves"].items()
        },
        "heats": [heat_of(report["curriculum"], *each) for each in HEATS.items()] if report["curriculum"] else [],
        "bought": _bought(report["collect"]),
    }


def _tokens(report: dict[str, Any], model: str) -> dict[str, str]:
    """The column of a model's tokens an answer; none in reports of older code, and where they are not known."""
    known = report.get("tokens", {})
    return {"tokens an answer": shown_tokens(known.get(model))} if any(known.values()) else {}


def pass_rows(models: Mapping[str, Rates]) -> list[dict[str, str]]:
    """A row a model that was asked several times; pass@k for k = 1, 2, 4, 8, …"""
    return [
        {"model": name} | {f"pass@{row['k']}": percent(row["pass_at_k"], row["ci"]) for row in rows}
        for name, model in models.items()
        if (rows := [row for row in model.pass_at_k if row["k"] & (row["k"] - 1) == 0])
    ]


def regression_rows(
    regressions: list[RegressionEvaluation], tokens: Mapping[str, Sequence[float]]
) -> list[dict[str, str]]:
    """A row a skill that training must not lose. `tokens`: an answer's, before and after, by the skill's name."""
    known = {name: each for name, each in tokens.items() if any(each)}
    found = []
    for each in regressions:
        before, after = known.get(each.guard, (0.0, 0.0))
        found.append(
            {
                "regression evaluation": each.guard,
                "n": str(each.before.n),
                "before": percent(each.before.accuracy, each.before.ci),
                **({"tokens before": shown_tokens(before)} if known else {}),
                "after": percent(each.after.accuracy, each.after.ci),
                **({"tokens after": shown_tokens(after)} if known else {}),
                **difference_cells(each),
            }
        )
    return found


def kind_rows(kinds: list[dict[str, Any]]) -> list[dict[str, str]]:
    """A row a kind of failure: the number of episodes of each model."""
    return [
        {"kind": row["kind"]} | {label(name): str(number) for name, number in row["models"].items()} for row in kinds
    ]


def rate_rows(
    models: Mapping[str, Rates], teacher: TeacherRates | None, tokens: Mapping[str, float]
) -> list[dict[str, str]]:
    """The first table: how often each model is right, and the teacher on the questions that it was asked.

    Args:
        tokens: Each model's tokens an answer; a teacher's are other ones. Empty where they are not known.
    """
    is_known = any(tokens.values())
    rows = [
        {
            "": as_title(name),
            "right": percent(model.accuracy, model.ci["accuracy"]),
            **({"tokens an answer": shown_tokens(tokens.get(name))} if is_known else {}),
            "valid calls": f"{model.format_compliance:.1%}",
            "n": f"{model.n:,}",
        }
        for name, model in models.items()
    ]
    if teacher:
        right = percent(teacher.accuracy, teacher.ci)
        empty = {"tokens an answer": ""} if is_known else {}
        taught = {"": "Teacher, as it taught", "right": right, **empty, "valid calls": "", "n": f"{teacher.episodes:,}"}
        rows.append(taught)
    return rows


def _weakness(verdict: VerdictContents, failures: list[dict[str, Any]]) -> dict[str, Any]:
    """What the last model gets wrong, in a few figures: episodes by kind, and the slice that lies surely below all."""
    model, found = verdict.models.last_name, verdict.models.last
    kinds = [(row["kind"], row["models"][model]) for row in failures if row["models"][model]]
    below = [row for row in verdict.slices if row.models.last.ci[1] < found.accuracy]
    return {
        "model": as_title(model),
        "episodes": found.n * found.samples,
        "wrong": sum(number for _, number in kinds),
        "kinds": kinds[:3],
        "slice": min(below, key=lambda row: row.models.last.accuracy, default=None),
    }


def _standing(report: dict[str, Any], decision: GateDecision) -> str:
    if not report["hub_in_reach"]:
        standing = "The Hub was out of reach: who is champion is settled by the next run after `apprentice publish`."
    elif report["is_champion"]:
        standing = "It is the champion."
    elif decision.rival == ModelName.CHAMPION:
        standing = "The champion stays who it was."
    else:
        standing = "There is no champion yet."
    other = " It became that under other rules than the recipe has now; those are not applied to it."
    return standing + ("" if report["by_these_rules"] else other)


def _cost(report: dict[str, Any]) -> str:
    bought = report["collect"]
    if not bought or (report.get("rows_of") == "Dataset" and not report.get("played_by")):
        return "nothing was bought"
    tokens = f"{bought['prompt_tokens']:,} prompt and {bought['completion_tokens']:,} completion tokens"
    if bought["cost_usd"] is None:
        return f"{tokens}, no prices given (teacher.prices)"
    return f"{bought['cost_usd']:.4f} USD at the recipe's prices, {tokens}"


def _duration(stages: list[dict[str, Any]]) -> str:
    seconds, cached = sum(stage["seconds"] for stage in stages), sum(stage["state"] == "cached" for stage in stages)
    hours = f"{seconds / 3600:.1f} h"
    spent = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 5400 else hours
    return f"{spent}, {cached} of {len(stages)} stages cached" if cached else spent


def _contamination(found: Contamination) -> str:
    if found.repeated:
        return f"The evaluation's answers are {tries_of(found)}. Nothing is claimed of other questions."
    learned_from = found.learned_from.items()
    learned = " and ".join(f"{named(name)} learned from {count} seeds" for name, count in learned_from)
    return (
        f"Contamination: of the {found.questions} questions {found.shared_with_training} were trained on, by text; "
        f"{found.shared_seeds} seeds are shared. {learned}; the rollouts that were bought share "
        f"{found.shared_with_rollouts} questions with "
        "the evaluation, which the filter drops."
    )


def _power(verdict: VerdictContents) -> str:
    """How many questions show a difference of five points; empty where nothing was compared."""
    needed = verdict.comparisons[-1].questions_for_5_points if verdict.comparisons else None
    if needed is None:
        return ""
    evaluated = verdict.models.last.n
    return f"Power: {needed} questions show a difference of 5 points four times in five; {evaluated} were asked."


def _reward_line(read: Curves | None) -> str:
    if not read:
        return ""
    ci = f" ({points(read.ci[0])} to {points(read.ci[1])})" if read.ci else ""
    return (
        f"Training reward: {read.reward_initial:.1%} in the first five logs, {read.reward_final:.1%} in the last "
        f"five: {points(read.delta)}{ci}."
    )


def _says(read: Curves | None, drawn: dict[str, Any]) -> str:
    """What the diagnosis says of a curve: how it went, and its warnings."""
    if read and drawn["title"] == "reward":
        return " ".join([_reward_line(read), *drawn["warnings"]])
    values = [value for _, value in drawn["points"] or drawn["held_out"]]
    ends = min(ENDS, len(values))
    first, last = sum(values[:ends]) / ends, sum(values[-ends:]) / ends
    went = f"{first:.3g} at first, {last:.3g} at the end (means of {ends} logs)." if ends > 1 else f"{first:.3g}."
    held_out = f" Held out: {drawn['held_out'][-1][1]:.3g} at the end." if drawn["held_out"] else ""
    return " ".join([went + held_out, *drawn["warnings"]])


def _bought(collect: dict[str, Any] | None) -> list[dict[str, Any]]:
    """What became of the teacher's episodes, as parts of a bar: kept, and dropped for each cause."""
    if not collect:
        return []
    counts = {"kept": collect["kept"], **dict(sorted(collect["causes"].items(), key=lambda each: -each[1]))}
    return [
        {"what": what, "number": number, "share": number / max(collect["episodes"], 1)}
        for what, number in counts.items()
    ]


def _stage_rows(stages: list[dict[str, Any]], priced: bool) -> list[dict[str, str]]:
    """A row a stage, without empty columns."""
    rows = [_stage_row(stage, priced) for stage in stages]
    filled = [name for name, empty in EMPTY.items() if any(row[name] != empty for row in rows)]
    return [{name: row[name] for name in row if name not in EMPTY or name in filled} for row in rows]


def _stage_row(stage: dict[str, Any], priced: bool) -> dict[str, str]:
    """Where a stage ran, how often it started, and its counts."""
    counts = stage["counts"]
    tokens = f"{counts.get('prompt_tokens', 0):,.0f} + {counts.get('completion_tokens', 0):,.0f}"
    return {
        "stage": stage["title"],
        "state": stage["state"],
        "seconds": f"{stage['seconds']:.1f}",
        "pool, worker": ", ".join(filter(None, (stage["pool"], stage["worker"]))) or "here",
        "begun": str(stage["attempts"]) if stage["state"] == "ran" else "1",
        "episodes": f"{counts['episodes']:,.0f}" if "episodes" in counts else "–",
        "tokens read + written": tokens if "prompt_tokens" in counts else "–",
        "USD": f"{counts['cost_usd']:.4f}" if priced and "cost_usd" in counts else "–",
        "retries, reconnects": f"{counts.get('retries', 0):.0f}, {counts.get('reconnects', 0):.0f}",
        "waited s": f"{counts.get('waited_s', 0):.0f}",
        "device s": f"{counts['device_s']:.1f}" if "device_s" in counts else "–",
        "key": code(stage["key"][:12]),
    }


def rates_of(models: Mapping[str, Rates]) -> list[dict[str, Any]]:
    """A row a model: every rate with the ends of its interval, as report.json has them."""
    return [
        {"model": name, "n": model.n}
        | _with_ends("accuracy", model.accuracy, model.ci)
        | _with_ends("format_compliance", model.format_compliance, model.ci)
        | _with_ends("mean_score", model.mean_score, model.ci)
        for name, model in models.items()
    ]


def _with_ends(rate: str, value: float, ci: Mapping[str, Interval]) -> dict[str, float]:
    low, high = ci[rate]
    return {rate: value, f"{rate} low": low, f"{rate} high": high}
