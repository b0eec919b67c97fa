"""The report as one self-contained HTML page, and its brief as Markdown for terminals, repositories and Prefect.

In: the report's data, its episodes. Out: two texts, from one view of the data.
"""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from apprentice.flows.pages.curves import curve_rows, kind_over_time_rows
from apprentice.flows.pages.episodes import HELD_OUT
from apprentice.flows.pages.html import as_script, as_title, from_markdown, looks, templates
from apprentice.flows.pages.report_view import view_of
from apprentice.flows.pages.run_graph import placed, run_graph
from apprentice.tasks.advice.ending import as_markdown
from apprentice.tasks.analysis.difficulty import difficulty_as_markdown
from apprentice.tasks.engine.stage import Drawn
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.judgement.samples import text_of_turns
from apprentice.tasks.reporting.safe_text import code, markdown_table, visible
from apprentice.tasks.training.tracking.completions import as_table


def first_screen(text: str) -> str:
    """The page up to its first section: outcome, rates, cost, what to change."""
    return text.split("\n## ")[0].rstrip()


def as_markdown_page(report: dict[str, Any]) -> str:
    """The brief: outcome, rates, comparisons and the gate's decision, with a link to the page."""
    return MARKDOWN.get_template("report.md.j2").render(report | view_of(report))


def as_report_page(report: dict[str, Any], episodes: str, boxes: Mapping[str, Drawn]) -> str:
    """The whole page as HTML, without a request to anywhere. `episodes`: as `embedded` gives them."""
    return HTML.get_template("report.html.j2").render(
        report | view_of(report),
        **looks("'none'"),
        title=f"{report['recipe']}, seed {report['seed']}",
        failures=[EvaluatedEpisode.model_validate(each) for each in report["failures"]],
        held_out=HELD_OUT,
        episodes_json=Markup(episodes),
        run_graph=run_graph(report["lineage"], report["stages"], boxes),
    )


MARKDOWN = templates(False, (as_markdown, code, markdown_table, visible))
HTML = templates(
    True,
    (
        *(as_markdown, as_script, as_table, as_title, curve_rows, difficulty_as_markdown, from_markdown),
        *(kind_over_time_rows, placed, text_of_turns, visible),
    ),
)
