"""The report as one self-contained page: as Markdown for terminals and repositories, as HTML for people and for paper.

In: the report's data and its pictures. Out: two texts that need no other file. The HTML is the Markdown, rendered.
"""

import base64
import json
from pathlib import Path
from string import Template
from typing import Any

from apprentice.tasks.analysis import difficulty
from apprentice.tasks.analysis.call_faults import faults_of_calls
from apprentice.tasks.analysis.comparison import comparison_rows, difference_cells, percent, table
from apprentice.tasks.analysis.judgements import as_markdown, unclean
from apprentice.tasks.analysis.slices import spoken
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.reporting.markdown import code, fenced, markdown_table, points
from apprentice.tasks.training.completions import as_table

BRIEF_ENDS = "## Where it is right"
"""Up to here the page is what a terminal shows."""


def as_markdown_page(report: dict[str, Any], samples: str, pictures: dict[str, Path]) -> str:
    """The whole page. `pictures`: by the title under which the text shows them."""
    sections = [
        f"# {report['recipe']}, seed {report['seed']}",
        f"\nThe teacher: {code(report['played_by'])}.\n",
        *_results(report),
        *_decision(report),
        *_guards(report["guards"]),
        *_slices(report["slices"]),
        *_side_by_side(report["side_by_side"]),
        *_failures(report["failures"]),
        *_probe(report["probe"]),
        *_curves(report["grpo"], report["signals"]),
        *_said(report["completions"]),
        *_learned_from(report, samples),
        *_teacher(report["teacher"]),
        *_costs(report),
        *_lineage(report),
    ]
    embedded = [f"[{title}]: {_data_uri(path)}" for title, path in pictures.items()]
    return "\n".join([*sections, *embedded, ""])


def as_html_page(markdown: str, title: str) -> str:
    """The Markdown as HTML, with its looks; tables scroll by themselves where the screen is narrow."""
    from html import escape

    from markdown_it import MarkdownIt

    render = MarkdownIt("commonmark", {"html": False}).enable("table")
    body = render.render(markdown)
    body = body.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>")
    template = Template((Path(__file__).parent / "report.html").read_text())
    return template.substitute(title=escape(title), body=body)


def _data_uri(picture: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}"


def _results(report: dict[str, Any]) -> list[str]:
    shared = report["contamination"]
    lines = [f"## What was learned\n\nHeld-out questions, {report['decoding']} decoding, 95% intervals.\n"]
    lines.append(markdown_table(table(report["models"])))
    lines.append(_passes(report["models"]))
    if not shared["clean"]:
        return [*lines, f"> **Contaminated.** {unclean(shared)}\n"]
    lines.append(markdown_table(comparison_rows(report["comparisons"])))
    lines.append(
        f"Contamination: of the {shared['questions']} questions {shared['shared_with_training']} were trained on, by "
        f"text; {shared['shared_seeds']} seeds are shared. SFT learned from {shared['learned_from']['sft']} "
        f"seeds and GRPO from {shared['learned_from']['grpo']}; the rollouts that were bought share "
        f"{shared['shared_with_rollouts']} questions with the evaluation, which the filter drops.\n"
    )
    needed = report["comparisons"][-1]["questions_for_5_points"]
    if needed is not None:
        asked = report["models"]["grpo"]["n"]
        lines.append(
            f"Power: {needed} questions show a difference of 5 points four times in five; {asked} were asked.\n"
        )
    return lines


def _passes(models: dict[str, Any]) -> str:
    rows = [
        {"model": name}
        | {
            f"pass@{row['k']}": percent(row["pass_at_k"], row["ci"])
            for row in model["pass_at_k"]
            if _is_shown(row["k"])
        }
        for name, model in models.items()
        if "pass_at_k" in model
    ]
    return markdown_table(rows)


def _is_shown(k: int) -> bool:
    return k & (k - 1) == 0  # 1, 2, 4, 8, …


def _decision(report: dict[str, Any]) -> list[str]:
    had_one = report["gate"]["rival"] == "champion"
    stays = "The champion stays who it was." if had_one else "There is no champion yet."
    is_champion = "It is the champion." if report["is_champion"] else stays
    if not report["hub_in_reach"]:
        is_champion = "The Hub was out of reach: who is champion is settled by the next run after `apprentice publish`."
    if not report["by_these_rules"]:
        is_champion += " It became that under other rules than the recipe has now; those are not applied to it."
    return ["## The gate\n", as_markdown(report["gate"]), f"{is_champion}\n"]


def _guards(guards: list[dict[str, Any]]) -> list[str]:
    if not guards:
        return []
    rows = [
        {
            "guard rail": each["guard"],
            "n": str(each["before"]["n"]),
            "before": percent(each["before"]["accuracy"], each["before"]["ci"]),
            "after": percent(each["after"]["accuracy"], each["after"]["ci"]),
            **difference_cells(each),
        }
        for each in guards
    ]
    lines = ["## What was not to be forgotten\n\nBefore SFT and after GRPO.\n", markdown_table(rows)]
    at_zero = [each["guard"] for each in guards if not each["before"]["accuracy"]]
    told = (
        f"Right on none before: {', '.join(at_zero)}. A rate of 0% cannot fall, so such a guard rail shows nothing.\n"
    )
    return [*lines, told] if at_zero else lines


def _slices(rows: list[dict[str, Any]]) -> list[str]:
    lines = [f"{BRIEF_ENDS}\n"]
    for trait in dict.fromkeys(row["trait"] for row in rows):
        cells = [
            {f"by {trait}": row["kind"], "n": str(row["n"])}
            | {name: percent(model["accuracy"], model["ci"]) for name, model in row["models"].items()}
            for row in rows
            if row["trait"] == trait
        ]
        lines.append(markdown_table(cells))
    return lines if rows else [*lines, "Nothing tells one kind of question from another here.\n"]


def _side_by_side(questions: list[dict[str, Any]]) -> list[str]:
    lines = ["## The same questions, model by model\n"]
    for each in questions:
        lines.append(f"### Seed {each['seed']}\n")
        lines.append(fenced(each["question"]))
        rows = [
            {"model": name, "said": code(answer["said"]), "reward": f"{answer['reward']:g}"}
            for name, answer in each["models"].items()
        ]
        own = [{"model": "*the environment*", "said": code(each["correct"]), "reward": ""}] if each["correct"] else []
        lines.append(markdown_table([*rows, *own]))
    return lines


def _failures(failures: list[dict[str, Any]]) -> list[str]:
    if not failures:
        return []
    lines = ["## The worst failures\n\nFirst what an earlier model had right, then the lowest reward.\n"]
    for each in failures:
        record = EvaluatedEpisode.model_validate(each)
        why = "".join(f"; {cause}" for cause in (", ".join(record.causes), record.broken) if cause)
        own = f"; the environment's own answer: {code(record.correct)}" if record.correct else ""
        lines.append(f"### Seed {record.seed}, reward {record.score:g}{why}\n")
        lines.append(f"Said {code(spoken(record))}{own}.\n")
        lines += [f"What is wrong with a call: {code(wrong)}.\n" for wrong in faults_of_calls(record.messages)]
        lines.append(fenced("\n\n".join(_turn(message) for message in record.messages)))
    return lines


def _turn(message: dict[str, Any]) -> str:
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls") or []]
    return f"[{message['role']}] " + "\n".join(part for part in [message.get("content") or "", *calls] if part)


def _probe(probe: dict[str, Any] | None) -> list[str]:
    if probe is None:
        return []
    return [
        f"## How hard GRPO's task was\n\n{difficulty.as_markdown(probe)}",
        "The SFT model on questions that GRPO trains on, one sample each, drawn as in GRPO; 95% intervals.\n",
    ]


def _curves(grpo: dict[str, Any], signals: dict[str, list[str]]) -> list[str]:
    ci = f" ({points(grpo['ci'][0])} to {points(grpo['ci'][1])})" if grpo["ci"] else ""
    return [
        f"## What GRPO's curves say\n\n**{grpo['diagnosis']}.** {grpo['advice']}\n",
        f"Training reward: {grpo['reward_initial']:.1%} in the first five logs, {grpo['reward_final']:.1%} in the last "
        f"five: {points(grpo['delta'])}{ci}. Different questions are compared here; the table above decides.\n",
        *(f"> **While {stage} trained.** {line}\n" for stage, lines in signals.items() for line in lines),
        "![GRPO]\n\n![SFT]\n",
    ]


def _said(rows: list[dict[str, Any]]) -> list[str]:
    """The last rollouts that were kept."""
    return ["## What the model said while GRPO trained\n", as_table(rows)] if rows else []


def _learned_from(report: dict[str, Any], samples: str) -> list[str]:
    collected, lengths = report["collect"], report["lengths"]
    return [
        f"## What was learned from\n\n{collected['kept']} of {collected['episodes']} episodes were kept "
        f"({collected['kept'] / collected['episodes']:.1%}).\n",
        markdown_table([{"dropped for": cause, "episodes": str(n)} for cause, n in collected["causes"].items()]),
        f"Tokens of a training text: p50 {lengths['p50']}, p95 {lengths['p95']}, p99 {lengths['p99']}, longest "
        f"{lengths['longest']}; max_length {lengths['max_length']} truncates {lengths['truncated']}.\n",
        "![lengths]\n",
        f"### Three samples\n\n{samples}",
    ]


def _teacher(teacher: dict[str, Any]) -> list[str]:
    compared = [{"the teacher's answer": kind, "episodes": str(n)} for kind, n in teacher["compared"].items() if n]
    slices = [
        {
            "kind of question": f"{row['trait']} {row['kind']}",
            "n": str(row["n"]),
            "teacher": percent(row["accuracy"], row["ci"]),
        }
        for row in teacher["slices"]
    ]
    right = percent(teacher["accuracy"], teacher["ci"])
    return [
        f"## The teacher against the environment\n\nRight in {right} of {teacher['episodes']} episodes; "
        f"{teacher['lost']} more were lost to infrastructure. Its answers beside the environment's own, and whether "
        "the reward was 1:\n",
        markdown_table(compared),
        markdown_table(slices),
    ]


def _costs(report: dict[str, Any]) -> list[str]:
    collected, cost = report["collect"], report["collect"]["cost_usd"]
    spent = "no prices given (teacher.prices)" if cost is None else f"{cost:.4f} USD at the recipe's prices"
    rows = [_stage_row(stage, priced=cost is not None) for stage in report["stages"]]
    told = [name for name, empty in EMPTY.items() if any(row[name] != empty for row in rows)]
    return [
        "## Costs\n",
        *_corrected(report["stages"]),
        f"Teacher: {collected['prompt_tokens']:,} prompt and {collected['completion_tokens']:,} completion tokens, "
        f"{spent}. Stages: "
        f"{sum(row['seconds'] for row in report['stages']):.0f} s on {report['device']}, at most "
        f"{report['peak_memory_mb']:,} MB in one process.\n",
        markdown_table([{name: row[name] for name in row if name not in EMPTY or name in told} for row in rows]),
    ]


def _corrected(stages: list[dict[str, Any]]) -> list[str]:
    corrected = sum(stage["counts"].get("usage_corrected", 0) for stage in stages)
    if not corrected:
        return []
    return [
        f"> The endpoint told no token usage, or one that cannot be, with {corrected:,.0f} answers: they are booked as "
        "the most that they can have been.\n"
    ]


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


def _stage_row(stage: dict[str, Any], priced: bool) -> dict[str, str]:
    """A stage's line: where it ran, how often it was begun, what it counted."""
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


def _lineage(report: dict[str, Any]) -> list[str]:
    rows = [
        {
            "artifact": code(each["repository"]),
            "revision": code(each["revision"][:12]),
            "stage": each["stage"],
            "made from": ", ".join(f"{name} {code(revision[:12])}" for name, revision in each["inputs"].items()),
        }
        for each in report["lineage"]
    ]
    return [
        "## Lineage\n",
        markdown_table(rows),
        f"Seeds: {code(json.dumps(report['seeds']))}. Versions: {code(json.dumps(report['versions']))}.\n",
    ]
