"""The README.md of every artifact, so that a stranger can use what he finds: its metadata and its text.

In: the staged files of an artifact, what made it, the store that knows its ancestors. Out: README.md. What a dataset
says is in dataset.py, what a model says in model.py; here they are put together, with what a stage left in
about.md and what made the artifact. No revision depends on a card.
"""

import json
from pathlib import Path
from typing import Any

from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import CARD, Provenance
from apprentice.tasks.artifacts.types import Artifact
from apprentice.tasks.cards import dataset as dataset_card
from apprentice.tasks.cards import model as model_card
from apprentice.tasks.cards.ancestry import ancestry_of
from apprentice.tasks.cards.sections import HIDDEN, environment_section, files_section, made_by_section, shown
from apprentice.tasks.reporting.markdown import code, markdown_table

LABELS = {
    "cached_tokens": "prompt tokens that the endpoint had cached",
    "completion_tokens": "tokens that the teacher wrote",
    "cost_usd": "cost in USD (0 where no prices were stated)",
    "delta": "difference in the metric, new model less rival",
    "dropped_from_grpo": "GRPO's seeds left out, as the evaluation asks their question",
    "failed": "failed episodes",
    "format_compliance": "format compliance (every turn a valid call)",
    "accuracy": "accuracy (reward 1.0)",
    "mean_score": "mean reward",
    "n": "episodes",
    "prompt_tokens": "tokens that the teacher read",
    "promoted": "let through by the gate",
    "reasoning_tokens": "written tokens that were reasoning",
    "weights": "digest of the weights",
}


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

    ancestry = ancestry_of(store, kind, key, counts, made_by, provenance)
    about = _about(out)
    of_it, card = (model_card, ModelCard) if kind.repo_type == "model" else (dataset_card, DatasetCard)
    lines = [
        f"# {ancestry.name.repository}",
        "",
        of_it.summary(ancestry),
        "",
        markdown_table(_numbers(of_it.counted(counts), dataset_card.failures(out, counts))),
        *([about] if about else []),
        *of_it.sections(ancestry, out),
        *environment_section(ancestry.environment()),
        *files_section(out),
        *of_it.origin(ancestry),
        *made_by_section(ancestry),
    ]
    card(f"---\n{of_it.metadata(ancestry, out).to_yaml()}\n---\n\n" + "\n".join(lines)).save(out / CARD)


def _about(out: Path) -> str:
    """What a stage has to say of its artifact beyond its counts; it leaves it as about.md."""
    about = out / "about.md"
    if not about.exists():
        return ""
    text = about.read_text()
    about.unlink()
    return f"{text.rstrip()}\n"


def _numbers(counts: dict[str, Any], failures: dict[str, int]) -> list[dict[str, str]]:
    """A row a count; what was kept and dropped of the episodes with its share of them."""
    rows = {}
    for name, value in (shown(counts) | failures).items():
        if isinstance(value, dict):
            rows |= {f"{name}: {cause}": _share(number, counts) for cause, number in value.items()}
        elif name in ("failed", "kept") or name in failures:
            rows[LABELS.get(name, name)] = _share(value, counts)
        elif name in ("accuracy", "format_compliance"):
            rows[LABELS[name]] = f"{value:.1%}"
        else:
            rows[LABELS.get(name, name.replace("_", " "))] = _plain(value)
    return [{"what": name, "value": value} for name, value in rows.items()]


def _share(number: float, counts: dict[str, Any]) -> str:
    of = counts.get("episodes")
    return f"{number:,} of {of:,} ({number / of:.1%})" if of and isinstance(number, int) else _plain(number)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
    if isinstance(value, list):
        return " ".join(code(str(each)) for each in dict.fromkeys(value)) or "none"
    return value if value == HIDDEN else code(value if isinstance(value, str) else json.dumps(value))
