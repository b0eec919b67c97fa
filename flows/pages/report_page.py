"""The report as one self-contained page: as Markdown for terminals, repositories and Prefect, as HTML for people.

In: the report's data, its pictures, its episodes. Out: two texts that need no other file, from one view of the data.
"""

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from apprentice.flows.pages.episodes import HELD_OUT, as_script
from apprentice.flows.pages.run_graph import placed
from apprentice.flows.pages.view import as_title, guard_rows, kind_rows, pass_rows, view_of
from apprentice.tasks.analysis.call_faults import faults_of_calls
from apprentice.tasks.analysis.comparison import against_control, comparison_rows, label, percent, table
from apprentice.tasks.analysis.difficulty import difficulty_as_markdown
from apprentice.tasks.analysis.judgements import as_markdown
from apprentice.tasks.analysis.slices import spoken
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.reporting.markdown import cell, code, fenced, markdown_table
from apprentice.tasks.reporting.visible import visible
from apprentice.tasks.training.completions import as_table

BRIEF_ENDS = "## Where it is right"
"""Up to here the page is what a terminal shows."""


def as_markdown_page(report: dict[str, Any], samples: str, pictures: dict[str, Path]) -> str:
    """The whole page. `pictures`: by the title under which the text shows them."""
    return MARKDOWN.get_template("report.md.j2").render(
        report | view_of(report),
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


def as_html_page(markdown: str, title: str) -> str:
    """Markdown as a page of the same looks."""
    return HTML.get_template("page.html.j2").render(**looks("'none'"), title=title, body=from_markdown(markdown))


def from_markdown(text: str) -> Markup:
    """Markdown as HTML; tables scroll by themselves where the screen is narrow."""
    from markdown_it import MarkdownIt

    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    scroll = '<div class="scroll" role="group" tabindex="0" aria-label="Table"><table>'
    return Markup(body.replace("<table>", scroll).replace("</table>", "</table></div>"))


def looks(connect: str) -> dict[str, Any]:
    """Style, script, and the policy that lets this script run, no other, and loads nothing.

    `connect`: whom the script may ask: 'none', or 'self' where a server has the episodes.
    """
    script, css = _file("page.js"), _file("page.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'; "
    policy += f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    return {"script": Markup(script), "css": Markup(css), "policy": policy}


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


def data_uri(picture: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}"


def conversation(record: EvaluatedEpisode) -> str:
    return "\n\n".join(_turn(message) for message in record.messages)


def script_json(data: Any) -> Markup:
    return Markup(as_script(data))


def _turn(message: dict[str, Any]) -> str:
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls") or []]
    return f"[{message['role']}] " + "\n".join(part for part in [message.get("content") or "", *calls] if part)


def _failures(report: dict[str, Any]) -> list[EvaluatedEpisode]:
    return [EvaluatedEpisode.model_validate(each) for each in report["failures"]]


def _with_ends(rate: str, value: float, ci: list[float]) -> dict[str, float]:
    return {rate: value, f"{rate} low": ci[0], f"{rate} high": ci[1]}


@cache
def _file(name: str) -> str:
    return (files("apprentice.flows.pages") / name).read_text()


def _environment(autoescape: bool, functions: tuple[Any, ...]) -> Environment:
    loader = PackageLoader("apprentice.flows", "pages")
    made = Environment(loader=loader, undefined=StrictUndefined, autoescape=autoescape)
    made.globals |= {each.__name__: each for each in functions} | {"brief_ends": BRIEF_ENDS, "as_json": json.dumps}
    return made


BOTH = (against_control, as_markdown, as_table, comparison_rows, difficulty_as_markdown, guard_rows, pass_rows, spoken)
BOTH += (table,)
MARKDOWN = _environment(
    False, (*BOTH, cell, code, conversation, faults_of_calls, fenced, kind_rows, label, markdown_table, percent)
)
HTML = _environment(True, (*BOTH, as_title, curve_rows, from_markdown, placed, rates_of, script_json, visible))
