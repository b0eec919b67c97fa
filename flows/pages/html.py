"""HTML pages that need nothing but themselves: their looks and their one script.

In: a template and its data. Out: HTML, with a policy that forbids all that is not the page's own.
"""

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from apprentice.tasks.judgement.model_names import named


def as_script(data: Any) -> Markup:
    """JSON that ends no `<script>` element and begins no comment."""
    return Markup(json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"))


def as_title(model: str) -> str:
    """The name of a model at the head of a row."""
    name = named(model).removeprefix("the ")
    return name[0].upper() + name[1:]


def as_view_page(shown: list[dict[str, Any]]) -> str:
    """The page of a server that has the episodes: each of `shown` has a source, its episodes and its ref."""
    title = f"{sum(each['episodes'] for each in shown):,} episodes"
    return templates(autoescape=True).get_template("view.html.j2").render(**looks("'self'"), title=title, shown=shown)


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


@cache
def _file(name: str) -> str:
    return (files("apprentice.flows.pages") / name).read_text()


def templates(autoescape: bool, functions: tuple[Any, ...] = ()) -> Environment:
    loader = PackageLoader("apprentice.flows", "pages")
    made = Environment(loader=loader, undefined=StrictUndefined, autoescape=autoescape)
    made.globals |= {each.__name__: each for each in functions} | {"as_json": json.dumps}
    return made
