"""The report as one self-contained page: as Markdown for terminals, repositories and Prefect, as HTML for people.

In: the report's data, its pictures, its episodes. Out: two texts that need no other file, from one view of the data.
"""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from apprentice.flows.pages.episodes import HELD_OUT
from apprentice.flows.pages.rendering import as_script, data_uri, from_markdown, looks, templates
from apprentice.flows.pages.run_graph import placed
from apprentice.flows.pages.view import as_title, guard_rows, kind_rows, pass_rows, view_of
from apprentice.tasks.analysis.comparison import comparison_rows, label, percent, table
from apprentice.tasks.analysis.difficulty import difficulty_as_markdown
from apprentice.tasks.analysis.ending import as_markdown
from apprentice.tasks.analysis.slices import faults_of_calls, text_of_turns
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.reporting.text import cell, code, fenced, markdown_table, visible
from apprentice.tasks.training.reporters import as_table

BRIEF_ENDS = "## Where it is right"
"""Up to here the page is what the terminal of a verbose run shows."""


def first_screen(text: str) -> str:
    """The page up to its first section: outcome, rates, cost, what to change."""
    return text.split("\n## ")[0].rstrip()


def as_markdown_page(report: dict[str, Any], samples: str, pictures: dict[str, Path]) -> str:
    """The whole page. `pictures`: by the title under which the text shows them."""
    return MARKDOWN.get_template("report.md.j2").render(
        report | view_of(report),
        brief_ends=BRIEF_ENDS,
        failures=_failures(report),
        samples=samples,
        pictures={title: data_uri(path) for title, path in pictures.items()},
    )


def as_report_page(report: dict[str, Any], episodes: str) -> str:
    """The whole page as HTML, without a request to anywhere. `episodes`: as `embedded` gives them."""
    return HTML.get_template("report.html.j2").render(
        report | view_of(report),
        **looks("'none'"),
        title=f"{report['recipe']}, seed {report['seed']}",
        failures=_failures(report),
        held_out=HELD_OUT,
        episodes_json=Markup(episodes),
    )


def rates_of(models: dict[str, Any]) -> list[dict[str, Any]]:
    """A row a model: every rate with the ends of its interval, as report.json has them."""
    rates = ("accuracy", "format_compliance", "mean_score")
    return [
        {"model": name, "n": model["n"]}
        | {key: value for rate in rates for key, value in _with_ends(rate, model[rate], model["ci"][rate]).items()}
        for name, model in models.items()
    ]


def curve_rows(curves: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"curve": each["title"], "of": of, "step": step, "value": value}
        for each in curves
        for of, points in (("training", each["points"]), ("held out", each["held_out"]))
        for step, value in points
    ]


def kind_over_time_rows(over_time: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"kind": kind, "step": step, "share of the questions": share, "success rate": rate}
        for kind, of_kind in over_time.items()
        for (step, share), (_, rate) in zip(of_kind["asked"], of_kind["rate"], strict=True)
    ]


def conversation(record: EvaluatedEpisode) -> str:
    return "\n\n".join(_turn(message) for message in record.messages)


def _turn(message: dict[str, Any]) -> str:
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls") or []]
    return f"[{message['role']}] " + "\n".join(part for part in [message.get("content") or "", *calls] if part)


def _failures(report: dict[str, Any]) -> list[EvaluatedEpisode]:
    return [EvaluatedEpisode.model_validate(each) for each in report["failures"]]


def _with_ends(rate: str, value: float, ci: list[float]) -> dict[str, float]:
    return {rate: value, f"{rate} low": ci[0], f"{rate} high": ci[1]}


BOTH = (as_markdown, as_table, comparison_rows, difficulty_as_markdown, guard_rows, pass_rows, table)
BOTH += (text_of_turns,)
MARKDOWN = templates(
    False,
    (*BOTH, cell, code, conversation, faults_of_calls, fenced, kind_rows, label, markdown_table, percent, visible),
)
HTML = templates(
    True, (*BOTH, as_title, curve_rows, from_markdown, kind_over_time_rows, placed, rates_of, as_script, visible)
)
