"""HTML pages that need nothing but themselves: their looks, their one script, the policy that forbids the rest.

In: a template and its data, or Markdown. Out: HTML.
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


def as_script(data: Any) -> Markup:
    """JSON that ends no `<script>` element and begins no comment."""
    return Markup(json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"))


def as_view_page(shown: list[dict[str, Any]]) -> str:
    """The page of a server that has the episodes: each of `shown` has a source, its episodes and its ref."""
    title = f"{sum(each['episodes'] for each in shown):,} episodes"
    return templates(autoescape=True).get_template("view.html.j2").render(**looks("'self'"), title=title, shown=shown)


def as_html_page(markdown: str, title: str) -> str:
    """Markdown as a page of the same looks."""
    return (
        templates(autoescape=True)
        .get_template("page.html.j2")
        .render(**looks("'none'"), title=title, body=from_markdown(markdown))
    )


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


def data_uri(picture: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}"


@cache
def _file(name: str) -> str:
    return (files("apprentice.flows.pages") / name).read_text()


def templates(autoescape: bool, functions: tuple[Any, ...] = ()) -> Environment:
    loader = PackageLoader("apprentice.flows", "pages")
    made = Environment(loader=loader, undefined=StrictUndefined, autoescape=autoescape)
    made.globals |= {each.__name__: each for each in functions} | {"as_json": json.dumps}
    return made
