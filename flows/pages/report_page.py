"""The report as one self-contained page: as Markdown for terminals and repositories, as HTML for people and for paper.

In: the report's data and its pictures. Out: two texts that need no other file: report.md.j2, filled, and its HTML.
"""

import base64
import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from apprentice.tasks.analysis.call_faults import faults_of_calls
from apprentice.tasks.analysis.comparison import (
    against_control,
    comparison_rows,
    difference_cells,
    label,
    percent,
    table,
)
from apprentice.tasks.analysis.difficulty import difficulty_as_markdown
from apprentice.tasks.analysis.judgements import as_markdown, unclean
from apprentice.tasks.analysis.slices import spoken
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.reporting.markdown import cell, code, fenced, markdown_table, points
from apprentice.tasks.training.completions import as_table

BRIEF_ENDS = "## Where it is right"
"""Up to here the page is what a terminal shows."""
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


def as_markdown_page(report: dict[str, Any], samples: str, pictures: dict[str, Path]) -> str:
    """The whole page. `pictures`: by the title under which the text shows them."""
    stages = report["stages"]
    return TEMPLATES.get_template("report.md.j2").render(
        report,
        failures=[EvaluatedEpisode.model_validate(each) for each in report["failures"]],
        stage_rows=_stage_rows(stages, priced=(report["collect"] or {}).get("cost_usd") is not None),
        usage_corrected=sum(stage["counts"].get("usage_corrected", 0) for stage in stages),
        samples=samples,
        pictures={title: data_uri(path) for title, path in pictures.items()},
    )


def as_html_page(markdown: str, title: str) -> str:
    """The Markdown as HTML, with its looks; tables scroll by themselves where the screen is narrow."""
    from markdown_it import MarkdownIt

    render = MarkdownIt("commonmark", {"html": False}).enable("table")
    body = render.render(markdown)
    body = body.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>")
    return TEMPLATES.get_template("report.html.j2").render(title=title, body=body)


def data_uri(picture: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}"


def pass_rows(models: dict[str, Any]) -> list[dict[str, str]]:
    """A row a model that was asked several times; pass@k for k = 1, 2, 4, 8, …"""
    return [
        {"model": name} | {f"pass@{row['k']}": percent(row["pass_at_k"], row["ci"]) for row in rows}
        for name, model in models.items()
        if (rows := [row for row in model.get("pass_at_k", []) if row["k"] & (row["k"] - 1) == 0])
    ]


def guard_rows(guards: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [
        {
            "guard rail": each["guard"],
            "n": str(each["before"]["n"]),
            "before": percent(each["before"]["accuracy"], each["before"]["ci"]),
            "after": percent(each["after"]["accuracy"], each["after"]["ci"]),
            **difference_cells(each),
        }
        for each in guards
    ]


def conversation(record: EvaluatedEpisode) -> str:
    return "\n\n".join(_turn(message) for message in record.messages)


def _turn(message: dict[str, Any]) -> str:
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls") or []]
    return f"[{message['role']}] " + "\n".join(part for part in [message.get("content") or "", *calls] if part)


def _stage_rows(stages: list[dict[str, Any]], priced: bool) -> list[dict[str, str]]:
    """A row a stage, without the columns that tell nothing."""
    rows = [_stage_row(stage, priced) for stage in stages]
    told = [name for name, empty in EMPTY.items() if any(row[name] != empty for row in rows)]
    return [{name: row[name] for name in row if name not in EMPTY or name in told} for row in rows]


def _stage_row(stage: dict[str, Any], priced: bool) -> dict[str, str]:
    """Where a stage ran, how often it was begun, what it counted."""
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


TEMPLATES = Environment(loader=PackageLoader("apprentice.flows", "pages"), undefined=StrictUndefined)
FUNCTIONS = (against_control, as_markdown, as_table, cell, code, comparison_rows, conversation, faults_of_calls)
FUNCTIONS += (difficulty_as_markdown, fenced, guard_rows, label, markdown_table, pass_rows, percent, points, spoken)
FUNCTIONS += (table, unclean)
TEMPLATES.globals |= {each.__name__: each for each in FUNCTIONS} | {"brief_ends": BRIEF_ENDS, "as_json": json.dumps}
