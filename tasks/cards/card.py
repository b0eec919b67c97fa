"""The README.md of every artifact, so that a stranger can use what he finds.

In: the staged files of an artifact, what made it, the store that knows its ancestors. Out: README.md with metadata for
the Hub: a template of templates/, filled with the facts of a dataset (rows, columns, how it was made), a judgement (one
JSON file: lengths, verdict, decision) or a model (start, trainings, evaluation). Paths and addresses of the machines
that made it are left out. No revision depends on a card.
"""

from pathlib import Path
from pprint import pformat
from typing import Any

from jinja2 import Environment, FileSystemLoader

from apprentice.tasks.advice.ending import as_markdown, tries_of, unclean
from apprentice.tasks.analysis.comparison import comparison_rows, table
from apprentice.tasks.artifacts import types
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import CARD, ArtifactRecord, Parent, Provenance
from apprentice.tasks.artifacts.types import Artifact, Exported
from apprentice.tasks.cards.dataset_facts import DatasetFacts, played_by, trained_on
from apprentice.tasks.cards.facts import as_json, lines_of, shown, teacher_text
from apprentice.tasks.cards.model_facts import ExportFacts, ModelFacts, level_of, meaning_of
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.judgement.model_names import label
from apprentice.tasks.lineage.node import Node
from apprentice.tasks.reporting.safe_text import cell, code, fenced, markdown_table

TEMPLATES = Path(__file__).parent / "templates"
FUNCTIONS = (as_json, as_markdown, cell, code, comparison_rows, fenced, label, lines_of, tries_of, unclean)
FUNCTIONS += (markdown_table, meaning_of, pformat, played_by, level_of, shown, table, teacher_text, trained_on)
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
    page = "gguf" if issubclass(kind, Exported) else kind.repo_type
    facts = {"gguf": ExportFacts, "model": ModelFacts, "dataset": DatasetFacts}[page](made, out)
    data = facts.metadata()
    template = PAGES.get_template(f"{page}.md.j2")
    text = template.render(card_data=data.to_yaml(), card=facts, **data.to_dict())
    (ModelCard if kind.repo_type == "model" else DatasetCard)(text).save(out / CARD)
