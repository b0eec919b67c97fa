"""The README.md of every artifact, so that a stranger can use what he finds: its metadata and its text.

In: the staged files of an artifact, what made it, the store that knows its ancestors. Out: README.md: a template of
templates/, filled with the facts of `DatasetFacts` or `ModelFacts`. No revision depends on a card.
"""

from pathlib import Path
from pprint import pformat
from typing import Any

from jinja2 import Environment, PackageLoader

from apprentice.tasks.analysis.comparison import against_control, comparison_rows, label, table
from apprentice.tasks.analysis.judgements import as_markdown, unclean
from apprentice.tasks.artifacts import types
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.node import node_being_made
from apprentice.tasks.artifacts.provenance import CARD, Provenance
from apprentice.tasks.artifacts.types import Artifact
from apprentice.tasks.cards.dataset import DatasetFacts, played_by
from apprentice.tasks.cards.facts import as_json, lines_of, shown, taught_by
from apprentice.tasks.cards.model import ModelFacts, meaning_of, rung_of
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.reporting.markdown import cell, code, fenced, markdown_table

TEMPLATES = Path(__file__).parent / "templates"
SHARED = Environment(loader=PackageLoader("apprentice.tasks.cards"))
"""huggingface_hub renders a template without a loader, so what it extends and imports is handed to it."""
FUNCTIONS = (against_control, as_json, as_markdown, cell, code, comparison_rows, fenced, label, lines_of)
FUNCTIONS += (markdown_table, meaning_of, pformat, played_by, rung_of, shown, table, taught_by, unclean)


def write_card(
    out: Path,
    kind: type[Artifact],
    key: str,
    store: LocalStore,
    counts: dict[str, Any],
    made_by: dict[str, Any],
    provenance: Provenance,
) -> None:
    """Writes `out`/README.md with the Hub's metadata block."""
    from huggingface_hub import DatasetCard, ModelCard

    made = node_being_made(store, kind, key, counts, made_by, provenance)
    given: dict[str, Any] = {each.__name__: each for each in FUNCTIONS}
    given |= {"template_arguments": TEMPLATE_ARGUMENTS, "kinds": types}
    given |= {"layout": SHARED.get_template("card.md.j2"), "macros": SHARED.get_template("parts.md.j2")}
    template = str(TEMPLATES / f"{kind.repo_type}.md.j2")
    if kind.repo_type == "model":
        model = ModelFacts(made, out)
        card = ModelCard.from_template(model.metadata(), template, card=model, **given)
    else:
        data = DatasetFacts(made, out)
        card = DatasetCard.from_template(data.metadata(), template, card=data, **given)
    card.save(out / CARD)
