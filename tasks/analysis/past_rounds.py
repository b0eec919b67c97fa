"""The rounds that a project has run, read from the records of released models.

In: the store. Out: the rounds, the first one first, and rows for tables. The store's tags and records are the only
source: two machines that share a store see the same history, and so begin the same next round.
"""

from collections import Counter
from typing import Any, NamedTuple, TypeVar

from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import Provenance, parent
from apprentice.tasks.artifacts.types import (
    Artifact,
    Checkpoint,
    Evaluation,
    KeptRollouts,
    Questions,
    RelabelledRollouts,
    Release,
)
from apprentice.tasks.episodes.record import DATASET, read_episodes
from apprentice.tasks.files.json_lines import read_rows
from apprentice.tasks.judgement.champions import REJECTED, Champions
from apprentice.tasks.judgement.contents import read_decision
from apprentice.tasks.lineage.node import Node, node_of
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.statistics.differences import level_of
from apprentice.tasks.statistics.intervals import percent, worth
from apprentice.tasks.statistics.rates import answers_of, evaluated_interval

A = TypeVar("A", bound=Artifact)


class PastRound(NamedTuple):
    """A round whose gate has decided."""

    number: int
    """0 for the first training and for every plain run of the recipe."""
    release: Release
    node: Node

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe of the round, as its record has it."""
        return self.node.record.provenance.recipe if self.node.record else {}

    @property
    def trained(self) -> Checkpoint:
        """The model that was released. Raises Stop if it is gone."""
        return self._input(Checkpoint, "trained")

    @property
    def judged(self) -> Evaluation:
        """The evaluation of whoever is champion after the round, on its own window. Raises Stop if it is gone."""
        name = "challenger" if self.release.promoted else "rival"
        return _with_worth(self._node("decision", f"evaluations.{name}"))

    @property
    def questions(self) -> Questions:
        """What the round asked. Raises Stop if it is gone."""
        return self._input(Questions, "decision", "evaluations.challenger", "questions")

    @property
    def kept(self) -> KeptRollouts | None:
        """What SFT learned from in this round; None without SFT."""
        found = self._trained_on()
        return found.artifact if found else None  # type: ignore[return-value]

    def row(self) -> dict[str, str]:
        judged, kept = self.judged, self._trained_on()
        bought, folder = _bought(kept), self.node.fetch()
        return {
            "round": str(self.number),
            "champion's accuracy": percent(judged.accuracy, evaluated_interval(judged)),
            "promoted": "yes" if self.release.promoted else "no",
            "level": f"{level_of(self.number):.2g}" if self.number else "0.05",
            "bought": str(bought.get("episodes", 0)),
            "kept": _players(self.node.store, kept),
            "tokens": f"{bought.get('prompt_tokens', 0) + bought.get('completion_tokens', 0):,}",
            "USD": f"{bought.get('cost_usd', 0.0):.4f}",
            "rung": _level(self.recipe),
            "why not": " ".join(read_decision(folder).reasons) if folder else "",
            "model": self.release.revision[:12],
        }

    def _trained_on(self) -> Node | None:
        """The kept rollouts of this round's own SFT, not those of the champion that it began from."""
        trained = self.node.inputs.get("trained")
        while trained is not None and "kept" not in trained.inputs:
            before = trained.inputs.get("checkpoint")
            trained = before if before is not None and not before.is_a(Release) else None
        return trained.inputs["kept"] if trained else None

    def _input(self, kind: type[A], *path: str) -> A:
        found = self._node(*path).artifact
        assert isinstance(found, kind)
        return found

    def _node(self, *path: str) -> Node:
        node = self.node
        for name in path:
            if name not in node.inputs:
                raise Stop(
                    f"The history of {self.node.ref} is not whole: what its {name} was is gone.",
                    "Restore the artifacts of the earlier rounds, or begin anew under another recipe name.",
                )
            node = node.inputs[name]
        return node


def _with_worth(node: Node) -> Evaluation:
    """The evaluation with what several samples of a question are worth, which older code did not write down: from its
    episodes, or as many as there are questions where these are gone."""
    found, samples = node.artifact, (node.settings.get("spec") or {}).get("samples", 1)
    assert isinstance(found, Evaluation)
    if samples == 1 or found.worth is not None:
        return found
    folder = node.fetch()
    by_question = answers_of(read_episodes(folder)) if folder and (folder / "episodes.jsonl").exists() else {}
    questions = len(by_question) or max(found.n // samples, 1)
    counted = worth(by_question.values()) if by_question else float(questions)
    return found.model_copy(update={"questions": questions, "worth": counted})


def past_rounds(store: LocalStore) -> list[PastRound]:
    """The rounds whose model was released, promoted or not, in their order."""
    champions = Champions(store)
    current, changes = champions.current(), [each.revision for each in champions.history()]
    if changes and changes[-1] != (current and current.revision):  # a process ended before it moved the tag
        changes.pop()
    known: dict[str, Node] = {}
    rounds = []
    for revision in dict.fromkeys([*changes, *store.tags(Release, REJECTED).values()]):
        release = store.at(Release, revision)
        node = node_of(store, parent(release), known)
        provenance = node.record.provenance if node.record else Provenance()
        number = (provenance.recipe.get("round") or {}).get("number", 0)
        rounds.append((number, provenance.made_at, PastRound(number, release, node)))
    return [each for *_, each in sorted(rounds, key=lambda row: row[:2])]


def _bought(kept: Node | None) -> dict[str, Any]:
    """What the teacher's episodes of a round counted, or its verdicts on rows of a dataset; empty where no teacher was
    asked."""
    rollouts = kept.inputs.get("rollouts") if kept else None
    if rollouts and rollouts.is_a(RelabelledRollouts):
        judged = sum(rollouts.counts.get(name, 0) for name in ("confirmed", "replaced", "undecided"))
        return rollouts.counts | {"episodes": judged}
    return rollouts.counts if rollouts and not rollouts.is_of_a_dataset else {}


def _players(store: LocalStore, kept: Node | None) -> str:
    folder = kept.fetch() if kept else None
    if kept is None or folder is None:
        return "0"
    rollouts = kept.inputs.get("rollouts")
    others = DATASET if rollouts and rollouts.is_of_a_dataset else "the teacher"
    counted = Counter(row.get("player") or others for row in read_rows(folder / "kept.jsonl"))
    return ", ".join(f"{count} by {player}" for player, count in counted.items())


def _level(recipe: dict[str, Any]) -> str:
    levels = (recipe.get("improve") or {}).get("ladder") or []
    settings = (recipe.get("environment") or {}).get("settings")
    return f"{levels.index(settings) + 1} of {len(levels)}" if settings in levels else "–"
