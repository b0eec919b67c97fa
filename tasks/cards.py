"""The README.md of every artifact: what it is and what made it, from the artifact's own data."""

import json
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from apprentice.tasks.artifacts import Artifact
from apprentice.tasks.provenance import Provenance
from apprentice.tasks.store import LocalStore


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
    repository = store.repository(kind)
    metadata: dict[str, Any] = {"tags": ["apprentice", made_by["stage"]]}
    data = sorted(out.glob("*.jsonl"))
    if kind.repo_type == "model":
        metadata |= {"library_name": "transformers", "pipeline_tag": "text-generation"}
    elif data:
        metadata["configs"] = [{"config_name": file.stem, "data_files": file.name} for file in data]
    lines = [
        "---",
        yaml.safe_dump(metadata, sort_keys=False).strip(),
        "---",
        f"# {repository}",
        "",
        (kind.__doc__ or "").split("\n")[0],
        "",
        "| | |",
        "| --- | --- |",
        *(f"| {name} | {json.dumps(value, ensure_ascii=False)} |" for name, value in counts.items()),
        "",
        *_about(out),
        *(_columns(kind.row) if kind.row else []),
        "## Made by",
        "",
        "```json",
        json.dumps(made_by, indent=2, ensure_ascii=False),
        "```",
        "",
    ]
    (out / "README.md").write_text("\n".join(lines))


def _about(out: Path) -> list[str]:
    """What a stage has to say of its artifact beyond its counts; it leaves it as about.md."""
    about = out / "about.md"
    if not about.exists():
        return []
    text = about.read_text()
    about.unlink()
    return [text, ""]


def _columns(row: type[BaseModel]) -> list[str]:
    """The data dictionary, from the docstrings of the row's fields."""
    fields = row.model_fields.items()
    lines = [f"| `{name}` | {' '.join((field.description or '').split())} |" for name, field in fields]
    return ["## Columns", "", "| column | what it is |", "| --- | --- |", *lines, ""]
