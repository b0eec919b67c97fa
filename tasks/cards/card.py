"""The README.md of every artifact, so that a stranger can use what he finds: its metadata and its text.

In: the staged files of an artifact, what made it, the store that knows its ancestors. Out: README.md: a template of
templates/, filled with the facts of `DatasetFacts` or `ModelFacts`. No revision depends on a card.
"""

from pathlib import Path
from pprint import pformat
from typing import Any

from jinja2 import Environment, FileSystemLoader

from apprentice.tasks.analysis.comparison import comparison_rows, label, table
from apprentice.tasks.analysis.ending import as_markdown, unclean
from apprentice.tasks.artifacts import types
from apprentice.tasks.artifacts.lineage import Node
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import CARD, ArtifactRecord, Parent, Provenance
from apprentice.tasks.artifacts.types import Artifact
from apprentice.tasks.cards.dataset import DatasetFacts, played_by
from apprentice.tasks.cards.facts import as_json, lines_of, shown, taught_by
from apprentice.tasks.cards.model import ModelFacts, meaning_of, rung_of
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.reporting.text import cell, code, fenced, markdown_table

TEMPLATES = Path(__file__).parent / "templates"
FUNCTIONS = (as_json, as_markdown, cell, code, comparison_rows, fenced, label, lines_of)
FUNCTIONS += (markdown_table, meaning_of, pformat, played_by, rung_of, shown, table, taught_by, unclean)
PAGES = Environment(loader=FileSystemLoader(TEMPLATES))
"""Compiles each template once; huggingface_hub's own `from_template` does so for every card."""
PAGES.globals |= {each.__name__: each for each in FUNCTIONS}
PAGES.globals |= {"template_arguments": TEMPLATE_ARGUMENTS, "kinds": types}


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

    named = Parent(kind=kind.__name__, repository=store.repository(kind), revision="", key=key)
    fields = {"key": key, "counts": counts, "made_by": made_by, "files": {}, "provenance": provenance}
    made = Node(store, named, ArtifactRecord(kind=kind.__name__, **fields), {})
    facts = ModelFacts(made, out) if kind.repo_type == "model" else DatasetFacts(made, out)
    data = facts.metadata()
    template = PAGES.get_template(f"{kind.repo_type}.md.j2")
    text = template.render(card_data=data.to_yaml(), card=facts, **data.to_dict())
    (ModelCard if kind.repo_type == "model" else DatasetCard)(text).save(out / CARD)
