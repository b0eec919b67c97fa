"""The facts of a dataset's card, or a judgement's: rows, columns, how it was made.

In: the staged files of an artifact, and what made it. Out: `DatasetFacts`.
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apprentice.tasks.artifacts.types import (
    Checkpoint,
    Evaluation,
    KeptRollouts,
    Questions,
    RelabelledRollouts,
    Rollouts,
)
from apprentice.tasks.cards.facts import Facts, lines_of, tokens_of_turn
from apprentice.tasks.episodes.record import EvaluatedEpisode, Record
from apprentice.tasks.files.json_lines import read_rows
from apprentice.tasks.lineage.node import Node
from apprentice.tasks.settings.spec import CollectSpec

if TYPE_CHECKING:
    from huggingface_hub import DatasetCardData


QUESTION_COLUMNS = {
    "purpose": "What the seed is for: collect (the teacher plays it), grpo (the student trains on it), evaluate.",
    "seed": "Names the question, together with the environment and its settings.",
    "question": "The question's text, as the environment asked it.",
    "used": "Whether it is used: an evaluation question is used once, and is kept out of training.",
}
SIZES = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B", "1B<n<10B")
"""As the Hub names them, by powers of ten from a thousand on."""


MIXED = "mix_rollouts", "mix_thoughts"
ROWS = {Rollouts: Record, KeptRollouts: Record, Evaluation: EvaluatedEpisode}
"""What a line of an artifact's data is, where that is for others to read."""


class DatasetFacts(Facts):
    def __init__(self, made: Node, out: Path):
        super().__init__(made, out)
        self.data = sorted(out.glob("*.jsonl"))
        self.judgement = min((file.name for file in out.glob("*.json")), default=None)
        self.columns = QUESTION_COLUMNS if made.is_a(Questions) else _columns(made)
        self.played = played_by(made)
        self.judged = made.nearest(RelabelledRollouts) if made.is_a(Rollouts, KeptRollouts) else None
        self.spent = _spent(made)
        self.players = _players(out / "kept.jsonl")
        self.model, self.questions = made.nearest(Checkpoint), made.nearest(Questions)
        self.turn_tokens = self._turn_tokens() if made.is_a(Evaluation) else None

    def _turn_tokens(self) -> int | None:
        """The most tokens of a turn of the model that was evaluated; None where no record says it."""
        spec, endpoint = self.made.settings.get("spec"), self.made.settings.get("endpoint")
        model = self.model.fetch() if self.model and not endpoint else None
        return tokens_of_turn(spec, endpoint, model) if spec else None

    def metadata(self) -> "DatasetCardData":
        from huggingface_hub import DatasetCardData

        of_rows: dict[str, Any] = {"viewer": False}
        if self.data:
            rows = sum(map(lines_of, self.data))
            of_rows = {
                "task_categories": ["text-generation"],
                "size_categories": [SIZES[min(max(len(str(rows)) - 3, 0), len(SIZES) - 1)]],
                "configs": [{"config_name": file.stem, "data_files": file.name} for file in self.data],
            }
        return DatasetCardData(license=self.made.store.license, language=["en"], tags=self.tags, **of_rows)


def played_by(made: Node) -> dict[str, Any] | None:
    """The settings by which a teacher played these episodes; None without rollouts."""
    above = (each for each in [made, *made.ancestors()] if each.is_a(Rollouts))
    return next((each.settings for each in above if {"teacher", "window"} <= each.settings.keys()), None)


def trained_on(made: Node) -> str:
    """What SFT learned from, within a sentence."""
    return "conversations that were given" if made.is_of_a_dataset else "a teacher's episodes"


def _spent(made: Node) -> dict[str, Any] | None:
    """What the rollouts counted from which episodes were kept; None for other datasets, or where they are gone."""
    rollouts = made.nearest(Rollouts) if made.is_a(KeptRollouts) else None
    return rollouts.counts if rollouts and "cost_usd" in rollouts.counts else None


def _players(kept: Path) -> dict[str, int]:
    """How many rows of a mix who played; empty where only a teacher did."""
    rows = read_rows(kept) if kept.exists() else []
    return Counter(row["player"] for row in rows if "player" in row)


def _columns(made: Node) -> dict[str, str]:
    """The data dictionary, from the docstrings of the row's fields."""
    row = next((row for kind, row in ROWS.items() if made.is_a(kind)), None)
    descriptions = {name: field.description for name, field in row.model_fields.items()} if row else {}
    recipe = made.record.provenance.recipe if made.record else {}
    unverified = recipe.get(CollectSpec.section, {}).get("unverified", "drop")
    is_mixed = unverified == "relabel" or (made.record and made.record.made_by["stage"] in MIXED)
    if made.record and not is_mixed:  # a single player is not named in the rows
        descriptions.pop("player", None)
    if unverified == "drop":
        descriptions.pop("verified", None)
    return {name: " ".join((text or QUESTION_COLUMNS.get(name, "")).split()) for name, text in descriptions.items()}
